// Invoke URL of an agent and its tokens, which start sessions of this agent and do nothing else.
import { type FormEvent, useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Age, Confirmed, Copy, Dialog, Empty, Field, Loading, Trouble } from "../parts/basics";
import { formOf, LimitFields, limitsOf } from "../parts/limits";
import { useList } from "../parts/lists";
import { ShownOnce } from "../parts/secret";
import { useEnvironments } from "./environments";

type Token = Schemas["InvokeToken"];

const tokensOf = (agent: string) => ["agent", agent, "invoke-tokens"];
const address = (agent: string) => `${window.location.origin}/v3/agents/${agent}/invoke`;

export function InvokeTokens({ agent }: { agent: string }) {
  const [making, setMaking] = useState(false);
  const { query, list } = useList<Token>(tokensOf(agent), (_, signal) =>
    take(api.GET("/v3/agents/{agent_id}/invoke-tokens", { params: { path: { agent_id: agent } }, signal })),
  );
  return (
    <>
      <div className="head">
        <h2>Invoke URL</h2>
        <button type="button" className="main" onClick={() => setMaking(true)}>
          New token
        </button>
      </div>
      <p>
        <span className="mono">POST {address(agent)}</span> <Copy text={address(agent)} label="Copy the URL" />
      </p>
      <Trouble error={query.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && list.length === 0 && (
        <Empty title="No invoke tokens yet">
          <p>A program with an invoke token can start sessions of this agent at the URL above, and do nothing else.</p>
          <ol>
            <li>Create one token per program and store it: it is shown once.</li>
            <li>Send it as Authorization: Bearer, with a body such as {'{"input": "Look around."}'}.</li>
            <li>Revoke the token when the program no longer needs it.</li>
          </ol>
        </Empty>
      )}
      <ul className="cards">
        {list.map((token) => (
          <Card key={token.id} token={token} />
        ))}
      </ul>
      {making && <NewToken agent={agent} onClose={() => setMaking(false)} />}
    </>
  );
}

function Card({ token }: { token: Token }) {
  const queries = useQueryClient();
  const path = { agent_id: token.agent_id, invoke_token_id: token.id };
  const revoke = useMutation({
    mutationFn: () => take(api.DELETE("/v3/agents/{agent_id}/invoke-tokens/{invoke_token_id}", { params: { path } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: tokensOf(token.agent_id) }),
  });
  return (
    <li>
      <strong>{token.name}</strong>
      <span className="quiet mono">…{token.hint}</span>
      <span className="quiet grow">
        {token.last_used_at ? (
          <>
            last used <Age ts={token.last_used_at} />
          </>
        ) : (
          "never used"
        )}
      </span>
      <Confirmed label="Revoke" sure="Confirm revoke" disabled={revoke.isPending} onConfirm={() => revoke.mutate()} />
      <Trouble error={revoke.error} />
    </li>
  );
}

function NewToken({ agent, onClose }: { agent: string; onClose: () => void }) {
  const queries = useQueryClient();
  const environments = useEnvironments();
  const [form, setForm] = useState({ name: "", title: "", environment: "", limits: formOf({}) });
  const set = (change: Partial<typeof form>) => setForm({ ...form, ...change });
  const make = useMutation({
    mutationFn: (body: Schemas["CreateInvokeToken"]) =>
      take(api.POST("/v3/agents/{agent_id}/invoke-tokens", { params: { path: { agent_id: agent } }, body })),
    onSuccess: () => queries.invalidateQueries({ queryKey: tokensOf(agent) }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate({
      name: form.name.trim(),
      title: form.title.trim() || null,
      environment: form.environment || null,
      limits: limitsOf(form.limits),
    });
  };
  return (
    <Dialog title="New invoke token" onClose={onClose}>
      {make.isSuccess ? (
        <Made token={make.data} onDone={onClose} />
      ) : (
        <form onSubmit={submit}>
          <Field label="Name" hint="The program that uses the token.">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} required value={form.name} onChange={(event) => set({ name: event.target.value })} />
            )}
          </Field>
          <details>
            <summary>Session, environment, limits</summary>
            <Field label="Title" hint="Title of the sessions that it starts.">
              {(id, hint) => <input id={id} aria-describedby={hint} value={form.title} onChange={(event) => set({ title: event.target.value })} />}
            </Field>
            <Field label="Environment">
              {(id) => (
                <select id={id} value={form.environment} onChange={(event) => set({ environment: event.target.value })}>
                  <option value="">default</option>
                  {environments.list.map(({ id, name }) => (
                    <option key={id} value={id}>
                      {name}
                    </option>
                  ))}
                </select>
              )}
            </Field>
            <LimitFields values={form.limits} onChange={(limits) => set({ limits })} />
          </details>
          <Trouble error={make.error} />
          <footer>
            <button type="submit" className="main" disabled={make.isPending}>
              Create
            </button>
          </footer>
        </form>
      )}
    </Dialog>
  );
}

function Made({ token, onDone }: { token: Token; onDone: () => void }) {
  const url = `${window.location.origin}${token.path}`;
  return (
    <ShownOnce secret={token.token} label="Invoke token" onDone={onDone}>
      <p>
        URL: <Copy text={url} label="Copy the URL" />
      </p>
      <pre className="output" tabIndex={0} role="region" aria-label="Invoke URL">
        {url}
      </pre>
      <p>Token of the requests, as Authorization: Bearer. It is shown only once:</p>
    </ShownOnce>
  );
}
