// Provider keys: added, rotated, deleted, never shown again.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Age, Confirmed, Dialog, Empty, Trouble } from "../parts/basics";
import { Check, Form, TextArea, TextField } from "../parts/form";
import { ListPage } from "../parts/list-page";
import { useList } from "../parts/lists";

type Credential = Schemas["Credential"];

export function useCredentials() {
  return useList(["credentials"], (cursor, signal) =>
    take(api.GET("/v3/credentials", { params: { query: { limit: 100, cursor } }, signal })),
  );
}

export function CredentialsPage() {
  const { query, list } = useCredentials();
  const [open, setOpen] = useState<"new" | Credential>();
  const close = () => setOpen(undefined);
  return (
    <>
      <ListPage
        title="Credentials"
        add="Add a key"
        onAdd={() => setOpen("new")}
        of={{ query, list }}
        empty={
          <Empty title="No provider keys yet">
            <p>
              Calls to a model need a key of its provider. The key is stored encrypted, used only by the service, and never
              shown again; sandboxes do not see it. Models of <code>scripted/</code> need no key.
            </p>
          </Empty>
        }
      >
        <ul className="cards">
          {list.map((credential) => (
            <Card key={credential.id} credential={credential} onRotate={() => setOpen(credential)} />
          ))}
        </ul>
      </ListPage>
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
      {credential.headers && credential.headers.length > 0 && (
        <span className="quiet">headers: <span className="mono">{credential.headers.join(", ")}</span></span>
      )}
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
  return <TextField label="Key" hint="Stored encrypted, never shown again." type="password" autoComplete="off" required value={value} onChange={onChange} />;
}

/** Reads headers, one a line; what has no colon is sent as a name, which the service refuses. */
function readHeaders(text: string): Record<string, string> {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(
    lines.map((line) => {
      const colon = line.indexOf(":");
      return colon < 0 ? [line.trim(), ""] : [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
    }),
  );
}

function AddForm({ onDone }: { onDone: () => void }) {
  const [form, setForm] = useState({ provider: "anthropic", name: "", key: "", base_url: "", key_header: "", headers: "", is_default: true });
  const add = useChange((body: Schemas["CreateCredential"]) => take(api.POST("/v3/credentials", { body })), onDone);
  const set = (change: Partial<typeof form>) => setForm({ ...form, ...change });
  const { name, base_url, key_header, headers, ...rest } = form;
  const send = () =>
    add.mutate({
      ...rest,
      name: name || undefined,
      base_url: base_url || undefined,
      key_header: key_header || undefined,
      headers: readHeaders(headers),
    });
  return (
    <Form send={send} call={add} label="Add the key">
      <TextField
        label="Provider"
        hint="anthropic, openai, or any name with an OpenAI-compatible endpoint."
        required value={form.provider} onChange={(provider) => set({ provider })}
      />
      <KeyField value={form.key} onChange={(key) => set({ key })} />
      <TextField label="Name" hint="Optional label." value={form.name} onChange={(name) => set({ name })} />
      <TextField
        label="Endpoint"
        hint="Only if it differs from the provider's default."
        type="url" value={form.base_url} onChange={(base_url) => set({ base_url })}
      />
      <TextField
        label="Authentication header"
        hint="Only if the endpoint does not use that of its provider."
        value={form.key_header} onChange={(key_header) => set({ key_header })}
      />
      <TextArea
        label="Further headers"
        hint="One a line, as in anthropic-beta: files-api. The values are stored encrypted, never shown again."
        rows={2} value={form.headers} onChange={(headers) => set({ headers })}
      />
      <Check label="Use as the default for agents without a credential" value={form.is_default} onChange={(is_default) => set({ is_default })} />
    </Form>
  );
}

function RotateForm({ credential, onDone }: { credential: Credential; onDone: () => void }) {
  const [key, setKey] = useState("");
  const params = { path: { credential_id: credential.id } };
  const rotate = useChange((key: string) => take(api.PATCH("/v3/credentials/{credential_id}", { params, body: { key } })), onDone);
  return (
    <Form send={() => rotate.mutate(key)} call={rotate} label="Rotate">
      <p>Sessions that use this credential switch to the new key at their next model call.</p>
      <KeyField value={key} onChange={setKey} />
    </Form>
  );
}
