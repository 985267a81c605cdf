// List of agents, and the form to create one.
import { useState } from "react";
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useLocation } from "wouter";
import { api, take } from "../api/client";
import { Age, Dialog, Empty, Loading, More, Trouble } from "../parts/basics";
import { AgentForm } from "./agent-form";

export function useAgents() {
  const query = useInfiniteQuery({
    queryKey: ["agents"],
    queryFn: ({ pageParam, signal }) =>
      take(api.GET("/v3/agents", { params: { query: { limit: 100, cursor: pageParam } }, signal })),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
  });
  return { query, list: query.data?.pages.flatMap((page) => page.data) ?? [] };
}

export function AgentsPage() {
  const { query, list } = useAgents();
  const [, go] = useLocation();
  const [creating, setCreating] = useState(false);
  return (
    <>
      <div className="head">
        <h1>Agents</h1>
        <button type="button" className="main" onClick={() => setCreating(true)}>
          New agent
        </button>
      </div>
      <Trouble error={query.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && list.length === 0 && (
        <Empty title="No agents yet">
          <p>
            An agent is what a session runs: a prompt that says who it is, a model that thinks, tools that act in a
            sandbox. Each change makes a new revision; a session keeps the one it began with.
          </p>
          <p>
            To try it without a provider, press “New agent” and choose the model <code>scripted/demo</code>.
          </p>
        </Empty>
      )}
      {list.length > 0 && (
        <div className="table-wrap" tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th scope="col">Agent</th>
                <th scope="col">Model</th>
                <th scope="col" className="number">
                  Revision
                </th>
                <th scope="col">Tools</th>
                <th scope="col">Changed</th>
              </tr>
            </thead>
            <tbody>
              {list.map((agent) => (
                <tr key={agent.id} className="goes" onClick={() => go(`/agents/${agent.id}`)}>
                  <td>
                    <Link href={`/agents/${agent.id}`} onClick={(event) => event.stopPropagation()}>
                      {agent.name}
                    </Link>
                  </td>
                  <td data-label="Model" className="mono">
                    {agent.model}
                  </td>
                  <td data-label="Revision" className="number">
                    {agent.revision}
                  </td>
                  <td data-label="Tools">{agent.tools?.join(", ") ?? "all"}</td>
                  <td data-label="Changed">
                    <Age ts={agent.updated_at} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <More query={query} />
      {creating && (
        <Dialog title="New agent" onClose={() => setCreating(false)}>
          <AgentForm
            onDone={(agent) => {
              setCreating(false);
              go(`/agents/${agent.id}`);
            }}
          />
        </Dialog>
      )}
    </>
  );
}
