// List of sessions, newest first, updated live.
import { useEffect, useState } from "react";
import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { Link, useLocation } from "wouter";
import { api, type Schemas, take } from "../api/client";
import { followList, type ListFrame } from "../api/follow-list";
import type { Connection } from "../api/stream";
import { Age, Badge, Empty, Loading, More, Trouble } from "../parts/basics";
import { useFilters } from "../parts/filters";
import { dollars, short, tokens, words } from "../parts/format";
import { useAgents } from "./agents";
import { CreateSession } from "./create-session";

type Session = Schemas["Session"];
type Status = Schemas["Status"];

const STATUSES: Status[] = ["queued", "running", "awaiting_input", "idle", "failed", "archived"];
interface Page {
  data: Session[];
  next_cursor?: string | null;
}

interface Filters {
  status?: Status;
  agent?: string;
  key?: string;
}

function useSessions(filters: Filters) {
  return useInfiniteQuery({
    queryKey: ["sessions", filters],
    queryFn: ({ pageParam, signal }) =>
      // The cast is needed because the same path can also return a stream.
      take(api.GET("/v3/sessions", { params: { query: { ...filters, limit: 50, cursor: pageParam } }, signal })) as Promise<Page>,
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
  });
}

/** Sessions by id as the stream reported them; null for one that is no longer listed. */
type Said = Map<string, Session | null>;

/** Follows the list with these filters. */
function useLiveSessions(filters: Filters): { said: Said; connection: Connection; error: unknown } {
  const [live, setLive] = useState({ wanted: "", said: new Map() as Said });
  const [connection, setConnection] = useState<Connection>("connecting");
  const [error, setError] = useState<unknown>();
  const wanted = JSON.stringify(filters);
  useEffect(() => {
    const ended = new AbortController();
    setError(undefined);
    const onFrames = (frames: ListFrame[]) =>
      setLive((before) => {
        const said: Said = new Map(before.wanted === wanted ? before.said : []);
        for (const frame of frames) {
          if (frame.type === "session.listed") said.set(frame.session.id, frame.session);
          if (frame.type === "session.unlisted") said.set(frame.id, null);
        }
        return { wanted, said };
      });
    followList(JSON.parse(wanted), { onFrames, onConnection: setConnection, signal: ended.signal }).catch(setError);
    return () => ended.abort();
  }, [wanted]);
  return { said: live.wanted === wanted ? live.said : new Map(), connection, error };
}

/** The loaded pages with the stream's changes applied. Ids grow with time and give the order. */
function current(pages: Page[], said: Said): Session[] {
  const sessions = new Map(pages.flatMap((page) => page.data).map((session) => [session.id, session]));
  const last = pages.at(-1);
  const oldest = last?.next_cursor ? last.data.at(-1)?.id : undefined;
  for (const [id, session] of said) {
    if (session === null) sessions.delete(id);
    // An older session belongs to a page that is not loaded.
    else if (oldest === undefined || id >= oldest) sessions.set(id, session);
  }
  return [...sessions.values()].sort((one, other) => (one.id < other.id ? 1 : -1));
}

export function SessionsPage() {
  const [chosen, choose] = useFilters<keyof Filters>();
  const [creating, setCreating] = useState(false);
  const filters: Filters = {
    status: STATUSES.find((status) => status === chosen("status")),
    agent: chosen("agent"),
    key: chosen("key"),
  };
  const query = useSessions(filters);
  const live = useLiveSessions(filters);
  const sessions = current(query.data?.pages ?? [], live.said);
  const isFiltered = Object.values(filters).some(Boolean);
  return (
    <>
      <div className="head">
        <div className="under">
          <h1>Sessions</h1>
          <LiveMark connection={live.connection} />
        </div>
        <button type="button" className="main" onClick={() => setCreating(true)}>
          New session
        </button>
      </div>
      <FilterBar filters={filters} choose={choose} />
      <Trouble error={query.error ?? live.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && sessions.length === 0 && <NoSessions isFiltered={isFiltered} />}
      {sessions.length > 0 && <Table sessions={sessions} />}
      <More query={query} />
      {creating && <CreateSession onClose={() => setCreating(false)} />}
    </>
  );
}

function LiveMark({ connection }: { connection: Connection }) {
  return (
    <small className="badge" role="status" data-tone={connection === "live" ? "good" : "warn"}>
      <i aria-hidden />
      {{ connecting: "Connecting…", live: "Live", cut: "Reconnecting…" }[connection]}
    </small>
  );
}

function FilterBar({ filters, choose }: { filters: Filters; choose: (name: keyof Filters, value: string) => void }) {
  const agents = useAgents();
  const [key, setKey] = useState(filters.key ?? "");
  return (
    <form
      className="filters"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        choose("key", key.trim());
      }}
    >
      <label>
        Status
        <select value={filters.status ?? ""} onChange={(event) => choose("status", event.target.value)}>
          <option value="">any</option>
          {STATUSES.map((status) => (
            <option key={status} value={status}>
              {words(status)}
            </option>
          ))}
        </select>
      </label>
      <label>
        Agent
        <select value={filters.agent ?? ""} onChange={(event) => choose("agent", event.target.value)}>
          <option value="">any</option>
          {agents.list.map((agent) => (
            <option key={agent.id} value={agent.id}>
              {agent.name}
            </option>
          ))}
        </select>
      </label>
      <label>
        Key
        <input
          value={key}
          placeholder="exact key"
          onChange={(event) => setKey(event.target.value)}
          onBlur={() => choose("key", key.trim())}
        />
      </label>
    </form>
  );
}

function NoSessions({ isFiltered }: { isFiltered: boolean }) {
  if (isFiltered) {
    return (
      <Empty title="No session matches">
        <p>Change or clear the filters above.</p>
      </Empty>
    );
  }
  return (
    <Empty title="No sessions yet">
      <p>
        A session is one task of an agent. It runs in turns, can be steered while it runs, and has a durable log.
      </p>
      <ol>
        <li>
          <Link href="/agents">Create an agent</Link>: a prompt, a model, tools. The model <code>scripted/demo</code> needs
          no provider key.
        </li>
        <li>Press “New session”, select the agent, enter the task.</li>
        <li>Follow its work, answer its questions, steer it.</li>
      </ol>
    </Empty>
  );
}

/** Whether the end of the last turn says more than the status. */
const isSettled = ({ status }: Session) => status === "idle" || status === "failed" || status === "archived";

function Table({ sessions }: { sessions: Session[] }) {
  const [, go] = useLocation();
  return (
    <div className="table-wrap" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Session</th>
            <th scope="col">Status</th>
            <th scope="col">Last turn</th>
            <th scope="col">Agent</th>
            <th scope="col" className="number">
              Tokens
            </th>
            <th scope="col" className="number">
              Cost
            </th>
            <th scope="col">Changed</th>
          </tr>
        </thead>
        <tbody>
          {sessions.map((session) => (
            <tr key={session.id} className="goes" onClick={() => go(`/sessions/${session.id}`)}>
              <td>
                <Link href={`/sessions/${session.id}`} onClick={(event) => event.stopPropagation()}>
                  {session.title || <span className="mono">{session.id}</span>}
                </Link>
              </td>
              <td data-label="Status">
                <Badge of={session.status} />
                {session.phase && <small className="quiet"> {words(session.phase)}</small>}
              </td>
              <td data-label="Last turn">
                {isSettled(session) && session.last_turn?.yield_reason && <Badge of={session.last_turn.yield_reason} />}
              </td>
              <td data-label="Agent">{session.agent_snapshot?.name ?? "none"}</td>
              <td data-label="Tokens" className="number">
                {short(tokens(session.usage))}
              </td>
              <td data-label="Cost" className="number">
                {session.usage.cost?.total_micros == null ? "unknown" : dollars(session.usage.cost.total_micros)}
              </td>
              <td data-label="Changed">
                <Age ts={session.updated_at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
