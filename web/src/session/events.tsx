// The raw event log of a session.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, take } from "../api/client";
import type { Event } from "../api/follow";
import { Empty, Loading, Trouble } from "../parts/basics";
import { clock } from "../parts/format";
import { Json } from "../parts/text";
import { VirtualList } from "../parts/virtual";
import type { Log } from "./log";

export function RawEvents({ log, session }: { log: Log; session: string }) {
  const [kind, setKind] = useState("");
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const kinds = [...new Set(log.events.map((event) => event.type))].sort();
  const shown = kind ? log.events.filter((event) => event.type === kind) : log.events;
  const toggle = (id: string) => {
    const next = new Set(open);
    if (!next.delete(id)) next.add(id);
    setOpen(next);
  };
  return (
    <div className="raw">
      <div className="filters">
        <label>
          Type
          <select value={kind} onChange={(event) => setKind(event.target.value)}>
            <option value="">any</option>
            {kinds.map((kind) => (
              <option key={kind}>{kind}</option>
            ))}
          </select>
        </label>
        <span className="quiet">
          {shown.length.toLocaleString("en")} of {log.events.length.toLocaleString("en")} events
        </span>
      </div>
      {log.events.length === 0 && <Empty title="No events yet" />}
      <VirtualList
        label="Events"
        rows={shown}
        keyOf={(event) => event.id}
        estimate={() => 34}
        follows={false}
        version={log.version}
        render={(event) => (
          <div className="raw-row">
            <button type="button" className="plain" aria-expanded={open.has(event.id)} onClick={() => toggle(event.id)}>
              <span className="number">{event.seq}</span>
              <span className="mono">{event.type}</span>
              <span className="quiet">{event.level}</span>
              <time className="quiet" dateTime={event.ts}>
                {clock(event.ts)}
              </time>
            </button>
            {open.has(event.id) && <Whole event={event} session={session} />}
          </div>
        )}
      />
    </div>
  );
}

/** An event with its whole body: the blocks of a step are not kept in memory. */
function Whole({ event, session }: { event: Event; session: string }) {
  const query = useQuery({
    queryKey: ["event", event.id],
    queryFn: ({ signal }) =>
      take(
        api.GET("/v3/sessions/{session_id}/events/{event_id}", {
          params: { path: { session_id: session, event_id: event.id } },
          signal,
        }),
      ),
    enabled: event.type === "step.completed",
    staleTime: Infinity,
  });
  if (event.type !== "step.completed") return <Json value={event} label={`Event ${event.seq}`} />;
  if (query.error) return <Trouble error={query.error} retry={() => query.refetch()} />;
  return query.data ? <Json value={query.data} label={`Event ${event.seq}`} /> : <Loading />;
}
