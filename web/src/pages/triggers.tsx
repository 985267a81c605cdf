// Triggers of an agent: inbound webhooks that start sessions without an API key.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Confirmed, Copy, Dialog, Empty, Trouble } from "../parts/basics";
import { ListPage } from "../parts/list-page";
import { useList } from "../parts/lists";
import { ShownOnce } from "../parts/secret";
import { TriggerForm, writeReact } from "./trigger-form";

type Trigger = Schemas["Trigger"];

export const triggersOf = (agent: string) => ["agent", agent, "triggers"];

export function Triggers({ agent }: { agent: string }) {
  const [open, setOpen] = useState<"new" | Trigger>();
  const { query, list } = useList<Trigger>(triggersOf(agent), (_, signal) =>
    take(api.GET("/v3/agents/{agent_id}/hooks", { params: { path: { agent_id: agent } }, signal })),
  );
  const close = () => setOpen(undefined);
  return (
    <>
      <ListPage
        title="Triggers"
        heading="h2"
        add="New trigger"
        onAdd={() => setOpen("new")}
        of={{ query, list }}
        empty={
          <Empty title="No triggers yet">
            <p>
              A trigger is a URL that receives signed messages. Each message starts a session: from GitHub, when a comment
              mentions the agent, or from your own program.
            </p>
            <ol>
              <li>Create a trigger and store the secret that is shown.</li>
              <li>Configure the sender with the URL and the secret; in GitHub, as a webhook of the repository.</li>
              <li>Mention the agent. The session appears in the list.</li>
            </ol>
          </Empty>
        }
      >
        <ul className="cards">
          {list.map((trigger) => (
            <Card key={trigger.id} trigger={trigger} onEdit={() => setOpen(trigger)} />
          ))}
        </ul>
      </ListPage>
      {open && (
        <Dialog title={open === "new" ? "New trigger" : "Edit the trigger"} onClose={close}>
          <TriggerForm agent={agent} trigger={open === "new" ? undefined : open} onDone={close} />
        </Dialog>
      )}
    </>
  );
}

function Card({ trigger, onEdit }: { trigger: Trigger; onEdit: () => void }) {
  const queries = useQueryClient();
  const params = { path: { agent_id: trigger.agent_id, trigger_id: trigger.id } };
  const onSuccess = () => queries.invalidateQueries({ queryKey: triggersOf(trigger.agent_id) });
  const turn = useMutation({
    mutationFn: () => take(api.PATCH("/v3/agents/{agent_id}/hooks/{trigger_id}", { params, body: { enabled: !trigger.enabled } })),
    onSuccess,
  });
  const rotate = useMutation({
    mutationFn: () => take(api.POST("/v3/agents/{agent_id}/hooks/{trigger_id}/rotate-secret", { params })),
    onSuccess,
  });
  const remove = useMutation({
    mutationFn: () => take(api.DELETE("/v3/agents/{agent_id}/hooks/{trigger_id}", { params })),
    onSuccess,
  });
  const address = `${window.location.origin}${trigger.path}`;
  return (
    <li>
      <strong>{trigger.title || (trigger.kind === "github" ? "GitHub" : "Signed messages")}</strong>
      <span className="quiet grow">{starts(trigger)}</span>
      {!trigger.enabled && (
        <span className="badge" data-tone="warn">
          <i aria-hidden />
          off
        </span>
      )}
      <p className="whole">
        <span className="mono">{address}</span> <Copy text={address} label="Copy the URL" />
      </p>
      <div className="actions whole">
        <button type="button" disabled={turn.isPending} onClick={() => turn.mutate()}>
          {trigger.enabled ? "Turn off" : "Turn on"}
        </button>
        <button type="button" onClick={onEdit}>
          Edit
        </button>
        <Confirmed label="New secret" sure="Confirm replace" disabled={rotate.isPending} onConfirm={() => rotate.mutate()} />
        <Confirmed label="Delete" sure="Confirm delete" disabled={remove.isPending} onConfirm={() => remove.mutate()} />
      </div>
      <Trouble error={turn.error ?? rotate.error ?? remove.error} />
      {rotate.data && (
        <Dialog title="New secret" onClose={rotate.reset}>
          <ShownOnce secret={rotate.data.secret} label="Trigger secret" onDone={rotate.reset}>
            <p>The old secret stays valid for one day. The new secret is shown only once:</p>
          </ShownOnce>
        </Dialog>
      )}
    </li>
  );
}

/** Describes what starts a session. */
function starts(trigger: Trigger): string {
  if (trigger.kind === "generic") return "every message signed with its secret";
  const parts = [trigger.mention && `@${trigger.mention} in a comment`, writeReact(trigger.react).replaceAll("\n", "; ")];
  const by = trigger.authors === "anyone" ? "by anyone" : "by members of the repository";
  return `${parts.filter(Boolean).join("; ") || "nothing yet"}, ${by}`;
}
