// Form of an environment: size, network, variables, a script, secrets.
import { type FormEvent, useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Field, Trouble } from "../parts/basics";
import { readRules, readVariables, writeRules, writeVariables } from "../parts/rules";

type Environment = Schemas["NamedEnvironment"];
type Secret = Schemas["EnvironmentSecret"];

interface SecretForm {
  name: string;
  hosts: string;
  /** Empty keeps the stored value. */
  value: string;
  isStored: boolean;
}

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
      ({ name, hosts }): SecretForm => ({ name, hosts: hosts.join(", "), value: "", isStored: true }),
    ),
  };
}

/** Reads the form; throws an `Error` for the user where a field is invalid. */
function read(form: ReturnType<typeof formOf>, before?: Environment): Schemas["CreateEnvironment"] {
  // Fields that are not in the form keep their value.
  const config: Schemas["Environment"] = { ...before?.config };
  config.cpus = form.cpus === "" ? undefined : Number(form.cpus);
  config.memory = form.memory.trim() || undefined;
  config.network = { ...config.network, allow: readRules(form.network) };
  config.env = readVariables(form.variables);
  const script = (text: string) => (text.trim() ? text : undefined);
  config.lifecycle_hooks = { ...config.lifecycle_hooks, post_start: script(form.post_start), post_clone: script(form.post_clone) };
  const secret = ({ name, hosts, value }: SecretForm): Secret => ({
    name: name.trim(),
    hosts: hosts.split(/[\s,]+/).filter(Boolean),
    value: value || undefined,
  });
  return { name: form.name, config, secrets: form.secrets.map(secret) };
}

export function EnvironmentForm({ environment, onDone }: { environment?: Environment; onDone: () => void }) {
  const queries = useQueryClient();
  const [form, setForm] = useState(() => formOf(environment));
  const [invalid, setInvalid] = useState<string>();
  const set = (change: Partial<typeof form>) => setForm({ ...form, ...change });
  const save = useMutation({
    mutationFn: (body: Schemas["CreateEnvironment"]): Promise<unknown> =>
      environment
        ? take(
            api.PATCH("/v3/environments/{environment_id}", { params: { path: { environment_id: environment.id } }, body }),
          )
        : take(api.POST("/v3/environments", { body })),
    onSuccess: () => {
      queries.invalidateQueries({ queryKey: ["environments"] });
      onDone();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setInvalid(undefined);
    try {
      save.mutate(read(form, environment));
    } catch (error) {
      setInvalid(error instanceof Error ? error.message : "The form is invalid.");
    }
  };
  return (
    <form onSubmit={submit}>
      <Field label="Name">
        {(id) => <input id={id} required value={form.name} onChange={(event) => set({ name: event.target.value })} />}
      </Field>
      <div className="row">
        <Field label="CPUs" hint="0.1 to 16; 2 when empty.">
          {(id, hint) => (
            <input id={id} aria-describedby={hint} type="number" min="0.1" max="16" step="any" value={form.cpus} onChange={(event) => set({ cpus: event.target.value })} />
          )}
        </Field>
        <Field label="Memory" hint="For example 512Mi or 4Gi; 2Gi when empty.">
          {(id, hint) => (
            <input id={id} aria-describedby={hint} value={form.memory} onChange={(event) => set({ memory: event.target.value })} />
          )}
        </Field>
      </div>
      <Field label="Network" hint="Allowed hosts, one per line, optionally with methods and a path: api.github.com GET,POST /repos/acme">
        {(id, hint) => (
          <textarea id={id} aria-describedby={hint} className="mono" rows={3} spellCheck={false} value={form.network} onChange={(event) => set({ network: event.target.value })} />
        )}
      </Field>
      <Secrets list={form.secrets} onChange={(secrets) => set({ secrets })} />
      <details>
        <summary>Variables and scripts</summary>
        <Field label="Variables" hint={'NAME=value, one per line; a value with line breaks as NAME="one\\ntwo". Visible to commands; do not put secrets here.'}>
          {(id, hint) => (
            <textarea id={id} aria-describedby={hint} className="mono" rows={3} spellCheck={false} value={form.variables} onChange={(event) => set({ variables: event.target.value })} />
          )}
        </Field>
        <Field label="Start script" hint="bash script, run once in each new sandbox before its first command.">
          {(id, hint) => (
            <textarea id={id} aria-describedby={hint} className="mono" rows={4} spellCheck={false} value={form.post_start} onChange={(event) => set({ post_start: event.target.value })} />
          )}
        </Field>
        <Field label="Clone script" hint="bash script, run once after the sources were cloned.">
          {(id, hint) => (
            <textarea id={id} aria-describedby={hint} className="mono" rows={4} spellCheck={false} value={form.post_clone} onChange={(event) => set({ post_clone: event.target.value })} />
          )}
        </Field>
      </details>
      {environment && <p className="quiet">Existing sessions keep their configuration; only secret values change.</p>}
      {invalid && (
        <p className="trouble" role="alert">
          {invalid}
        </p>
      )}
      <Trouble error={save.error} />
      <footer>
        <button type="submit" className="main" disabled={save.isPending}>
          {environment ? "Save" : "Create"}
        </button>
      </footer>
    </form>
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
          <Field label="Variable">
            {(id) => (
              <input id={id} required className="mono" value={secret.name} onChange={(event) => set(at, { name: event.target.value, isStored: false })} />
            )}
          </Field>
          <Field label="Allowed hosts">
            {(id) => <input id={id} required value={secret.hosts} onChange={(event) => set(at, { hosts: event.target.value })} />}
          </Field>
          <Field label="Value" hint={secret.isStored ? "Empty keeps the stored value." : "Stored encrypted, never shown again."}>
            {(id, hint) => (
              <input id={id} aria-describedby={hint} type="password" autoComplete="off" required={!secret.isStored} value={secret.value} onChange={(event) => set(at, { value: event.target.value })} />
            )}
          </Field>
          <button type="button" className="plain" aria-label={`Remove ${secret.name || "this secret"}`} onClick={() => onChange(list.filter((_, other) => other !== at))}>
            ✕
          </button>
        </div>
      ))}
      <button type="button" onClick={() => onChange([...list, { name: "", hosts: "", value: "", isStored: false }])}>
        Add a secret
      </button>
    </fieldset>
  );
}
