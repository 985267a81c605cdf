// Server-sent events read by fetch, so that the key travels in a header; one connection
// after the other, each from where the last one was cut.
import { createParser } from "eventsource-parser";
import { pause } from "./client";
import { Failure } from "./failure";
import { readKey, signOut } from "./key";

export type Connection = "connecting" | "live" | "cut";

/** The service says something every 10 s; silence for longer than this is a cut. */
const SILENCE_MS = 25_000;
const PAUSE_MS = { first: 300, longest: 5_000 };

export interface Message {
  id?: string;
  data: string;
}

export interface Reader {
  /** Where to read on, and the id of what was seen last. */
  request(): { path: string; lastId?: string };
  /** What came together; false when the connection cannot be trusted. */
  onMessages(messages: Message[]): boolean;
  onConnection(connection: Connection): void;
  signal: AbortSignal;
}

/** Reads until the signal; throws a `Failure` when the service refuses for good. */
export async function stream(reader: Reader): Promise<void> {
  let wait = PAUSE_MS.first;
  while (!reader.signal.aborted) {
    try {
      const ended = await connection(reader, () => (wait = PAUSE_MS.first));
      if (ended === "refused") return;
    } catch (error) {
      if (reader.signal.aborted) return;
      if (error instanceof Failure && !["unavailable", "rate_limited", "internal"].includes(error.type)) throw error;
    }
    reader.onConnection("cut");
    await awake(wait, reader.signal);
    wait = Math.min(wait * 2, PAUSE_MS.longest);
  }
}

/** One connection, from its answer to its end. */
async function connection(reader: Reader, progressed: () => void): Promise<"refused" | "ended"> {
  const quiet = new AbortController();
  const signal = AbortSignal.any([reader.signal, quiet.signal]);
  let silence = setTimeout(() => quiet.abort(), SILENCE_MS);
  try {
    const { path, lastId } = reader.request();
    const headers: Record<string, string> = { Authorization: `Bearer ${readKey() ?? ""}` };
    if (lastId !== undefined) headers["Last-Event-ID"] = lastId;
    const response = await fetch(path, { headers, cache: "no-store", signal });
    if (response.status === 401) {
      signOut("This key is unknown, expired or revoked.");
      return "refused";
    }
    if (!response.ok || !response.body) {
      throw Failure.of(await response.json().catch(() => undefined), response.status);
    }
    reader.onConnection("live");
    let batch: Message[] = [];
    const parser = createParser({ onEvent: ({ id, data }) => void batch.push({ id, data }) });
    const text = new TextDecoder();
    const body = response.body.getReader();
    for (;;) {
      const { done, value } = await body.read();
      if (done) return "ended";
      clearTimeout(silence);
      silence = setTimeout(() => quiet.abort(), SILENCE_MS);
      batch = [];
      parser.feed(text.decode(value, { stream: true }));
      if (batch.length === 0) continue;
      progressed();
      if (!reader.onMessages(batch)) quiet.abort();
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
