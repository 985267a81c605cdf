// Details of a session: result, limits, usage by turn, sandbox.
import { useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Age, Copy, Dialog, Trouble, useNow } from "../parts/basics";
import { Form, TextField } from "../parts/form";
import { count, dollars, short } from "../parts/format";
import { formOf, LimitFields, LIMITS, limitsOf, shown } from "../parts/limits";
import { Json, Prose } from "../parts/text";
import { named } from "../parts/tools";
import type { Tally } from "../timeline/rows";
import { Permissions } from "./permissions";
import { RelatedSessions } from "./related-sessions";
import type { Log } from "./log";
import { UsageChart } from "./usage";

type Session = Schemas["Session"];

export function Details({ session, log }: { session: Session; log: Log }) {
  const [editing, setEditing] = useState(false);
  const { tally } = log.timeline;
  return (
    <div className="details">
      <Result session={session} changes={log.changes} />
      <section>
        <h2>Limits</h2>
        <Bars session={session} tally={tally} />
        {session.status !== "archived" && (
          <button type="button" onClick={() => setEditing(true)}>
            Change title or limits
          </button>
        )}
      </section>
      <section>
        <h2>Usage</h2>
        <Totals usage={session.usage} />
        <UsageChart turns={tally.usage} />
      </section>
      <Permissions session={session} changes={log.changes} />
      <RelatedSessions session={session} />
      <section>
        <h2>Sandbox</h2>
        <SandboxState session={session} />
      </section>
      <section>
        <h2>Session</h2>
        <Facts session={session} />
      </section>
      {session.agent_id && (
        <section>
          <h2>Agent</h2>
          <PinnedAgent session={session} />
        </section>
      )}
      {editing && <Edit session={session} onClose={() => setEditing(false)} />}
    </div>
  );
}

function Result({ session, changes }: { session: Session; changes: number }) {
  const query = useQuery({
    queryKey: ["session", session.id, "result", changes],
    queryFn: ({ signal }) =>
      take(api.GET("/v3/sessions/{session_id}/result", { params: { path: { session_id: session.id } }, signal })),
    placeholderData: (before) => before,
  });
  const turn = query.data?.last_turn;
  const text = (query.data?.result?.body as { text?: string } | undefined)?.text;
  return (
    <section>
      <h2>Result</h2>
      <Trouble error={query.error} />
      {turn?.error && (
        <div className="trouble">
          <p>{turn.error.message}</p>
          <p className="quiet mono">{turn.error.code}</p>
        </div>
      )}
      {text ? (
        <div className="result">
          <Prose text={text} />
          <Copy text={text} label="Copy the result" />
        </div>
      ) : (
        <p className="quiet">{turn?.completed_at ? "The last turn ended without a result." : "No turn has ended yet."}</p>
      )}
    </section>
  );
}

/** Usage of each limit. The service defines what a limit counts. */
function Bars({ session, tally }: { session: Session; tally: Tally }) {
  const now = useNow();
  const seconds = tally.running_since ? Math.max(0, (now - Date.parse(tally.running_since)) / 1_000) : 0;
  const before = tally.running_since ? tally.seconds_before : 0;
  const used = { ...session.budget_consumed, steps: tally.steps, turn_seconds: Math.round(before + seconds) };
  const set = LIMITS.filter(([name]) => session.limits[name] != null);
  if (set.length === 0) return <p className="quiet">No limits are set. A turn ends after at most 200 steps.</p>;
  return (
    <ul className="bars">
      {set.map(([name, label, what]) => {
        const limit = session.limits[name] ?? 0;
        const part = limit === 0 ? 1 : used[name] / limit;
        return (
          <li key={name} data-tone={part >= 1 ? "bad" : part >= 0.8 ? "warn" : undefined}>
            <span title={what}>{label}</span>
            <span className="number">
              {shown(name, used[name])} of {shown(name, limit)}
            </span>
            <meter aria-label={`${label} used`} min={0} max={1} value={Math.min(1, part)} />
          </li>
        );
      })}
    </ul>
  );
}

function Totals({ usage }: { usage: Schemas["Usage"] }) {
  const { cost } = usage;
  const kinds = [
    ["Input", usage.input_tokens],
    ["Cache read", usage.cache_read_tokens],
    ["Cache write", usage.cache_write_tokens],
    ["Output", usage.output_tokens],
    ["Steps", usage.steps],
    ["Tool calls", usage.tool_calls],
  ] as const;
  return (
    <>
      <p className="sum">
        {cost?.total_micros == null ? "price unknown" : dollars(cost.total_micros)}
        {cost && <span className="quiet small">{costs(cost)}</span>}
      </p>
      <dl className="totals">
        {kinds.map(([label, value]) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd title={count(value ?? 0)}>{short(value ?? 0)}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}

/** Parts of a cost that are not zero. */
function costs(cost: Schemas["Cost"]): string {
  const parts = [
    ["model", cost.model_micros],
    ["sandbox", (cost.sandbox_cpu_micros ?? 0) + (cost.sandbox_memory_micros ?? 0)],
    ["fee", cost.fee_micros],
  ] as const;
  return parts
    .filter(([, micros]) => (micros ?? 0) > 0)
    .map(([name, micros]) => `${name} ${dollars(micros ?? 0)}`)
    .join(", ");
}

const STATES: Record<Schemas["SandboxState"], [string, string]> = {
  starting: ["wait", "Starting."],
  running: ["live", "Commands can run in it."],
  frozen: ["calm", "Idle. Its processes are stopped and resume on the next use."],
  stopping: ["wait", "Hibernating: its files are being saved to a checkpoint."],
  hibernated: ["calm", "Its files are in a checkpoint and are restored on the next use."],
  lost: ["bad", "It failed. A new sandbox starts from the last checkpoint."],
};

function SandboxState({ session }: { session: Session }) {
  const { sandbox } = session;
  if (!sandbox) {
    return <p className="quiet">{session.status === "archived" ? "Removed with its disk." : "None yet. The first tool call that needs one creates it."}</p>;
  }
  const [tone, text] = STATES[sandbox.state];
  return (
    <>
      <p className="under">
        <span className="badge" data-tone={tone}>
          <i aria-hidden />
          {sandbox.state}
        </span>
        <span className="quiet">{text}</span>
      </p>
      <dl className="facts">
        <dt>Created</dt>
        <dd>
          <Age ts={sandbox.created_at} />
        </dd>
        {sandbox.expires_at && (
          <>
            <dt>Expires</dt>
            <dd>
              <Age ts={sandbox.expires_at} />
            </dd>
          </>
        )}
        <dt>Files</dt>
        <dd>{sandbox.checkpoint_id ? "all in a checkpoint" : "on its disk, changed since the newest checkpoint"}</dd>
      </dl>
    </>
  );
}

function Facts({ session }: { session: Session }) {
  const skills = session.agent_snapshot?.pinned_skills ?? [];
  return (
    <>
      <dl className="facts">
        <dt>Id</dt>
        <dd className="mono">
          {session.id} <Copy text={session.id} />
        </dd>
        <dt>Model</dt>
        <dd className="mono">{session.agent_snapshot?.model ?? "none"}</dd>
        <dt>Revision</dt>
        <dd>{session.agent_snapshot?.revision ?? "none"}</dd>
        {skills.length > 0 && (
          <>
            <dt>Skills</dt>
            <dd className="mono">{skills.map(({ name, version }) => `${name}@${version}`).join(", ")}</dd>
          </>
        )}
        {session.key && (
          <>
            <dt>Key</dt>
            <dd className="mono">{session.key}</dd>
          </>
        )}
        <dt>Started by</dt>
        <dd>{session.source}</dd>
        <dt>Created</dt>
        <dd>
          <Age ts={session.created_at} />
        </dd>
        <dt>Changed</dt>
        <dd>
          <Age ts={session.updated_at} />
        </dd>
      </dl>
      {Object.keys(session.metadata).length > 0 && <Json value={session.metadata} label="Metadata" />}
    </>
  );
}

/** The agent as the session pinned it, also after the agent was changed or deleted. */
function PinnedAgent({ session }: { session: Session }) {
  const [isOpen, setOpen] = useState(false);
  const query = useQuery({
    queryKey: ["session", session.id, "agent"],
    queryFn: ({ signal }) =>
      take(api.GET("/v3/sessions/{session_id}/agent", { params: { path: { session_id: session.id } }, signal })),
    enabled: isOpen,
    // It never changes.
    staleTime: Infinity,
  });
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Pinned prompt and tools</summary>
      <Trouble error={query.error} />
      {query.data && (
        <>
          <pre className="output" tabIndex={0} role="region" aria-label="Prompt">
            {query.data.prompt}
          </pre>
          <p className="quiet">Tools: {named(query.data.tools, "all but those for child sessions")}</p>
        </>
      )}
    </details>
  );
}

function Edit({ session, onClose }: { session: Session; onClose: () => void }) {
  const queries = useQueryClient();
  const [title, setTitle] = useState(session.title ?? "");
  const [limits, setLimits] = useState(() => formOf(session.limits));
  const save = useMutation({
    mutationFn: () =>
      take(
        api.PATCH("/v3/sessions/{session_id}", {
          params: { path: { session_id: session.id } },
          body: { title: title.trim() || null, limits: limitsOf(limits, session.limits) },
        }),
      ),
    onSuccess: (changed) => {
      queries.setQueryData(["session", session.id], changed);
      onClose();
    },
  });
  return (
    <Dialog title="Title and limits" onClose={onClose}>
      <Form send={save.mutate} call={save} label="Save">
        <TextField label="Title" value={title} onChange={setTitle} />
        <p className="quiet">
          A limit ends the turn that reaches it, not the session. To continue, raise the limit and send a message.
        </p>
        <LimitFields values={limits} onChange={setLimits} />
      </Form>
    </Dialog>
  );
}
