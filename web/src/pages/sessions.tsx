// All sessions, newest first, with their state as it is now.
import { useState } from "react";
import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { Link, useLocation, useSearchParams } from "wouter";
import { api, type Schemas, take } from "../api/client";
import { Age, Badge, Empty, Loading, More, Trouble } from "../parts/basics";
import { short, tokens, words } from "../parts/format";
import { useAgents } from "./agents";
import { CreateSession } from "./create-session";

type Session = Schemas["Session"];
type Status = Schemas["Status"];

const STATUSES: Status[] = ["queued", "running", "awaiting_input", "idle", "failed", "archived"];
/** How often the list is read anew while someone looks at it. */
const REFRESH_MS = 2_000;

interface Filters {
  status?: Status;
  agent?: string;
  key?: string;
}

function useSessions(filters: Filters) {
  return useInfiniteQuery({
    queryKey: ["sessions", filters],
    queryFn: ({ pageParam, signal }) =>
      take(api.GET("/v3/sessions", { params: { query: { ...filters, limit: 50, cursor: pageParam } }, signal })),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    refetchInterval: REFRESH_MS,
    placeholderData: keepPreviousData,
  });
}

export function SessionsPage() {
  const [search, setSearch] = useSearchParams();
  const [creating, setCreating] = useState(false);
  const filters: Filters = {
    status: STATUSES.find((status) => status === search.get("status")),
    agent: search.get("agent") || undefined,
    key: search.get("key") || undefined,
  };
  const query = useSessions(filters);
  const sessions = query.data?.pages.flatMap((page) => page.data) ?? [];
  const isFiltered = Object.values(filters).some(Boolean);
  const choose = (name: keyof Filters, value: string) =>
    setSearch(
      (search) => {
        if (value) search.set(name, value);
        else search.delete(name);
        return search;
      },
      { replace: true },
    );
  return (
    <>
      <div className="head">
        <h1>Sessions</h1>
        <button type="button" className="main" onClick={() => setCreating(true)}>
          New session
        </button>
      </div>
      <FilterBar filters={filters} choose={choose} />
      <Trouble error={query.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && sessions.length === 0 && <NoSessions isFiltered={isFiltered} />}
      {sessions.length > 0 && <Table sessions={sessions} />}
      <More query={query} />
      {creating && <CreateSession onClose={() => setCreating(false)} />}
    </>
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
          placeholder="exact key, then Enter"
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
        <p>Widen the filters above.</p>
      </Empty>
    );
  }
  return (
    <Empty title="No sessions yet">
      <p>
        A session is one piece of work for an agent: it runs in turns, can be steered while it runs, and its log stays.
      </p>
      <ol>
        <li>
          <Link href="/agents">Make an agent</Link>: a prompt, a model, tools. The model <code>scripted/demo</code> needs
          no provider and no key.
        </li>
        <li>Press “New session”, choose the agent, say what is to be done.</li>
        <li>Watch it work, answer what it asks, steer it.</li>
      </ol>
    </Empty>
  );
}

function Table({ sessions }: { sessions: Session[] }) {
  const [, go] = useLocation();
  return (
    <div className="table-wrap">
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
                {session.last_turn?.yield_reason && <Badge of={session.last_turn.yield_reason} />}
              </td>
              <td data-label="Agent">{session.agent_snapshot?.name ?? "none"}</td>
              <td data-label="Tokens" className="number">
                {short(tokens({ ...session.usage }))}
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
