// Form of a webhook or destination, and its signing secret, which is shown once.
import { useState } from "react";
import { useMutation } from "@tanstack/react-query";
import type { Schemas } from "../api/client";
import { Dialog } from "./basics";
import { Form, Select, TextField } from "./form";
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
  const send = () => {
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
        <Form send={send} call={add} label="Add">
          <TextField label="URL" hint="Public https URL." type="url" required value={form.url} onChange={(url) => set({ url })} />
          <Select label="Level" hint="A level includes the ones before it." value={form.level} onChange={(level) => set({ level: level as Level })}>
            <option value="user">user: messages and turn ends</option>
            <option value="progress">progress: also tool calls</option>
            <option value="internal">internal: all events</option>
          </Select>
          <TextField
            label="Event types"
            hint="Comma-separated, for example turn.completed, tool.*; empty for all."
            value={form.types} onChange={(types) => set({ types })}
          />
        </Form>
      )}
    </Dialog>
  );
}
