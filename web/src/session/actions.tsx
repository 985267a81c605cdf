// Open actions: what a turn waits for, and the form that sends a result.
import { type FormEvent, useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { api, type Schemas, take } from "../api/client";
import { Trouble } from "../parts/basics";
import { Check } from "../parts/form";
import { words } from "../parts/format";
import { Json } from "../parts/text";

type Action = Schemas["PendingAction"];
type Session = Schemas["Session"];

/** The open actions of a session that its turn needs, above the field for messages. */
export function OpenActions({ session }: { session: Session }) {
  const params = { path: { session_id: session.id } };
  const mayWait = session.last_turn?.state === "waiting" || session.status === "running";
  const query = useQuery({
    // Below the key of the session, so it is read again whenever the log reports a change.
    queryKey: ["session", session.id, "pending"],
    queryFn: ({ signal }) => take(api.GET("/v3/sessions/{session_id}/pending", { params, signal })),
    enabled: mayWait,
  });
  const actions = (mayWait && query.data?.data) || [];
  if (actions.length === 0) return <Trouble error={query.error} />;
  return (
    <section className="open-actions" aria-label="Waits for a result">
      <ul className="cards">
        {actions.map((action) => (
          <ActionCard key={action.id} action={action} />
        ))}
      </ul>
    </section>
  );
}

/** An open action with the form that ends it. `names` shows the session that it belongs to. */
export function ActionCard({ action, names = false }: { action: Action; names?: boolean }) {
  const [text, setText] = useState("");
  const [failed, setFailed] = useState(false);
  const queries = useQueryClient();
  const send = useMutation({
    mutationFn: () => {
      const content = [{ type: "text" as const, text }];
      const event = { type: "user.custom_tool_result" as const, action_id: action.id, content, is_error: failed };
      const params = { path: { session_id: action.session_id } };
      return take(api.POST("/v3/sessions/{session_id}/events", { params, body: { events: [event] } }));
    },
    onSettled: () => {
      queries.invalidateQueries({ queryKey: ["pending"] });
      queries.invalidateQueries({ queryKey: ["session", action.session_id] });
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    send.mutate();
  };
  return (
    <li className="action">
      <p className="under">
        <strong className="mono">{action.tool}</strong>
        <span className="quiet">{words(action.kind)}</span>
        {names && (
          <Link href={`/sessions/${action.session_id}`} className="mono small">
            {action.session_id}
          </Link>
        )}
        <span className="quiet small">
          expires at {new Date(action.expires_at).toLocaleString()}
          {action.on_expiry === "end_turn" && ", and then the turn ends"}
        </span>
        {action.claimed_until && (
          <span className="badge" data-tone="live">
            claimed until {new Date(action.claimed_until).toLocaleTimeString()}
          </span>
        )}
      </p>
      {action.input == null ? (
        <p className="quiet">The arguments are large; the timeline has them.</p>
      ) : (
        <Json value={action.input} label={`Arguments of ${action.tool}`} />
      )}
      <form onSubmit={submit}>
        <textarea
          aria-label={`Result of ${action.tool}`}
          placeholder="Result for the agent"
          rows={Math.min(8, Math.max(2, text.split("\n").length))}
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <div className="under">
          <button type="submit" className="main" disabled={send.isPending || send.isSuccess}>
            {send.isPending ? "Sending…" : send.isSuccess ? "Sent" : "Send result"}
          </button>
          <Check label="The call failed" value={failed} onChange={setFailed} />
        </div>
        <Trouble error={send.error} />
      </form>
    </li>
  );
}
