// Input field for messages to the agent and answers to its questions.
import { type FormEvent, type KeyboardEvent, useState } from "react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { api, type Schemas, take } from "../api/client";
import { Trouble } from "../parts/basics";
import type { MessageRow } from "../timeline/rows";

type Session = Schemas["Session"];

export function Steer({ session, question }: { session: Session; question?: MessageRow }) {
  const [text, setText] = useState("");
  const [mode, setMode] = useState<Schemas["SteerMode"] | "">("");
  const queries = useQueryClient();
  const send = useMutation({
    mutationFn: (text: string) =>
      take(
        api.POST("/v3/sessions/{session_id}/messages", {
          params: { path: { session_id: session.id } },
          body: { text, ...(mode && { mode }) },
        }),
      ),
    onSuccess: (_, sent) => {
      setText((now) => (now === sent ? "" : now));
      queries.invalidateQueries({ queryKey: ["session", session.id] });
    },
  });
  if (session.status === "archived") {
    return <p className="steer quiet">This session is archived. Its log stays readable.</p>;
  }
  if (!session.agent_id) {
    return <p className="steer quiet">This session has no agent to receive messages.</p>;
  }
  const asks = session.status === "awaiting_input" ? question : undefined;
  const submit = (event?: FormEvent) => {
    event?.preventDefault();
    if (text.trim() && !send.isPending) send.mutate(text);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
      event.preventDefault();
      submit();
    }
  };
  return (
    <form className="steer" onSubmit={submit} data-asks={asks ? "" : undefined}>
      {asks && asks.options.length > 0 && (
        <div className="options" role="group" aria-label="Suggested answers">
          {asks.options.map((option) => (
            <button key={option} type="button" disabled={send.isPending} onClick={() => send.mutate(option)}>
              {option}
            </button>
          ))}
        </div>
      )}
      <Trouble error={send.error} />
      <div className="line">
        <textarea
          aria-label={asks ? "Your answer" : "Message to the agent"}
          placeholder={asks ? "Your answer" : "Steer the agent…"}
          rows={Math.min(8, Math.max(2, text.split("\n").length))}
          value={text}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={onKeyDown}
        />
        <button type="submit" className="main" disabled={!text.trim() || send.isPending}>
          {send.isPending ? "Sending…" : asks ? "Answer" : "Send"}
        </button>
      </div>
      <p className="quiet small">
        Enter sends, Shift+Enter inserts a line break.
        {session.status === "running" && (
          <label className="check">
            The running turn
            <select value={mode} onChange={(event) => setMode(event.target.value as typeof mode)}>
              <option value="">ends first</option>
              <option value="steer">reads it before its next step</option>
              <option value="interrupt">is interrupted</option>
            </select>
          </label>
        )}
      </p>
    </form>
  );
}
