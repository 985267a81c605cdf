// API keys: created with scopes, shown once, rotated, revoked.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Age, Confirmed, Dialog, Empty, Trouble } from "../parts/basics";
import { Form, TextField } from "../parts/form";
import { ListPage } from "../parts/list-page";
import { useList } from "../parts/lists";
import { ShownOnce } from "../parts/secret";

type Key = Schemas["Key"];

const LIST = ["keys"];
/** Common sets of scopes; any scope can be typed. */
const USES = [
  ["*", "full access"],
  ["sessions:*, agents:read", "run sessions"],
  ["sessions:read, agents:read, usage:read", "read-only"],
] as const;
const DAY_MS = 86_400_000;

export function KeysPage() {
  const queries = useQueryClient();
  const [making, setMaking] = useState(false);
  const { query, list } = useList<Key>(LIST, (cursor, signal) =>
    take(api.GET("/v3/keys", { params: { query: { limit: 100, cursor } }, signal })),
  );
  return (
    <>
      <ListPage
        title="API keys"
        add="New key"
        onAdd={() => setMaking(true)}
        of={{ query, list }}
        empty={
          <Empty title="No keys">
            <p>Create one key per program, with only the scopes that it needs.</p>
          </Empty>
        }
      >
        <ul className="cards">
          {list.map((key) => (
            <Card key={key.id} of={key} />
          ))}
        </ul>
      </ListPage>
      {making && (
        <NewKey onMade={() => queries.invalidateQueries({ queryKey: LIST })} onClose={() => setMaking(false)} />
      )}
    </>
  );
}

/** Why a key is no longer valid. */
function ended(key: Key): string | undefined {
  if (key.revoked_at) return "revoked";
  return key.expires_at && Date.parse(key.expires_at) <= Date.now() ? "expired" : undefined;
}

function Card({ of: key }: { of: Key }) {
  const queries = useQueryClient();
  const params = { path: { key_id: key.id } };
  const onSuccess = () => queries.invalidateQueries({ queryKey: LIST });
  const rotate = useMutation({ mutationFn: () => take(api.POST("/v3/keys/{key_id}/rotate", { params })), onSuccess });
  const revoke = useMutation({ mutationFn: () => take(api.DELETE("/v3/keys/{key_id}", { params })), onSuccess });
  const why = ended(key);
  return (
    <li>
      <strong>{key.name}</strong>
      <span className="quiet mono">…{key.hint}</span>
      <span className="mono quiet">{key.scopes.join(" ")}</span>
      {why && <span className="badge" data-tone="bad">{why}</span>}
      <span className="quiet grow">
        {key.last_used_at ? (
          <>
            last used <Age ts={key.last_used_at} />
          </>
        ) : (
          "never used"
        )}
        {key.expires_at && !why && (
          <>
            , expires <Age ts={key.expires_at} />
          </>
        )}
      </span>
      {!why && (
        <>
          <Confirmed label="Rotate" sure="Confirm replace" disabled={rotate.isPending} onConfirm={() => rotate.mutate()} />
          <Confirmed label="Revoke" sure="Confirm revoke" disabled={revoke.isPending} onConfirm={() => revoke.mutate()} />
        </>
      )}
      <Trouble error={rotate.error ?? revoke.error} />
      {rotate.data && (
        <Dialog title={`New key for ${key.name}`} onClose={rotate.reset}>
          <ShownOnce secret={rotate.data.key} label="API key" onDone={rotate.reset}>
            <p>The old key stays valid for one day. The new key is shown only once:</p>
          </ShownOnce>
        </Dialog>
      )}
    </li>
  );
}

function NewKey({ onMade, onClose }: { onMade: () => void; onClose: () => void }) {
  const [form, setForm] = useState({ name: "", scopes: "sessions:*, agents:read", days: "" });
  const set = (change: Partial<typeof form>) => setForm({ ...form, ...change });
  const make = useMutation({
    mutationFn: (body: Schemas["CreateKey"]) => take(api.POST("/v3/keys", { body })),
    onSuccess: onMade,
  });
  const send = () => {
    const days = Number(form.days);
    const expires_at = days > 0 ? new Date(Date.now() + days * DAY_MS).toISOString() : undefined;
    // Typed by the user; the service refuses a scope that does not exist.
    const scopes = form.scopes.split(/[\s,]+/).filter(Boolean) as Schemas["CreateKey"]["scopes"];
    make.mutate({ name: form.name, scopes, expires_at });
  };
  return (
    <Dialog title="New key" onClose={onClose}>
      {make.isSuccess ? (
        <ShownOnce secret={make.data.key} label="API key" onDone={onClose}>
          <p>Copy it now: the service stores only a hash and shows the key only once.</p>
        </ShownOnce>
      ) : (
        <Form send={send} call={make} label="Create key">
          <TextField label="Name" hint="Owner or purpose of the key." required value={form.name} onChange={(name) => set({ name })} />
          <TextField
            label="Scopes"
            hint="Comma-separated, for example sessions:read, agents:*. At most the scopes of your own key."
            required value={form.scopes} onChange={(scopes) => set({ scopes })}
          />
          <p className="actions" role="group" aria-label="Common scopes">
            {USES.map(([scopes, use]) => (
              <button key={scopes} type="button" className="small" onClick={() => set({ scopes })}>
                {use}
              </button>
            ))}
          </p>
          <TextField
            label="Expires after days"
            hint="Empty: valid until revoked."
            type="number" min="1" max="3650" value={form.days} onChange={(days) => set({ days })}
          />
        </Form>
      )}
    </Dialog>
  );
}
