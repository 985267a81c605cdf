// Form of a trigger, and its secret, which is shown once.
import { type FormEvent, useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Copy, Field, Trouble } from "../parts/basics";
import { choice, chosen, EnvironmentSelect } from "../parts/environment-select";
import { formOf, LimitFields, limitsOf } from "../parts/limits";
import { ShownOnce } from "../parts/secret";
import { triggersOf } from "./triggers";

type Trigger = Schemas["Trigger"];
type React = Schemas["TriggerReact"];

/** Events as lines of "event: action, action". */
export function writeReact(react: Trigger["react"]): string {
  return (react ?? []).map(({ event, actions }) => `${event}: ${actions.join(", ")}`).join("\n");
}

/** Throws an `Error` that names the invalid line. The service validates the events. */
function readReact(text: string): React[] {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  return lines.map((line, at) => {
    const [event, actions] = line.split(":").map((part) => part.trim());
    if (!event || !actions) throw new Error(`Line ${at + 1} of the events must have the form “event: action, action”.`);
    return { event: event as React["event"], actions: actions.split(/[\s,]+/).filter(Boolean) };
  });
}

function begun(trigger?: Trigger) {
  return {
    kind: trigger?.kind ?? ("github" as Schemas["TriggerKind"]),
    mention: trigger?.mention ?? "",
    react: writeReact(trigger?.react),
    authors: trigger?.authors ?? ("members" as Schemas["TriggerAuthors"]),
    title: trigger?.title ?? "",
    environment: chosen(trigger?.environment),
    limits: formOf(trigger?.limits ?? {}),
  };
}

type Form = ReturnType<typeof begun>;

function read(form: Form, trigger?: Trigger): Omit<Schemas["CreateTrigger"], "kind"> {
  const limits = limitsOf(form.limits, trigger?.limits);
  const of = { mention: form.mention.trim().replace(/^@/, "") || null, react: readReact(form.react), authors: form.authors };
  return {
    ...(form.kind === "github" && of),
    title: form.title.trim() || null,
    ...(Object.keys(limits).length > 0 && { limits }),
    ...choice(form.environment),
  };
}

export function TriggerForm({ agent, trigger, onDone }: { agent: string; trigger?: Trigger; onDone: () => void }) {
  const queries = useQueryClient();
  const [form, setForm] = useState(() => begun(trigger));
  const [invalid, setInvalid] = useState<string>();
  const set = (change: Partial<Form>) => setForm({ ...form, ...change });
  const save = useMutation({
    mutationFn: (body: Omit<Schemas["CreateTrigger"], "kind">) =>
      trigger
        ? take(api.PATCH("/v3/agents/{agent_id}/hooks/{trigger_id}", { params: { path: { agent_id: agent, trigger_id: trigger.id } }, body }))
        : take(api.POST("/v3/agents/{agent_id}/hooks", { params: { path: { agent_id: agent } }, body: { ...body, kind: form.kind } })),
    onSuccess: () => {
      queries.invalidateQueries({ queryKey: triggersOf(agent) });
      if (trigger) onDone();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setInvalid(undefined);
    try {
      save.mutate(read(form, trigger));
    } catch (error) {
      setInvalid(error instanceof Error ? error.message : "The form is invalid.");
    }
  };
  if (!trigger && save.isSuccess) return <Made trigger={save.data} onDone={onDone} />;
  return (
    <form onSubmit={submit}>
      {!trigger && (
        <Field label="Sender">
          {(id) => (
            <select id={id} value={form.kind} onChange={(event) => set({ kind: event.target.value as Form["kind"] })}>
              <option value="github">GitHub</option>
              <option value="generic">any program (Standard Webhooks)</option>
            </select>
          )}
        </Field>
      )}
      {form.kind === "github" && <Github form={form} set={set} />}
      <Field label="Title" hint="Title of the sessions that it starts.">
        {(id, hint) => <input id={id} aria-describedby={hint} value={form.title} onChange={(event) => set({ title: event.target.value })} />}
      </Field>
      <details>
        <summary>Environment and limits</summary>
        <EnvironmentSelect value={form.environment} onChange={(environment) => set({ environment })} />
        <LimitFields values={form.limits} onChange={(limits) => set({ limits })} />
      </details>
      {invalid && (
        <p className="trouble" role="alert">
          {invalid}
        </p>
      )}
      <Trouble error={save.error} />
      <footer>
        <button type="submit" className="main" disabled={save.isPending}>
          {trigger ? "Save" : "Create"}
        </button>
      </footer>
    </form>
  );
}

function Github({ form, set }: { form: Form; set: (change: Partial<Form>) => void }) {
  return (
    <>
      <Field label="Mention" hint="GitHub user name. A new comment that mentions it starts a session.">
        {(id, hint) => (
          <input id={id} aria-describedby={hint} placeholder="acme-bot" value={form.mention} onChange={(event) => set({ mention: event.target.value })} />
        )}
      </Field>
      <Field label="Events" hint="One per line, with its actions. Example: issues: opened, labeled">
        {(id, hint) => (
          <textarea id={id} aria-describedby={hint} className="mono" rows={2} spellCheck={false} value={form.react} onChange={(event) => set({ react: event.target.value })} />
        )}
      </Field>
      <Field label="Allowed authors" hint="Anyone can then send instructions to this agent: restrict its permissions.">
        {(id, hint) => (
          <select id={id} aria-describedby={hint} value={form.authors} onChange={(event) => set({ authors: event.target.value as Form["authors"] })}>
            <option value="members">members of the repository</option>
            <option value="anyone">anyone</option>
          </select>
        )}
      </Field>
    </>
  );
}

function Made({ trigger, onDone }: { trigger: Trigger; onDone: () => void }) {
  const address = `${window.location.origin}${trigger.path}`;
  return (
    <ShownOnce secret={trigger.secret} label="Trigger secret" onDone={onDone}>
      <p>
        URL to send messages to: <Copy text={address} label="Copy the URL" />
      </p>
      <pre className="output" tabIndex={0} role="region" aria-label="Trigger address">
        {address}
      </pre>
      <p>Signing secret of the messages. It is shown only once:</p>
    </ShownOnce>
  );
}
