// Log of one session in memory. Followed while a page shows it. Views are notified in batches, so that a
// replay of ten thousand events draws only a few times.
import { useEffect, useState, useSyncExternalStore } from "react";
import { type Connection, type Event, follow } from "../api/follow";
import { Failure } from "../api/failure";
import { Timeline } from "../timeline/rows";

/** Longest delay before an event is shown, in milliseconds. */
const BATCH_MS = 40;

export class Log {
  readonly events: Event[] = [];
  readonly timeline = new Timeline();
  connection: Connection = "connecting";
  failure?: Failure;
  /** Number of events so far that changed the session itself. */
  changes = 0;
  /** Changes with every batch. */
  version = 0;

  private readonly listeners = new Set<() => void>();
  private timer?: ReturnType<typeof setTimeout>;

  subscribe = (listener: () => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };
  current = () => this.version;

  run(session: string, signal: AbortSignal): void {
    const onEvents = (events: Event[]) => {
      for (const event of events) {
        this.events.push(slim(event));
        this.timeline.add(event);
        if (/^(session|turn|user)\.|^agent\.message$|^limit\./.test(event.type)) this.changes += 1;
      }
      this.tell();
    };
    const onConnection = (connection: Connection) => {
      this.connection = connection;
      this.tell();
    };
    follow(session, { after: 0, onEvents, onConnection, signal }).catch((error: unknown) => {
      this.failure = error instanceof Failure ? error : Failure.unreachable();
      this.tell();
    });
  }

  private tell(): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      this.version += 1;
      this.listeners.forEach((listener) => listener());
    }, BATCH_MS);
  }
}

/**
 * Drops the raw blocks of a step, which are most of a log's bytes. The event is read again where they are
 * shown.
 */
function slim(event: Event): Event {
  if (event.type !== "step.completed") return event;
  return { ...event, body: { ...event.body, raw: [], blocks: [] } };
}

/** Log of a session, followed while the calling component is mounted. */
export function useLog(session: string): Log {
  const [log, setLog] = useState(() => new Log());
  useEffect(() => {
    const end = new AbortController();
    const fresh = new Log();
    setLog(fresh);
    fresh.run(session, end.signal);
    return () => end.abort();
  }, [session]);
  useSyncExternalStore(log.subscribe, log.current);
  return log;
}
