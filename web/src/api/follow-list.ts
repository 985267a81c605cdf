// Session list as a stream: the current sessions, then every change.
import type { Schemas } from "./client";
import { type Connection, stream } from "./stream";

type Session = Schemas["Session"];

export type ListFrame =
  | { type: "session.listed"; session: Session }
  | { type: "session.unlisted"; id: string; reason: "deleted" | "filtered" }
  | { type: "list.current" };

interface Follower {
  onFrames(frames: ListFrame[]): void;
  onConnection(connection: Connection): void;
  signal: AbortSignal;
}

/** Follows until `signal` is aborted; throws a `Failure` that a retry cannot fix. */
export async function followList(filters: Record<string, string | undefined>, follower: Follower): Promise<void> {
  const query = new URLSearchParams({ stream: "sse" });
  for (const [name, value] of Object.entries(filters)) if (value) query.set(name, value);
  let lastId: string | undefined;
  await stream({
    request: () => ({ path: `/v3/sessions?${query}`, lastId }),
    onMessages(messages) {
      lastId = messages.findLast(({ id }) => id)?.id ?? lastId;
      follower.onFrames(messages.map(({ data }) => JSON.parse(data) as ListFrame));
      return true;
    },
    onConnection: follower.onConnection,
    signal: follower.signal,
  });
}
