// Form of an agent: create and edit.
import { type FormEvent, useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Field, Trouble } from "../parts/basics";
import { formOf, LimitFields, limitsOf } from "../parts/limits";
import { useCredentials } from "./credentials";

type Agent = Schemas["Agent"];

/** Suggestions only: any `provider/model` may be typed. */
const MODELS = ["anthropic/claude-sonnet-4-5", "openai/gpt-5", "scripted/demo", "scripted/inline", "scripted/noop"];

interface Form {
  name: string;
  prompt: string;
  model: string;
  /** Off: exactly the tools of the list, which may be empty. */
  allTools: boolean;
  tools: string;
  credential: string;
  max_tokens: string;
  effort: "" | Schemas["Effort"];
  thinking: string;
  limits: Record<string, string>;
}

function begun(agent?: Agent): Form {
  return {
    name: agent?.name ?? "",
    prompt: agent?.prompt ?? "",
    model: agent?.model ?? "",
    allTools: agent?.tools == null,
    tools: agent?.tools?.join(", ") ?? "",
    credential: agent?.credential_id ?? "",
    max_tokens: agent?.model_options.max_tokens?.toString() ?? "",
    effort: agent?.model_options.effort ?? "",
    thinking: agent?.model_options.thinking?.budget_tokens.toString() ?? "",
    limits: formOf(agent?.limits ?? {}),
  };
}

/** Fields that the create and update requests share. */
function configuration(form: Form, set?: Schemas["Limits"]) {
  const model_options: Schemas["ModelOptions"] = {};
  if (form.max_tokens) model_options.max_tokens = Number(form.max_tokens);
  if (form.effort) model_options.effort = form.effort;
  if (form.thinking) model_options.thinking = { budget_tokens: Number(form.thinking) };
  return {
    prompt: form.prompt,
    model: form.model.trim(),
    model_options,
    tools: form.allTools ? null : form.tools.split(/[\s,]+/).filter(Boolean),
    limits: limitsOf(form.limits, set),
  };
}

function save(form: Form, agent?: Agent): Promise<Agent> {
  const body = configuration(form, agent?.limits);
  if (!agent) {
    const credential = form.credential || undefined;
    return take(api.POST("/v3/agents", { body: { ...body, tools: body.tools ?? undefined, name: form.name.trim(), credential } }));
  }
  const params = { path: { agent_id: agent.id } };
  return take(api.PATCH("/v3/agents/{agent_id}", { params, body: { ...body, credential: form.credential || null } }));
}

export function AgentForm({ agent, onDone }: { agent?: Agent; onDone: (agent: Agent) => void }) {
  const [form, setForm] = useState(() => begun(agent));
  const credentials = useCredentials();
  const queries = useQueryClient();
  const saving = useMutation({
    mutationFn: () => save(form, agent),
    onSuccess: (saved) => {
      queries.invalidateQueries({ queryKey: ["agents"] });
      queries.invalidateQueries({ queryKey: ["agent", saved.id] });
      onDone(saved);
    },
  });
  const set = (change: Partial<Form>) => setForm({ ...form, ...change });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    saving.mutate();
  };
  return (
    <form onSubmit={submit}>
      {!agent && (
        <Field label="Name" hint="Unique; the API accepts it instead of the id.">
          {(id, hint) => (
            <input id={id} aria-describedby={hint} required value={form.name} onChange={(event) => set({ name: event.target.value })} />
          )}
        </Field>
      )}
      <Field label="Prompt" hint="System prompt of the agent.">
        {(id, hint) => (
          <textarea id={id} aria-describedby={hint} rows={6} required value={form.prompt} onChange={(event) => set({ prompt: event.target.value })} />
        )}
      </Field>
      <Field label="Model" hint="provider/model. Models of scripted/ need no provider: scripted/demo fixes a small repository.">
        {(id, hint) => (
          <>
            <input id={id} aria-describedby={hint} required list="models" className="mono" value={form.model} onChange={(event) => set({ model: event.target.value })} />
            <datalist id="models">
              {MODELS.map((model) => (
                <option key={model} value={model} />
              ))}
            </datalist>
          </>
        )}
      </Field>
      <Field label="Credential" hint="Provider key for model calls.">
        {(id, hint) => (
          <select id={id} aria-describedby={hint} value={form.credential} onChange={(event) => set({ credential: event.target.value })}>
            <option value="">default of the organization for the provider</option>
            {credentials.list.map((credential) => (
              <option key={credential.id} value={credential.id}>
                {credential.provider} · {credential.name ?? "unnamed"} · …{credential.last4}
              </option>
            ))}
          </select>
        )}
      </Field>
      <details>
        <summary>Tools, options and limits</summary>
        <label className="check">
          <input type="checkbox" checked={form.allTools} onChange={(event) => set({ allTools: event.target.checked })} />
          All tools except start_session
        </label>
        {!form.allTools && (
          <Field label="Tools" hint="Comma-separated names, such as bash, read, write, edit, glob, grep, ask; empty for none.">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} value={form.tools} onChange={(event) => set({ tools: event.target.value })} />
            )}
          </Field>
        )}
        <div className="row">
          <Field label="Output tokens" hint="per model call; 16,384 when empty">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} inputMode="numeric" pattern="[0-9]*" value={form.max_tokens} onChange={(event) => set({ max_tokens: event.target.value })} />
            )}
          </Field>
          <Field label="Effort" hint="reasoning effort">
            {(id, hint) => (
              <select id={id} aria-describedby={hint} value={form.effort} onChange={(event) => set({ effort: event.target.value as Form["effort"] })}>
                <option value="">default of the model</option>
                <option value="low">low</option>
                <option value="medium">medium</option>
                <option value="high">high</option>
              </select>
            )}
          </Field>
          <Field label="Thinking tokens" hint="at least 1,024; off when empty">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} inputMode="numeric" pattern="[0-9]*" value={form.thinking} onChange={(event) => set({ thinking: event.target.value })} />
            )}
          </Field>
        </div>
        <LimitFields values={form.limits} onChange={(limits) => set({ limits })} />
      </details>
      <Trouble error={saving.error} />
      <footer>
        <button type="submit" className="main" disabled={saving.isPending}>
          {saving.isPending ? "Saving…" : agent ? "Save as a new revision" : "Create agent"}
        </button>
      </footer>
    </form>
  );
}
