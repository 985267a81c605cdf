// Form of a new session.
import { type FormEvent, useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link, useLocation } from "wouter";
import { api, type Schemas, take } from "../api/client";
import { Dialog, Field, Trouble } from "../parts/basics";
import { limitsOf, LimitFields } from "../parts/limits";
import { useAgents } from "./agents";

/** The input as text, or as a parsed JSON object. */
function parsed(input: string, isObject: boolean): Schemas["CreateSession"]["input"] {
  if (!isObject) return input.trim() === "" ? undefined : input;
  const value: unknown = JSON.parse(input);
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error("not an object");
  return value as Record<string, unknown>;
}

export function CreateSession({ onClose, agent: first }: { onClose: () => void; agent?: string }) {
  const agents = useAgents();
  const [, go] = useLocation();
  const queries = useQueryClient();
  const [agent, setAgent] = useState(first ?? "");
  const [input, setInput] = useState("");
  const [isObject, setIsObject] = useState(false);
  const [title, setTitle] = useState("");
  const [webhook, setWebhook] = useState("");
  const [limits, setLimits] = useState<Record<string, string>>({});
  const [invalid, setInvalid] = useState<string>();

  const create = useMutation({
    mutationFn: (body: Schemas["CreateSession"]) => take(api.POST("/v3/sessions", { body })),
    onSuccess: ({ session }) => {
      queries.invalidateQueries({ queryKey: ["sessions"] });
      onClose();
      go(`/sessions/${session.id}`);
    },
  });
  const chosen = agent || agents.list[0]?.id || "";
  const submit = (event: FormEvent) => {
    event.preventDefault();
    let body: Schemas["CreateSession"];
    try {
      body = { agent: chosen, input: parsed(input, isObject), title: title.trim() || undefined };
      setInvalid(undefined);
    } catch {
      setInvalid("The input is not a JSON object.");
      return;
    }
    if (webhook.trim()) body.webhook = webhook.trim();
    const wanted = limitsOf(limits);
    if (Object.keys(wanted).length > 0) body.limits = wanted;
    create.mutate(body);
  };
  return (
    <Dialog title="New session" onClose={onClose}>
      {agents.query.isSuccess && agents.list.length === 0 ? (
        <p>
          A session runs an agent, and there is none yet. <Link href="/agents">Create an agent first.</Link>
        </p>
      ) : (
        <form onSubmit={submit}>
          <Field label="Agent">
            {(id) => (
              <select id={id} value={chosen} onChange={(event) => setAgent(event.target.value)}>
                {agents.list.map((agent) => (
                  <option key={agent.id} value={agent.id}>
                    {agent.name} · {agent.model}
                  </option>
                ))}
              </select>
            )}
          </Field>
          <Field label="Input" hint="The task. When empty, the session waits for its first message.">
            {(id, hint) => (
              <textarea
                id={id}
                aria-describedby={hint}
                rows={5}
                autoFocus
                className={isObject ? "mono" : ""}
                value={input}
                onChange={(event) => setInput(event.target.value)}
              />
            )}
          </Field>
          <label className="check">
            <input type="checkbox" checked={isObject} onChange={(event) => setIsObject(event.target.checked)} />
            Parse the input as a JSON object
          </label>
          <Field label="Title" hint="Optional.">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} value={title} onChange={(event) => setTitle(event.target.value)} />
            )}
          </Field>
          <details>
            <summary>Limits and webhook</summary>
            <LimitFields values={limits} onChange={setLimits} />
            <Field label="Webhook" hint="https URL that receives messages and turn ends. Its signing secret is only in the API response; to see a secret, add a destination in the session instead.">
              {(id, hint) => (
                <input
                  id={id}
                  aria-describedby={hint}
                  type="url"
                  value={webhook}
                  onChange={(event) => setWebhook(event.target.value)}
                />
              )}
            </Field>
          </details>
          {invalid && <p role="alert">{invalid}</p>}
          <Trouble error={create.error} />
          <footer>
            <button type="submit" className="main" disabled={create.isPending || !chosen}>
              {create.isPending ? "Creating…" : "Create session"}
            </button>
          </footer>
        </form>
      )}
    </Dialog>
  );
}
