// Provider keys: added, rotated, deleted, never shown again.
import { type FormEvent, useState } from "react";
import { useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Age, Confirmed, Dialog, Empty, Field, Loading, More, Trouble } from "../parts/basics";

type Credential = Schemas["Credential"];

export function useCredentials() {
  const query = useInfiniteQuery({
    queryKey: ["credentials"],
    queryFn: ({ pageParam, signal }) =>
      take(api.GET("/v3/credentials", { params: { query: { limit: 100, cursor: pageParam } }, signal })),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
  });
  return { query, list: query.data?.pages.flatMap((page) => page.data) ?? [] };
}

export function CredentialsPage() {
  const { query, list } = useCredentials();
  const [open, setOpen] = useState<"new" | Credential>();
  const close = () => setOpen(undefined);
  return (
    <>
      <div className="head">
        <h1>Credentials</h1>
        <button type="button" className="main" onClick={() => setOpen("new")}>
          Add a key
        </button>
      </div>
      <Trouble error={query.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && list.length === 0 && (
        <Empty title="No provider keys yet">
          <p>
            Calls to a model need a key of its provider. The key is stored encrypted, used only by the service, and never
            shown again; sandboxes do not see it. Models of <code>scripted/</code> need no key.
          </p>
        </Empty>
      )}
      <ul className="cards">
        {list.map((credential) => (
          <Card key={credential.id} credential={credential} onRotate={() => setOpen(credential)} />
        ))}
      </ul>
      <More query={query} />
      {open === "new" && (
        <Dialog title="Add a key" onClose={close}>
          <AddForm onDone={close} />
        </Dialog>
      )}
      {open && open !== "new" && (
        <Dialog title={`New key for ${open.name ?? open.provider}`} onClose={close}>
          <RotateForm credential={open} onDone={close} />
        </Dialog>
      )}
    </>
  );
}

function useChange<T>(change: (value: T) => Promise<unknown>, onDone?: () => void) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: change,
    onSuccess: () => {
      queries.invalidateQueries({ queryKey: ["credentials"] });
      onDone?.();
    },
  });
}

function Card({ credential, onRotate }: { credential: Credential; onRotate: () => void }) {
  const params = { path: { credential_id: credential.id } };
  const remove = useChange(() => take(api.DELETE("/v3/credentials/{credential_id}", { params })));
  const prefer = useChange(() => take(api.PUT("/v3/credentials/default", { body: { credential: credential.id } })));
  return (
    <li>
      <strong>{credential.name ?? credential.provider}</strong>
      <span className="quiet">
        {credential.provider} · <span className="mono">…{credential.last4}</span>
      </span>
      {credential.is_default && <span className="badge" data-tone="good">default</span>}
      {credential.base_url && <span className="quiet mono">{credential.base_url}</span>}
      <span className="quiet grow">
        <Age ts={credential.created_at} />
      </span>
      {!credential.is_default && (
        <button type="button" disabled={prefer.isPending} onClick={() => prefer.mutate(undefined)}>
          Make default
        </button>
      )}
      <button type="button" onClick={onRotate}>
        Rotate
      </button>
      <Confirmed label="Delete" sure="Confirm delete" disabled={remove.isPending} onConfirm={() => remove.mutate(undefined)} />
      <Trouble error={remove.error ?? prefer.error} />
    </li>
  );
}

function KeyField({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  return (
    <Field label="Key" hint="Stored encrypted, never shown again.">
      {(id, hint) => (
        <input
          id={id}
          aria-describedby={hint}
          type="password"
          autoComplete="off"
          required
          value={value}
          onChange={(event) => onChange(event.target.value)}
        />
      )}
    </Field>
  );
}

function AddForm({ onDone }: { onDone: () => void }) {
  const [form, setForm] = useState({ provider: "anthropic", name: "", key: "", base_url: "", is_default: true });
  const add = useChange((body: Schemas["CreateCredential"]) => take(api.POST("/v3/credentials", { body })), onDone);
  const set = (change: Partial<typeof form>) => setForm({ ...form, ...change });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const { name, base_url, ...rest } = form;
    add.mutate({ ...rest, name: name || undefined, base_url: base_url || undefined });
  };
  return (
    <form onSubmit={submit}>
      <Field label="Provider" hint="anthropic, openai, or any name with an OpenAI-compatible endpoint.">
        {(id, hint) => (
          <input id={id} aria-describedby={hint} required value={form.provider} onChange={(event) => set({ provider: event.target.value })} />
        )}
      </Field>
      <KeyField value={form.key} onChange={(key) => set({ key })} />
      <Field label="Name" hint="Optional label.">
        {(id, hint) => (
          <input id={id} aria-describedby={hint} value={form.name} onChange={(event) => set({ name: event.target.value })} />
        )}
      </Field>
      <Field label="Endpoint" hint="Only if it differs from the provider's default.">
        {(id, hint) => (
          <input id={id} aria-describedby={hint} type="url" value={form.base_url} onChange={(event) => set({ base_url: event.target.value })} />
        )}
      </Field>
      <label className="check">
        <input type="checkbox" checked={form.is_default} onChange={(event) => set({ is_default: event.target.checked })} />
        Use as the default for agents without a credential
      </label>
      <Trouble error={add.error} />
      <footer>
        <button type="submit" className="main" disabled={add.isPending}>
          Add the key
        </button>
      </footer>
    </form>
  );
}

function RotateForm({ credential, onDone }: { credential: Credential; onDone: () => void }) {
  const [key, setKey] = useState("");
  const params = { path: { credential_id: credential.id } };
  const rotate = useChange((key: string) => take(api.PATCH("/v3/credentials/{credential_id}", { params, body: { key } })), onDone);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    rotate.mutate(key);
  };
  return (
    <form onSubmit={submit}>
      <p>Sessions that use this credential switch to the new key at their next model call.</p>
      <KeyField value={key} onChange={setKey} />
      <Trouble error={rotate.error} />
      <footer>
        <button type="submit" className="main" disabled={rotate.isPending}>
          Rotate
        </button>
      </footer>
    </form>
  );
}
