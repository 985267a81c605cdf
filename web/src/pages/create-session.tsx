// Form of a new session.
import { useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link, useLocation } from "wouter";
import { api, type Schemas, take } from "../api/client";
import { AttachButton, AttachedList } from "../parts/attach";
import { useAttached } from "../parts/attached";
import { Dialog } from "../parts/basics";
import { Check, Form, readInput, Select, TextArea, TextField } from "../parts/form";
import { limitsOf, LimitFields } from "../parts/limits";
import { useAgents } from "./agents";

/** Creates a session, and goes to it. */
function useCreate(onClose: () => void) {
  const [, go] = useLocation();
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (body: Schemas["CreateSession"]) => take(api.POST("/v3/sessions", { body })),
    onSuccess: ({ session }) => {
      queries.invalidateQueries({ queryKey: ["sessions"] });
      onClose();
      go(`/sessions/${session.id}`);
    },
  });
}

export function CreateSession({ onClose, agent: first }: { onClose: () => void; agent?: string }) {
  const agents = useAgents();
  const [agent, setAgent] = useState(first ?? "");
  const [input, setInput] = useState("");
  const [isObject, setIsObject] = useState(false);
  const [title, setTitle] = useState("");
  const [webhook, setWebhook] = useState("");
  const [limits, setLimits] = useState<Record<string, string>>({});

  const create = useCreate(onClose);
  const attached = useAttached();
  const isBusy = create.isPending || attached.isUploading;
  const chosen = agent || agents.list[0]?.id || "";
  const send = () => {
    const wanted = limitsOf(limits);
    const body = {
      agent: chosen,
      input: input.trim() || isObject ? readInput(input, isObject) : undefined,
      title: title.trim() || undefined,
      ...(webhook.trim() && { webhook: webhook.trim() }),
      ...(Object.keys(wanted).length > 0 && { limits: wanted }),
    };
    create.reset();
    void attached.uploadAll().then((content) => content && create.mutate({ ...body, ...(content.length > 0 && { content }) }));
  };
  return (
    <Dialog title="New session" onClose={onClose}>
      {agents.query.isSuccess && agents.list.length === 0 ? (
        <p>
          A session runs an agent, and there is none yet. <Link href="/agents">Create an agent first.</Link>
        </p>
      ) : (
        <div {...attached.zone}>
          <Form send={send} call={{ error: create.error, isPending: isBusy }} label={isBusy ? "Creating…" : "Create session"} disabled={!chosen}>
            <Select label="Agent" value={chosen} onChange={setAgent}>
              {agents.list.map((agent) => (
                <option key={agent.id} value={agent.id}>
                  {agent.name} · {agent.model}
                </option>
              ))}
            </Select>
            <TextArea
              label="Input"
              hint="The task. Without text and files, the session waits for its first message."
              rows={5} autoFocus className={isObject ? "mono" : ""} value={input} onChange={setInput}
            />
            <AttachedList attached={attached} />
            <div className="under">
              <AttachButton attached={attached} />
              <Check label="Parse the input as a JSON object" value={isObject} onChange={setIsObject} />
            </div>
            <TextField label="Title" hint="Optional." value={title} onChange={setTitle} />
            <details>
              <summary>Limits and webhook</summary>
              <LimitFields values={limits} onChange={setLimits} />
              <TextField
                label="Webhook"
                hint="https URL that receives messages and turn ends. Its signing secret is only in the API response; to see a secret, add a destination in the session instead."
                type="url" value={webhook} onChange={setWebhook}
              />
            </details>
          </Form>
        </div>
      )}
    </Dialog>
  );
}
