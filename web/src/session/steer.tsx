// Input field for messages to the agent and answers to its questions, with files.
import { type FormEvent, type KeyboardEvent, useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import type { SentFile } from "../api/stored-files";
import { AttachButton, AttachedList } from "../parts/attach";
import { useAttached } from "../parts/attached";
import { Trouble } from "../parts/basics";
import type { MessageRow } from "../timeline/rows";

type Session = Schemas["Session"];
/** Empty: the message waits for the next turn. */
type Mode = Schemas["SteerMode"] | "";

export function Steer({ session, question }: { session: Session; question?: MessageRow }) {
  if (session.status === "archived") {
    return <p className="steer quiet">This session is archived. Its log stays readable.</p>;
  }
  if (!session.agent_id) {
    return <p className="steer quiet">This session has no agent to receive messages.</p>;
  }
  return <Composer session={session} asks={session.status === "awaiting_input" ? question : undefined} />;
}

interface Sent {
  text: string;
  content: SentFile[];
}

/** Sends a message. `mode` says what it does to a running turn. */
function useSend(session: string, mode: Mode, onSent: (sent: Sent) => void) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: ({ text, content }: Sent) =>
      take(
        api.POST("/v3/sessions/{session_id}/messages", {
          params: { path: { session_id: session } },
          body: { ...(text.trim() && { text }), ...(content.length > 0 && { content }), ...(mode && { mode }) },
        }),
      ),
    onSuccess: (_, sent) => {
      onSent(sent);
      queries.invalidateQueries({ queryKey: ["session", session] });
    },
  });
}

function Composer({ session, asks }: { session: Session; asks?: MessageRow }) {
  const [text, setText] = useState("");
  const [mode, setMode] = useState<Mode>("");
  const attached = useAttached();
  const send = useSend(session.id, mode, (sent) => {
    setText((now) => (now === sent.text ? "" : now));
    attached.clear(sent.content);
  });
  const isBusy = send.isPending || attached.isUploading;
  const isEmpty = !text.trim() && attached.files.length === 0;
  const submit = async (event?: FormEvent) => {
    event?.preventDefault();
    if (isEmpty || isBusy) return;
    send.reset();
    const content = await attached.uploadAll();
    if (content) send.mutate({ text, content });
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
      event.preventDefault();
      void submit();
    }
  };
  return (
    <form className="steer" onSubmit={submit} data-asks={asks ? "" : undefined} {...attached.zone}>
      {asks && <Suggestions options={asks.options} disabled={isBusy} onChoose={(text) => send.mutate({ text, content: [] })} />}
      <Trouble error={send.error} />
      <AttachedList attached={attached} />
      <div className="line">
        <textarea
          aria-label={asks ? "Your answer" : "Message to the agent"}
          placeholder={asks ? "Your answer" : "Steer the agent…"}
          rows={Math.min(8, Math.max(2, text.split("\n").length))}
          value={text}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={onKeyDown}
        />
        <button type="submit" className="main" disabled={isEmpty || isBusy}>
          {isBusy ? "Sending…" : asks ? "Answer" : "Send"}
        </button>
      </div>
      <div className="below quiet small">
        <AttachButton attached={attached} />
        Enter sends, Shift+Enter inserts a line break.
        {session.status === "running" && <ModeSelect mode={mode} onChange={setMode} />}
      </div>
    </form>
  );
}

function Suggestions({ options, disabled, onChoose }: { options: string[]; disabled: boolean; onChoose: (option: string) => void }) {
  if (options.length === 0) return null;
  return (
    <div className="options" role="group" aria-label="Suggested answers">
      {options.map((option) => (
        <button key={option} type="button" disabled={disabled} onClick={() => onChoose(option)}>
          {option}
        </button>
      ))}
    </div>
  );
}

function ModeSelect({ mode, onChange }: { mode: Mode; onChange: (mode: Mode) => void }) {
  return (
    <label className="check">
      The running turn
      <select value={mode} onChange={(event) => onChange(event.target.value as Mode)}>
        <option value="">ends first</option>
        <option value="steer">reads it before its next step</option>
        <option value="interrupt">is interrupted</option>
      </select>
    </label>
  );
}
