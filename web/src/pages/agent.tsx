// One agent: its configuration, its revisions, and the difference between two of them.
import { useState } from "react";
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { diffLines } from "diff";
import { Link, useLocation } from "wouter";
import { api, type Schemas, take } from "../api/client";
import { Age, Confirmed, Copy, Dialog, Loading, More, Trouble } from "../parts/basics";
import { LIMITS, shown } from "../parts/limits";
import { listField } from "../parts/json-list";
import { skillNames } from "../parts/skills";
import { fieldsOf, named } from "../parts/tools";
import { AgentForm } from "./agent-form";
import { CreateSession } from "./create-session";
import { InvokeTokens } from "./invoke-tokens";
import { Triggers } from "./triggers";
import { Schedules } from "./schedules";

type Agent = Schemas["Agent"];
type Revision = Schemas["Revision"];

const TABS = [
  [undefined, "Agent"],
  ["schedules", "Schedules"],
  ["triggers", "Triggers"],
  ["invoke", "Invoke URL"],
] as const;

export function AgentPage({ id, tab }: { id: string; tab?: string }) {
  const [, go] = useLocation();
  const queries = useQueryClient();
  const [open, setOpen] = useState<"edit" | "run">();
  const path = { agent_id: id };
  const query = useQuery({
    queryKey: ["agent", id],
    queryFn: ({ signal }) => take(api.GET("/v3/agents/{agent_id}", { params: { path }, signal })),
  });
  const remove = useMutation({
    mutationFn: () => take(api.DELETE("/v3/agents/{agent_id}", { params: { path } })),
    onSuccess: () => {
      queries.invalidateQueries({ queryKey: ["agents"] });
      go("/agents");
    },
  });
  const agent = query.data;
  if (!agent) return query.error ? <Trouble error={query.error} retry={() => query.refetch()} /> : <Loading />;
  return (
    <>
      <div className="head">
        <h1>{agent.name}</h1>
        <div className="actions">
          <button type="button" className="main" onClick={() => setOpen("run")}>
            New session
          </button>
          <button type="button" onClick={() => setOpen("edit")}>
            Edit
          </button>
          <Confirmed label="Delete" sure="Confirm delete" disabled={remove.isPending} onConfirm={() => remove.mutate()} />
        </div>
      </div>
      <Trouble error={remove.error} />
      <nav className="tabs" aria-label="Agent tabs">
        {TABS.map(([name, label]) => (
          <Link
            key={label}
            href={name ? `/agents/${id}/${name}` : `/agents/${id}`}
            aria-current={name === tab ? "page" : undefined}
          >
            {label}
          </Link>
        ))}
      </nav>
      {tab === undefined && <About agent={agent} />}
      {tab === "schedules" && <Schedules agent={id} />}
      {tab === "triggers" && <Triggers agent={id} />}
      {tab === "invoke" && <InvokeTokens agent={id} />}
      {open === "edit" && (
        <Dialog title={`Edit ${agent.name}`} onClose={() => setOpen(undefined)}>
          <AgentForm agent={agent} onDone={() => setOpen(undefined)} />
        </Dialog>
      )}
      {open === "run" && <CreateSession agent={agent.id} onClose={() => setOpen(undefined)} />}
    </>
  );
}

function About({ agent }: { agent: Agent }) {
  return (
    <>
      <dl className="facts">
        <dt>Id</dt>
        <dd className="mono">
          {agent.id} <Copy text={agent.id} />
        </dd>
        <dt>Model</dt>
        <dd className="mono">{[agent.model, ...(agent.fallback_models ?? []).map(({ model }) => model)].join(", then ")}</dd>
        <dt>Revision</dt>
        <dd>{agent.revision}</dd>
        <dt>Tools</dt>
        <dd>{named(agent.tools)}</dd>
        {agent.mcp_servers && agent.mcp_servers.length > 0 && (
          <>
            <dt>MCP servers</dt>
            <dd>{agent.mcp_servers.map(({ name, url, command }) => `${name} (${url ?? command?.join(" ")})`).join(", ")}</dd>
          </>
        )}
        {agent.skills && agent.skills.length > 0 && (
          <>
            <dt>Skills</dt>
            <dd className="mono">{skillNames(agent.skills).join(", ")}</dd>
          </>
        )}
        <dt>Limits</dt>
        <dd>
          {LIMITS.filter(([name]) => agent.limits[name] != null)
            .map(([name, label]) => `${label.toLowerCase()} ${shown(name, agent.limits[name] ?? 0)}`)
            .join(", ") || "none"}
        </dd>
        <dt>Sessions</dt>
        <dd>
          <Link href={`/?agent=${agent.id}`}>Sessions of this agent</Link>
        </dd>
      </dl>
      <h2>Prompt</h2>
      <pre className="output" tabIndex={0} role="region" aria-label="Prompt">
        {agent.prompt}
      </pre>
      <Revisions agent={agent.id} />
    </>
  );
}

function Revisions({ agent }: { agent: string }) {
  const queries = useQueryClient();
  const [chosen, setChosen] = useState<[string?, string?]>([]);
  const query = useInfiniteQuery({
    queryKey: ["agent", agent, "revisions"],
    queryFn: ({ pageParam, signal }) =>
      take(
        api.GET("/v3/agents/{agent_id}/revisions", {
          params: { path: { agent_id: agent }, query: { limit: 50, cursor: pageParam } },
          signal,
        }),
      ),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
  });
  const activate = useMutation({
    mutationFn: (revision: string) =>
      take(
        api.POST("/v3/agents/{agent_id}/revisions/{revision}/activate", {
          params: { path: { agent_id: agent, revision } },
        }),
      ),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["agent", agent] }),
  });
  const list = query.data?.pages.flatMap((page) => page.data) ?? [];
  // The newest two, until the user chooses.
  const after = list.find(({ id }) => id === chosen[1]) ?? list[0];
  const before = list.find(({ id }) => id === chosen[0]) ?? list[1];
  return (
    <>
      <h2>Revisions</h2>
      <Trouble error={query.error ?? activate.error} />
      <ul className="cards">
        {list.map((revision) => (
          <li key={revision.id}>
            <strong>Revision {revision.number}</strong>
            {revision.active && <span className="badge" data-tone="good">active</span>}
            <span className="mono quiet">{revision.model}</span>
            <span className="quiet grow">
              <Age ts={revision.created_at} />
            </span>
            {!revision.active && (
              <button type="button" disabled={activate.isPending} onClick={() => activate.mutate(String(revision.number))}>
                Activate
              </button>
            )}
          </li>
        ))}
      </ul>
      <More query={query} />
      {before && after && (
        <>
          <h2>Compare</h2>
          <div className="filters">
            <Choice label="Before" list={list} value={before.id} onChange={(id) => setChosen([id, after.id])} />
            <Choice label="After" list={list} value={after.id} onChange={(id) => setChosen([before.id, id])} />
          </div>
          <Difference before={before} after={after} />
        </>
      )}
    </>
  );
}

function Choice(props: { label: string; list: Revision[]; value: string; onChange: (id: string) => void }) {
  return (
    <label>
      {props.label}
      <select value={props.value} onChange={(event) => props.onChange(event.target.value)}>
        {props.list.map((revision) => (
          <option key={revision.id} value={revision.id}>
            Revision {revision.number}
          </option>
        ))}
      </select>
    </label>
  );
}

/** A revision as text, for the comparison. */
function written(revision: Revision): string {
  const { custom } = fieldsOf(revision.tools);
  const options = JSON.stringify(revision.model_options);
  const head = `model: ${revision.model}\noptions: ${options}\ntools: ${named(revision.tools)}\n`;
  const skills = skillNames(revision.skills).map((name) => `skill: ${name}\n`).join("");
  const rules = listField(revision.permissions);
  const loops = revision.doom_loop ? `doom_loop: ${JSON.stringify(revision.doom_loop)}\n` : "";
  const output = revision.output_schema ? `output_schema: ${JSON.stringify(revision.output_schema, null, 2)}\n` : "";
  const compaction = revision.compaction ? `compaction: ${JSON.stringify(revision.compaction)}\n` : "";
  const asks = revision.ask ? `ask: ${JSON.stringify(revision.ask)}\n` : "";
  return `${head}${custom && `${custom}\n`}${skills}${rules && `permissions: ${rules}\n`}${asks}${loops}${compaction}${output}\n${revision.prompt}\n`;
}

function Difference({ before, after }: { before: Revision; after: Revision }) {
  const parts = diffLines(written(before), written(after));
  return (
    <pre className="output" tabIndex={0} role="region" aria-label="Difference between the revisions">
      {parts.flatMap((part, at) =>
        part.value
          .replace(/\n$/, "")
          .split("\n")
          .map((line, row) => (
            <span key={`${at}-${row}`} data-diff={part.added ? "add" : part.removed ? "cut" : undefined}>
              {`${part.added ? "+" : part.removed ? "-" : " "} ${line}\n`}
            </span>
          )),
      )}
    </pre>
  );
}
