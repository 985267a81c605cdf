// API keys: made with scopes, shown once, replaced, revoked.
import { type FormEvent, useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Age, Confirmed, Dialog, Empty, Field, Loading, More, Trouble } from "../parts/basics";
import { useList } from "../parts/lists";
import { ShownOnce } from "../parts/secret";

type Key = Schemas["Key"];

const LIST = ["keys"];
/** What keys are usually for; any scope can be typed. */
const USES = [
  ["*", "everything"],
  ["sessions:*, agents:read", "a back-end that runs sessions"],
  ["sessions:read, agents:read, usage:read", "only look"],
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
      <div className="head">
        <h1>API keys</h1>
        <button type="button" className="main" onClick={() => setMaking(true)}>
          New key
        </button>
      </div>
      <Trouble error={query.error} retry={() => query.refetch()} />
      {query.isPending && <Loading />}
      {query.isSuccess && list.length === 0 && (
        <Empty title="No keys">
          <p>Each program gets a key of its own, with the scopes that it needs and no more.</p>
        </Empty>
      )}
      <ul className="cards">
        {list.map((key) => (
          <Card key={key.id} of={key} />
        ))}
      </ul>
      <More query={query} />
      {making && (
        <NewKey onMade={() => queries.invalidateQueries({ queryKey: LIST })} onClose={() => setMaking(false)} />
      )}
    </>
  );
}

/** Why a key opens nothing any more. */
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
            used <Age ts={key.last_used_at} />
          </>
        ) : (
          "never used"
        )}
        {key.expires_at && !why && (
          <>
            , ends <Age ts={key.expires_at} />
          </>
        )}
      </span>
      {!why && (
        <>
          <Confirmed label="Rotate" sure="Replace it?" disabled={rotate.isPending} onConfirm={() => rotate.mutate()} />
          <Confirmed label="Revoke" sure="Revoke it?" disabled={revoke.isPending} onConfirm={() => revoke.mutate()} />
        </>
      )}
      <Trouble error={rotate.error ?? revoke.error} />
      {rotate.data && (
        <Dialog title={`New key for ${key.name}`} onClose={rotate.reset}>
          <ShownOnce secret={rotate.data.key} label="API key" onDone={rotate.reset}>
            <p>The old key goes on for a day. The new one is shown this once:</p>
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
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const days = Number(form.days);
    const expires_at = days > 0 ? new Date(Date.now() + days * DAY_MS).toISOString() : undefined;
    make.mutate({ name: form.name, scopes: form.scopes.split(/[\s,]+/).filter(Boolean), expires_at });
  };
  return (
    <Dialog title="New key" onClose={onClose}>
      {make.isSuccess ? (
        <ShownOnce secret={make.data.key} label="API key" onDone={onClose}>
          <p>Keep it now: the service stores only a hash of it, and shows it this once.</p>
        </ShownOnce>
      ) : (
        <form onSubmit={submit}>
          <Field label="Name" hint="Whose it is, or what for.">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} required value={form.name} onChange={(event) => set({ name: event.target.value })} />
            )}
          </Field>
          <Field label="Scopes" hint="As in sessions:read or agents:*, with commas; no more than your own key has.">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} required value={form.scopes} onChange={(event) => set({ scopes: event.target.value })} />
            )}
          </Field>
          <p className="actions" role="group" aria-label="Usual scopes">
            {USES.map(([scopes, use]) => (
              <button key={scopes} type="button" className="small" onClick={() => set({ scopes })}>
                {use}
              </button>
            ))}
          </p>
          <Field label="Ends after days" hint="Empty: it goes on until it is revoked.">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} type="number" min="1" max="3650" value={form.days} onChange={(event) => set({ days: event.target.value })} />
            )}
          </Field>
          <Trouble error={make.error} />
          <footer>
            <button type="submit" className="main" disabled={make.isPending}>
              Make the key
            </button>
          </footer>
        </form>
      )}
    </Dialog>
  );
}
