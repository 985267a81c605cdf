// Streams that reconnect and resume by themselves, without gaps or duplicates.
import { createParser } from "eventsource-parser";
import { SojournError } from "./error.js";
import type { components } from "./schema.js";

type Schemas = components["schemas"];

/** An event of the log of a session, narrowed by `type` (docs/events.md). A newer service may send other types. */
export type Event = Schemas["Event"];

export interface FollowOptions {
  /** Start after this `seq`. Default: 0, the whole log. */
  after?: number;
  /** `user`, `progress` or `internal`. Default: `progress`. */
  level?: Schemas["Level"];
  /** An exact event type, or `prefix.*`. */
  type?: string;
  /** Ends the stream. */
  signal?: AbortSignal;
}

/** Output of a command; the last frame is its end. */
export type ExecFrame = Schemas["ExecFrame"];

/** The service sends a heartbeat every 10 s; a longer silence means that the connection is dead. */
const SILENCE_MS = 30_000;
/** Pause before a reconnect: doubled after each failure. */
const PAUSE_MS = { first: 250, longest: 5_000 };

interface Connection {
  url: string;
  key: string;
}

/** Follows the log of a session. */
export async function* follow(connection: Connection, session: string, options: FollowOptions): AsyncGenerator<Event> {
  let after = options.after ?? 0;
  const place = () => {
    const query = new URLSearchParams({ stream: "sse", after: String(after), level: options.level ?? "progress" });
    if (options.type) query.set("type", options.type);
    return `${at(session)}/events?${query}`;
  };
  for await (const { body } of frames(connection, place, options.signal)) {
    const event = body as unknown as Event;
    // A resumed stream starts after `after`; never yield an event twice.
    if (event.seq <= after) continue;
    after = event.seq;
    yield event;
  }
}

/** Follows the output of a command until its end. */
export async function* followExec(
  connection: Connection,
  session: string,
  exec: string,
  signal?: AbortSignal,
): AsyncGenerator<ExecFrame> {
  let cursor: string | undefined;
  const place = () => {
    const query = new URLSearchParams({ stream: "sse", ...(cursor === undefined ? {} : { cursor }) });
    return `${at(session)}/exec/${encodeURIComponent(exec)}?${query}`;
  };
  for await (const { id, body } of frames(connection, place, signal)) {
    cursor = id ?? cursor;
    const frame = body as unknown as ExecFrame;
    yield frame;
    if (frame.type === "exec.ended") return;
  }
}

const at = (session: string) => `/v3/sessions/${encodeURIComponent(session)}`;

interface Frame {
  id?: string;
  body: Record<string, unknown>;
}

/** Reads a stream and reconnects after each cut; `place` returns the path to resume at. */
async function* frames(connection: Connection, place: () => string, signal?: AbortSignal): AsyncGenerator<Frame> {
  let pause = PAUSE_MS.first;
  while (!signal?.aborted) {
    try {
      for await (const frame of read(connection, place(), signal)) {
        pause = PAUSE_MS.first;
        yield frame;
      }
    } catch (error) {
      if (signal?.aborted) return;
      const passes = !(error instanceof SojournError) || error.status >= 500 || error.status === 429;
      if (!passes) throw error;
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, PAUSE_MS.longest);
  }
}

/** Reads one connection until it ends or is silent for too long. */
async function* read({ url, key }: Connection, place: string, until?: AbortSignal): AsyncGenerator<Frame> {
  const quiet = new AbortController();
  const signal = until ? AbortSignal.any([until, quiet.signal]) : quiet.signal;
  let silence = setTimeout(() => quiet.abort(), SILENCE_MS);
  try {
    const response = await fetch(url + place, {
      headers: { Authorization: `Bearer ${key}`, Accept: "text/event-stream" },
      signal,
    });
    if (!response.ok || !response.body) {
      throw SojournError.of(await response.json().catch(() => undefined), response.status);
    }
    let batch: Frame[] = [];
    const parser = createParser({ onEvent: ({ id, data }) => void batch.push({ id, body: JSON.parse(data) }) });
    const text = new TextDecoder();
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(() => quiet.abort(), SILENCE_MS);
      batch = [];
      parser.feed(text.decode(value, { stream: true }));
      yield* batch;
    }
  } finally {
    clearTimeout(silence);
    // Closes the connection if the reader stops early.
    quiet.abort();
  }
}
