// Form of an environment: size, network, variables, a script, secrets.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Form, TextArea, TextField } from "../parts/form";
import { readRules, readVariables, writeRules, writeVariables } from "../parts/rules";

type Environment = Schemas["NamedEnvironment"];
type Secret = Schemas["EnvironmentSecret"];

interface SecretForm {
  name: string;
  hosts: string;
  headers: string;
  parameters: string;
  /** Empty keeps the stored value. */
  value: string;
  isStored: boolean;
}

const NEW_SECRET: SecretForm = { name: "", hosts: "", headers: "authorization", parameters: "", value: "", isStored: false };

function formOf(environment?: Environment) {
  const config = environment?.config;
  return {
    name: environment?.name ?? "",
    cpus: config?.cpus?.toString() ?? "",
    memory: config?.memory ?? "",
    network: writeRules(config?.network?.allow ?? []),
    variables: writeVariables(config?.env ?? {}),
    post_start: config?.lifecycle_hooks?.post_start ?? "",
    post_clone: config?.lifecycle_hooks?.post_clone ?? "",
    secrets: (environment?.secrets ?? []).map(
      ({ name, hosts, headers, query_parameters }): SecretForm => ({
        name,
        hosts: hosts.join(", "),
        headers: headers.join(", "),
        parameters: query_parameters.join(", "),
        value: "",
        isStored: true,
      }),
    ),
  };
}

/** Reads the form; throws an `Error` for the user where a field is invalid. */
function read(form: ReturnType<typeof formOf>, before?: Environment): Schemas["PatchEnvironment"] {
  // Fields that are not in the form keep their value.
  const config: Schemas["Environment"] = { ...before?.config };
  config.cpus = form.cpus === "" ? undefined : Number(form.cpus);
  config.memory = form.memory.trim() || undefined;
  config.network = { ...config.network, allow: readRules(form.network) };
  config.env = readVariables(form.variables);
  const script = (text: string) => (text.trim() ? text : undefined);
  config.lifecycle_hooks = { ...config.lifecycle_hooks, post_start: script(form.post_start), post_clone: script(form.post_clone) };
  const words = (text: string) => text.split(/[\s,]+/).filter(Boolean);
  const secret = ({ name, hosts, headers, parameters, value }: SecretForm): Secret => ({
    name: name.trim(),
    hosts: words(hosts),
    headers: words(headers),
    query_parameters: words(parameters),
    value: value || undefined,
  });
  return { name: form.name, config, secrets: form.secrets.map(secret) };
}

export function EnvironmentForm({ environment, onDone }: { environment?: Environment; onDone: () => void }) {
  const queries = useQueryClient();
  const [form, setForm] = useState(() => formOf(environment));
  const set = (change: Partial<typeof form>) => setForm({ ...form, ...change });
  const save = useMutation({
    mutationFn: (body: Schemas["PatchEnvironment"]): Promise<unknown> =>
      environment
        ? take(
            api.PATCH("/v3/environments/{environment_id}", { params: { path: { environment_id: environment.id } }, body }),
          )
        : // The form requires a name, and a value of each secret that is not stored.
          take(api.POST("/v3/environments", { body: body as Schemas["CreateEnvironment"] })),
    onSuccess: () => {
      queries.invalidateQueries({ queryKey: ["environments"] });
      onDone();
    },
  });
  return (
    <Form send={() => save.mutate(read(form, environment))} call={save} label={environment ? "Save" : "Create"}>
      <TextField label="Name" required value={form.name} onChange={(name) => set({ name })} />
      <div className="row">
        <TextField
          label="CPUs"
          hint="0.1 to 16; 2 when empty."
          type="number" min="0.1" max="16" step="any" value={form.cpus} onChange={(cpus) => set({ cpus })}
        />
        <TextField label="Memory" hint="For example 512Mi or 4Gi; 2Gi when empty." value={form.memory} onChange={(memory) => set({ memory })} />
      </div>
      <TextArea
        label="Network"
        hint="Allowed hosts, one per line, optionally with methods and a path: api.github.com GET,POST /repos/acme"
        className="mono" rows={3} spellCheck={false} value={form.network} onChange={(network) => set({ network })}
      />
      <Secrets list={form.secrets} onChange={(secrets) => set({ secrets })} />
      <details>
        <summary>Variables and scripts</summary>
        <TextArea
          label="Variables"
          hint={'NAME=value, one per line; a value with line breaks as NAME="one\\ntwo". Visible to commands; do not put secrets here.'}
          className="mono" rows={3} spellCheck={false} value={form.variables} onChange={(variables) => set({ variables })}
        />
        <TextArea
          label="Start script"
          hint="bash script, run once in each new sandbox before its first command."
          className="mono" rows={4} spellCheck={false} value={form.post_start} onChange={(post_start) => set({ post_start })}
        />
        <TextArea
          label="Clone script"
          hint="bash script, run once after the sources were cloned."
          className="mono" rows={4} spellCheck={false} value={form.post_clone} onChange={(post_clone) => set({ post_clone })}
        />
      </details>
      {environment && <p className="quiet">Existing sessions keep their configuration; only secret values change.</p>}
    </Form>
  );
}

function Secrets({ list, onChange }: { list: SecretForm[]; onChange: (list: SecretForm[]) => void }) {
  const set = (at: number, change: Partial<SecretForm>) =>
    onChange(list.map((secret, other) => (other === at ? { ...secret, ...change } : secret)));
  return (
    <fieldset>
      <legend>Secrets</legend>
      {list.map((secret, at) => (
        <div key={at} className="row">
          <TextField label="Variable" required className="mono" value={secret.name} onChange={(name) => set(at, { name, isStored: false })} />
          <TextField label="Allowed hosts" required value={secret.hosts} onChange={(hosts) => set(at, { hosts })} />
          <TextField
            label="Headers"
            hint="Where requests may hold it."
            value={secret.headers} onChange={(headers) => set(at, { headers })}
          />
          <TextField label="Query parameters" value={secret.parameters} onChange={(parameters) => set(at, { parameters })} />
          <TextField
            label="Value"
            hint={secret.isStored ? "Empty keeps the stored value." : "Stored encrypted, never shown again."}
            type="password" autoComplete="off" required={!secret.isStored} value={secret.value} onChange={(value) => set(at, { value })}
          />
          <button type="button" className="plain" aria-label={`Remove ${secret.name || "this secret"}`} onClick={() => onChange(list.filter((_, other) => other !== at))}>
            ✕
          </button>
        </div>
      ))}
      <button type="button" onClick={() => onChange([...list, NEW_SECRET])}>
        Add a secret
      </button>
    </fieldset>
  );
}
