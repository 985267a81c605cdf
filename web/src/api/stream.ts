// Server-sent events read with fetch, so that the key travels in a header. Reconnects and resumes after a
// disconnect.
import { createParser } from "eventsource-parser";
import { pause } from "./client";
import { Failure } from "./failure";
import { KEY_REFUSED, readKey, signOut } from "./key";

export type Connection = "connecting" | "live" | "cut";

/** The service sends something every 10 s; a longer silence counts as a disconnect. */
const SILENCE_MS = 25_000;
const PAUSE_MS = { first: 300, longest: 5_000 };

export interface Message {
  id?: string;
  data: string;
}

export interface Reader {
  /** Where to resume: the path, and the id of the last message. */
  request(): { path: string; lastId?: string };
  /** Messages that arrived together; returns false when the connection is broken. */
  onMessages(messages: Message[]): boolean;
  onConnection(connection: Connection): void;
  signal: AbortSignal;
}

/** Reads until `signal` is aborted; throws a `Failure` that a retry cannot fix. */
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

/** One connection, from its response to its end. */
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
      signOut(KEY_REFUSED);
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

/** Waits `ms`, or until the network is back, the tab is visible again, or `signal` is aborted. */
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
