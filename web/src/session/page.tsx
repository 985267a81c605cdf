// One session: its live timeline, files, details, events and deliveries.
import { useEffect } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { api, type Schemas, take } from "../api/client";
import { Badge, Confirmed, Loading, Trouble } from "../parts/basics";
import { words } from "../parts/format";
import { TimelineView } from "../timeline/view";
import { OpenActions } from "./actions";
import { Deliveries } from "./deliveries";
import { Details } from "./details";
import { RawEvents } from "./events";
import { Files } from "./files";
import { type Log, useLog } from "./log";
import { Network } from "./network";
import { Steer } from "./steer";

type Session = Schemas["Session"];

const TABS = [
  [undefined, "Timeline"],
  ["files", "Files"],
  ["details", "Details"],
  ["network", "Network"],
  ["events", "Events"],
  ["deliveries", "Deliveries"],
] as const;

/** The session, read again whenever its log reports a change. */
function useSession(id: string, log: Log) {
  const queries = useQueryClient();
  const query = useQuery({
    queryKey: ["session", id],
    queryFn: ({ signal }) => take(api.GET("/v3/sessions/{session_id}", { params: { path: { session_id: id } }, signal })),
    // Polled for values that are not in the log: the queue position and the phase.
    refetchInterval: ({ state }) => (state.data?.status === "archived" ? false : 5_000),
  });
  const changes = log.changes;
  useEffect(() => {
    if (changes > 0) queries.invalidateQueries({ queryKey: ["session", id] });
  }, [changes, id, queries]);
  return query;
}

export function SessionPage({ id, tab }: { id: string; tab?: string }) {
  const log = useLog(id);
  const query = useSession(id, log);
  const session = query.data;
  if (!session) return query.error ? <Trouble error={query.error} retry={() => query.refetch()} /> : <Loading />;
  return (
    <div className="session" data-tab={tab ?? "timeline"}>
      <Head session={session} log={log} />
      <nav className="tabs" aria-label="Session tabs">
        {TABS.map(([name, label]) => (
          <Link
            key={label}
            href={name ? `/sessions/${id}/${name}` : `/sessions/${id}`}
            aria-current={name === tab ? "page" : undefined}
          >
            {label}
          </Link>
        ))}
        <Connected log={log} />
      </nav>
      <Trouble error={log.failure} />
      {tab === undefined && (
        <div className="split">
          <div className="story">
            <TimelineView log={log} status={session.status} />
            <OpenActions session={session} />
            <Steer session={session} question={log.timeline.tally.question} />
          </div>
          <aside aria-label="Details">
            <Details session={session} log={log} />
          </aside>
        </div>
      )}
      {tab === "files" && <Files session={session} />}
      {tab === "details" && <Details session={session} log={log} />}
      {tab === "network" && <Network log={log} />}
      {tab === "events" && <RawEvents log={log} session={id} />}
      {tab === "deliveries" && <Deliveries session={session} />}
    </div>
  );
}

function Connected({ log }: { log: Log }) {
  const said = { connecting: "Connecting…", live: "Live", cut: "Reconnecting…" }[log.connection];
  return (
    <span className="connected" data-state={log.connection} role="status">
      {said}
    </span>
  );
}

function Head({ session, log }: { session: Session; log: Log }) {
  const queries = useQueryClient();
  const params = { path: { session_id: session.id } };
  const onSuccess = (changed: Session) => queries.setQueryData(["session", session.id], changed);
  const cancel = useMutation({
    mutationFn: () => take(api.POST("/v3/sessions/{session_id}/cancel", { params, body: {} })),
    onSuccess,
  });
  const archive = useMutation({
    mutationFn: () => take(api.POST("/v3/sessions/{session_id}/archive", { params, body: {} })),
    onSuccess,
  });
  const compact = useMutation({
    mutationFn: () => take(api.POST("/v3/sessions/{session_id}/compact", { params, body: {} })),
  });
  const last = session.last_turn;
  const retry = useMutation({
    mutationFn: (turn: string) =>
      take(api.POST("/v3/sessions/{session_id}/turns/{turn_id}/retry", { params: { path: { ...params.path, turn_id: turn } } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["session", session.id] }),
  });
  const isWaiting = session.last_turn?.state === "waiting";
  const runs = session.status === "running" || session.status === "queued" || isWaiting;
  const place = session.queue_position;
  return (
    <>
      <div className="head">
        <div>
          <h1>{session.title || "Untitled session"}</h1>
          <p className="under">
            <Badge of={session.status} />
            {session.phase && <span>{words(session.phase)}</span>}
            {session.sandbox_wait && (
              <span>
                position {session.sandbox_wait.queue_position}: {words(session.sandbox_wait.shortage)}
              </span>
            )}
            {session.next_attempt_at && <span>until {new Date(session.next_attempt_at).toLocaleTimeString()}</span>}
            {place != null && <span>{place === 1 ? "next in the queue" : `position ${place} in the queue`}</span>}
            {session.last_turn?.yield_reason && !runs && session.status !== "awaiting_input" && <Badge of={session.last_turn.yield_reason} />}
            {session.agent_id && <Link href={`/agents/${session.agent_id}`}>{session.agent_snapshot?.name}</Link>}
            <span className="quiet">{log.timeline.tally.turns === 1 ? "1 turn" : `${log.timeline.tally.turns} turns`}</span>
          </p>
        </div>
        <div className="actions">
          {runs && (
            <button type="button" disabled={cancel.isPending} onClick={() => cancel.mutate()}>
              Cancel the turn
            </button>
          )}
          {last?.error_code && session.status !== "archived" && (
            <button type="button" disabled={retry.isPending} onClick={() => retry.mutate(last.id)}>
              Retry the turn
            </button>
          )}
          {session.status === "idle" && session.agent_id && (session.usage.steps ?? 0) > 0 && (
            <button type="button" disabled={compact.isPending} onClick={() => compact.mutate()}>
              Summarize
            </button>
          )}
          {session.status !== "archived" && (
            <Confirmed
              label="Archive"
              sure="Confirm archive"
              disabled={archive.isPending}
              onConfirm={() => archive.mutate()}
            />
          )}
        </div>
      </div>
      <Trouble error={cancel.error ?? compact.error ?? retry.error ?? archive.error} />
    </>
  );
}
