// List of agents, and the form to create one.
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { api, take } from "../api/client";
import { Age, Dialog, Empty } from "../parts/basics";
import { ListPage } from "../parts/list-page";
import { useList } from "../parts/lists";
import { named } from "../parts/tools";
import { AgentForm } from "./agent-form";

export function useAgents() {
  return useList(["agents"], (cursor, signal) =>
    take(api.GET("/v3/agents", { params: { query: { limit: 100, cursor } }, signal })),
  );
}

export function AgentsPage() {
  const { query, list } = useAgents();
  const [, go] = useLocation();
  const [creating, setCreating] = useState(false);
  return (
    <>
      <ListPage
        title="Agents"
        add="New agent"
        onAdd={() => setCreating(true)}
        of={{ query, list }}
        empty={
          <Empty title="No agents yet">
            <p>
              An agent is what a session runs: a prompt that says who it is, a model that thinks, tools that act in a
              sandbox. Each change makes a new revision; a session keeps the one it began with.
            </p>
            <p>
              To try it without a provider, press “New agent” and choose the model <code>scripted/demo</code>.
            </p>
          </Empty>
        }
      >
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
                    <td data-label="Tools">{named(agent.tools)}</td>
                    <td data-label="Changed">
                      <Age ts={agent.updated_at} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </ListPage>
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
