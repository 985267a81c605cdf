// Session log as a stream: resumed after a disconnect without gaps or duplicates.
import type { Schemas } from "./client";
import { type Connection, stream } from "./stream";

export type { Connection } from "./stream";
/** Narrowed by `type`. A newer service may send other types. */
export type Event = Schemas["Event"];

interface Follower {
  after: number;
  onEvents(events: Event[]): void;
  onConnection(connection: Connection): void;
  signal: AbortSignal;
}

/** Follows until `signal` is aborted; throws a `Failure` that a retry cannot fix. */
export async function follow(session: string, follower: Follower): Promise<void> {
  let { after } = follower;
  await stream({
    request: () => ({ path: `/v3/sessions/${session}/events?stream=sse&level=internal&after=${after}` }),
    onMessages(messages) {
      const fresh: Event[] = [];
      let isGapless = true;
      for (const { data } of messages) {
        const event = JSON.parse(data) as Event;
        // The API promises no gaps, so a gap means that this connection is broken.
        if (event.seq > after + 1) isGapless = false;
        if (event.seq !== after + 1) continue;
        after = event.seq;
        fresh.push(event);
      }
      if (fresh.length > 0) follower.onEvents(fresh);
      return isGapless;
    },
    onConnection: follower.onConnection,
    signal: follower.signal,
  });
}
