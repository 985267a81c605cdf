// Waiting for events of a log, with the client's own stream.

const PATIENCE_MS = 30_000;

/**
 * Reads a session's events until `done(event)` returns true; returns all events.
 * Fails after `patienceMs`, with the types of the received events.
 */
export async function follow(session, done, { after = 0, level = "progress", patienceMs = PATIENCE_MS } = {}) {
  const seen = [];
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), patienceMs);
  try {
    for await (const event of session.events({ after, level, signal: abort.signal })) {
      seen.push(event);
      if (done(event)) return seen;
    }
  } finally {
    clearTimeout(timer);
    abort.abort();
  }
  const types = seen.map((event) => `${event.seq} ${event.type}`).join(", ");
  throw new Error(`timed out after ${patienceMs} ms on ${session.id}; received: ${types || "nothing"}`);
}

/** Waits for the end of the first turn after `seq`; returns its `turn.completed`. */
export async function turnEnded(session, seq = 0) {
  const events = await follow(session, (event) => event.type === "turn.completed", { after: seq });
  return events.at(-1);
}

/** Polls `read()` until `good` accepts its value. */
export async function eventually(what, read, good) {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const value = await read();
    if (good(value)) return value;
    if (Date.now() > end) throw new Error(`${what}: still ${JSON.stringify(value)} after ${PATIENCE_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
