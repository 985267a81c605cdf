// A session's log as a stream: read by fetch, so that the key travels in a header,
// and resumed where it was cut, without a gap and without a duplicate.
import { createParser } from "eventsource-parser";
import type { Schemas } from "./client";
import { pause } from "./client";
import { Failure } from "./failure";
import { readKey, signOut } from "./key";

export type Event = Omit<Schemas["Event"], "body" | "refs"> & { body: Body; refs: Record<string, unknown> };
export type Body = Record<string, unknown>;
export type Connection = "connecting" | "live" | "cut";

/** The service says something every 10 s; silence for longer than this is a cut. */
const SILENCE_MS = 25_000;
const PAUSE_MS = { first: 300, longest: 5_000 };

interface Follower {
  after: number;
  onEvents(events: Event[]): void;
  onConnection(connection: Connection): void;
  signal: AbortSignal;
}

/** Follows until the signal; throws a `Failure` when the service refuses for good. */
export async function follow(session: string, follower: Follower): Promise<void> {
  let { after } = follower;
  let wait = PAUSE_MS.first;
  while (!follower.signal.aborted) {
    try {
      const seen = await read(session, after, follower, (events) => {
        after = events.at(-1)?.seq ?? after;
        wait = PAUSE_MS.first;
        follower.onEvents(events);
      });
      if (seen === "refused") return;
    } catch (error) {
      if (follower.signal.aborted) return;
      if (error instanceof Failure && !["unavailable", "rate_limited", "internal"].includes(error.type)) throw error;
    }
    follower.onConnection("cut");
    await awake(wait, follower.signal);
    wait = Math.min(wait * 2, PAUSE_MS.longest);
  }
}

/** One connection, from its answer to its end. */
async function read(
  session: string,
  after: number,
  follower: Follower,
  deliver: (events: Event[]) => void,
): Promise<"refused" | "ended"> {
  const quiet = new AbortController();
  const signal = AbortSignal.any([follower.signal, quiet.signal]);
  let silence = setTimeout(() => quiet.abort(), SILENCE_MS);
  try {
    const response = await fetch(`/v3/sessions/${session}/events?stream=sse&level=internal&after=${after}`, {
      headers: { Authorization: `Bearer ${readKey() ?? ""}` },
      cache: "no-store",
      signal,
    });
    if (response.status === 401) {
      signOut("This key is unknown, expired or revoked.");
      return "refused";
    }
    if (!response.ok || !response.body) {
      throw Failure.of(await response.json().catch(() => undefined), response.status);
    }
    follower.onConnection("live");
    let seq = after;
    let batch: Event[] = [];
    const parser = createParser({
      onEvent({ data }) {
        const event = JSON.parse(data) as Event;
        // Gapless by contract; anything else is a connection that cannot be trusted.
        if (event.seq > seq + 1) quiet.abort();
        if (event.seq !== seq + 1) return;
        seq = event.seq;
        batch.push(event);
      },
    });
    const text = new TextDecoder();
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return "ended";
      clearTimeout(silence);
      silence = setTimeout(() => quiet.abort(), SILENCE_MS);
      batch = [];
      parser.feed(text.decode(value, { stream: true }));
      if (batch.length > 0) deliver(batch);
    }
  } finally {
    clearTimeout(silence);
  }
}

/** Waits, but no longer than until the network or the reader is back. */
async function awake(ms: number, signal: AbortSignal): Promise<void> {
  const done = new AbortController();
  const end = () => done.abort();
  window.addEventListener("online", end, { signal: done.signal });
  document.addEventListener("visibilitychange", end, { signal: done.signal });
  signal.addEventListener("abort", end, { signal: done.signal });
  const ended = new Promise<void>((resolve) => done.signal.addEventListener("abort", () => resolve()));
  await Promise.race([pause(ms), ended]);
  done.abort();
}
