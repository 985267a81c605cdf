// A log as a stream that resumes itself: no gap, no duplicate, whatever is cut.
import { createParser } from "eventsource-parser";
import { SojournError } from "./error.js";
import type { components } from "./schema.js";

type Schemas = components["schemas"];

/** An event of a session's log; the body depends on the type (docs/events.md). */
export type Event = Omit<Schemas["Event"], "body"> & { body: Record<string, any> };

export interface FollowOptions {
  /** Events beyond this `seq`; 0 when absent. */
  after?: number;
  /** `user`, `progress` or `internal`; `progress` when absent. */
  level?: Schemas["Level"];
  /** An exact type, or `prefix.*`. */
  type?: string;
  signal?: AbortSignal;
}

/** The service says something every 10 s; silence beyond this is a cut. */
const SILENCE_MS = 30_000;
const PAUSE_MS = { first: 250, longest: 5_000 };

interface Connection {
  url: string;
  key: string;
}

export async function* follow(connection: Connection, session: string, options: FollowOptions): AsyncGenerator<Event> {
  let after = options.after ?? 0;
  let pause = PAUSE_MS.first;
  while (!options.signal?.aborted) {
    try {
      for await (const event of read(connection, session, after, options)) {
        // A resumed stream begins beyond `after`; never say an event twice.
        if (event.seq <= after) continue;
        after = event.seq;
        pause = PAUSE_MS.first;
        yield event;
      }
    } catch (error) {
      if (options.signal?.aborted) return;
      const passes = !(error instanceof SojournError) || error.status >= 500 || error.status === 429;
      if (!passes) throw error;
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, PAUSE_MS.longest);
  }
}

/** One connection, from its answer to its end. */
async function* read(
  { url, key }: Connection,
  session: string,
  after: number,
  options: FollowOptions,
): AsyncGenerator<Event> {
  const quiet = new AbortController();
  const signal = options.signal ? AbortSignal.any([options.signal, quiet.signal]) : quiet.signal;
  const query = new URLSearchParams({ stream: "sse", after: String(after), level: options.level ?? "progress" });
  if (options.type) query.set("type", options.type);
  let silence = setTimeout(() => quiet.abort(), SILENCE_MS);
  try {
    const response = await fetch(`${url}/v3/sessions/${encodeURIComponent(session)}/events?${query}`, {
      headers: { Authorization: `Bearer ${key}`, Accept: "text/event-stream" },
      signal,
    });
    if (!response.ok || !response.body) {
      throw SojournError.of(await response.json().catch(() => undefined), response.status);
    }
    let batch: Event[] = [];
    const parser = createParser({ onEvent: ({ data }) => void batch.push(JSON.parse(data) as Event) });
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
    // A reader that stops in the middle must not leave the connection behind.
    quiet.abort();
  }
}
