// Form of a webhook or destination, and its signing secret, which is shown once.
import { type FormEvent, useState } from "react";
import { useMutation } from "@tanstack/react-query";
import type { Schemas } from "../api/client";
import { Dialog, Field, Trouble } from "./basics";
import { ShownOnce } from "./secret";

type Level = Schemas["Level"];

export function ReceiverForm(props: {
  title: string;
  add: (body: Schemas["CreateDestination"]) => Promise<{ secret?: string | null }>;
  onAdded: () => void;
  onClose: () => void;
}) {
  const [form, setForm] = useState({ url: "", level: "user" as Level, types: "" });
  const set = (change: Partial<typeof form>) => setForm({ ...form, ...change });
  const add = useMutation({ mutationFn: props.add, onSuccess: props.onAdded });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const types = form.types.split(/[\s,]+/).filter(Boolean);
    add.mutate({ url: form.url, level: form.level, ...(types.length > 0 && { types }) });
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      {add.isSuccess ? (
        <ShownOnce secret={add.data.secret} label="Signing secret" onDone={props.onClose}>
          <p>Deliveries are signed with this secret (Standard Webhooks). It is shown only once:</p>
        </ShownOnce>
      ) : (
        <form onSubmit={submit}>
          <Field label="URL" hint="Public https URL.">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} type="url" required value={form.url} onChange={(event) => set({ url: event.target.value })} />
            )}
          </Field>
          <Field label="Level" hint="A level includes the ones before it.">
            {(id, hint) => (
              <select id={id} aria-describedby={hint} value={form.level} onChange={(event) => set({ level: event.target.value as Level })}>
                <option value="user">user: messages and turn ends</option>
                <option value="progress">progress: also tool calls</option>
                <option value="internal">internal: all events</option>
              </select>
            )}
          </Field>
          <Field label="Event types" hint="Comma-separated, for example turn.completed, tool.*; empty for all.">
            {(id, hint) => (
              <input id={id} aria-describedby={hint} value={form.types} onChange={(event) => set({ types: event.target.value })} />
            )}
          </Field>
          <Trouble error={add.error} />
          <footer>
            <button type="submit" className="main" disabled={add.isPending}>
              Add
            </button>
          </footer>
        </form>
      )}
    </Dialog>
  );
}
