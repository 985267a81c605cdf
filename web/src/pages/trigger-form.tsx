// Form of a trigger, and its secret, which is shown once.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Copy } from "../parts/basics";
import { Form, Select, type SetForm, TextArea, TextField } from "../parts/form";
import { ShownOnce } from "../parts/secret";
import { EnvironmentAndLimits, readTemplate, templateForm, TitleField } from "./template";
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
    ...templateForm(trigger),
  };
}

type Values = ReturnType<typeof begun>;

function read(form: Values, trigger?: Trigger): Omit<Schemas["CreateTrigger"], "kind"> {
  const of = { mention: form.mention.trim().replace(/^@/, "") || null, react: readReact(form.react), authors: form.authors };
  return {
    ...(form.kind === "github" && of),
    ...readTemplate(form, trigger),
  };
}

export function TriggerForm({ agent, trigger, onDone }: { agent: string; trigger?: Trigger; onDone: () => void }) {
  const queries = useQueryClient();
  const [form, setForm] = useState(() => begun(trigger));
  const set = (change: Partial<Values>) => setForm({ ...form, ...change });
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
  if (!trigger && save.isSuccess) return <Made trigger={save.data} onDone={onDone} />;
  return (
    <Form send={() => save.mutate(read(form, trigger))} call={save} label={trigger ? "Save" : "Create"}>
      {!trigger && (
        <Select label="Sender" value={form.kind} onChange={(kind) => set({ kind: kind as Values["kind"] })}>
          <option value="github">GitHub</option>
          <option value="generic">any program (Standard Webhooks)</option>
        </Select>
      )}
      {form.kind === "github" && <Github form={form} set={set} />}
      <TitleField form={form} set={set} />
      <details>
        <summary>Environment and limits</summary>
        <EnvironmentAndLimits form={form} set={set} />
      </details>
    </Form>
  );
}

function Github({ form, set }: { form: Values; set: SetForm<Values> }) {
  return (
    <>
      <TextField
        label="Mention"
        hint="GitHub user name. A new comment that mentions it starts a session."
        placeholder="acme-bot" value={form.mention} onChange={(mention) => set({ mention })}
      />
      <TextArea
        label="Events"
        hint="One per line, with its actions. Example: issues: opened, labeled"
        className="mono" rows={2} spellCheck={false} value={form.react} onChange={(react) => set({ react })}
      />
      <Select
        label="Allowed authors"
        hint="Anyone can then send instructions to this agent: restrict its permissions."
        value={form.authors} onChange={(authors) => set({ authors: authors as Values["authors"] })}
      >
        <option value="members">members of the repository</option>
        <option value="anyone">anyone</option>
      </Select>
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
