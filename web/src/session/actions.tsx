// Open actions: what a turn waits for, and the forms that send a result or a decision.
import { type FormEvent, useState } from "react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { api, type Schemas, take } from "../api/client";
import { Trouble } from "../parts/basics";
import { Check, Select } from "../parts/form";
import { words } from "../parts/format";
import { ruleText } from "../parts/permissions";
import { Json } from "../parts/text";
import { Questions } from "./questions";

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
    <section className="open-actions" aria-label="Waits for you">
      <ul className="cards">
        {actions.map((action) => (
          <ActionCard key={action.id} action={action} />
        ))}
      </ul>
    </section>
  );
}

type Sent = Schemas["SentEvent"];

/** Sends one event of an action. */
function useAnswer(action: Action) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (event: Sent) => {
      const params = { path: { session_id: action.session_id } };
      return take(api.POST("/v3/sessions/{session_id}/events", { params, body: { events: [event] } }));
    },
    onSettled: () => {
      queries.invalidateQueries({ queryKey: ["pending"] });
      queries.invalidateQueries({ queryKey: ["session", action.session_id] });
    },
  });
}

/** An open action with the form that ends it. `names` shows the session that it belongs to. */
export function ActionCard({ action, names = false }: { action: Action; names?: boolean }) {
  return (
    <li className="action">
      <p className="under">
        <strong className="mono">{action.tool}</strong>
        <span className="quiet">{words(action.kind)}</span>
        {names && <SessionLink id={action.session_id} />}
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
      {action.kind === "question" && !action.server ? (
        <Reply action={action} />
      ) : action.input == null ? (
        <LargeAction action={action} />
      ) : (
        <>
          <Json value={action.input} label={`Arguments of ${action.tool}`} />
          <Reply action={action} />
        </>
      )}
    </li>
  );
}

/** An action whose arguments are not in its event. Nobody decides before they are there. */
function LargeAction({ action }: { action: Action }) {
  const params = { path: { session_id: action.session_id, event_id: action.call_event_id } };
  const query = useQuery({
    queryKey: ["content", action.session_id, action.call_event_id],
    queryFn: ({ signal }) =>
      take(api.GET("/v3/sessions/{session_id}/events/{event_id}/content", { params, signal })),
    staleTime: Infinity,
  });
  if (!query.data) return query.error ? <Trouble error={query.error} /> : <p className="quiet">Reading the arguments…</p>;
  return (
    <>
      <Json value={(query.data as { input?: unknown }).input} label={`Arguments of ${action.tool}`} />
      <Reply action={action} />
    </>
  );
}

/** The session of an action, by its title if it has one. */
function SessionLink({ id }: { id: string }) {
  const params = { path: { session_id: id } };
  const query = useQuery({
    queryKey: ["session", id],
    queryFn: ({ signal }) => take(api.GET("/v3/sessions/{session_id}", { params, signal })),
  });
  const title = query.data?.title;
  return (
    <Link href={`/sessions/${id}`} className="small">
      {title && `${title} `}
      <span className="mono">{id}</span>
    </Link>
  );
}

function Reply({ action }: { action: Action }) {
  if (action.kind === "confirmation") return <Decide action={action} />;
  return action.kind === "question" ? <AnswerQuestions action={action} /> : <SendResult action={action} />;
}

function AnswerQuestions({ action }: { action: Action }) {
  const { mutate, ...call } = useAnswer(action);
  const send = (answers: Schemas["QuestionAnswer"][] | undefined) =>
    mutate({ type: "user.answer", action_id: action.id, answers: answers ?? [], declined: answers === undefined });
  const { questions, server, message } = action;
  return <Questions questions={questions ?? []} server={server} message={message} send={{ ...call, mutate: send }} />;
}

function SendResult({ action }: { action: Action }) {
  const [text, setText] = useState("");
  const [failed, setFailed] = useState(false);
  const send = useAnswer(action);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const content = [{ type: "text" as const, text }];
    send.mutate({ type: "user.custom_tool_result", action_id: action.id, content, is_error: failed });
  };
  return (
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
  );
}

/** Allows a call once or, with a rule, for the session; or rejects it with words for the agent. */
function Decide({ action }: { action: Action }) {
  const [message, setMessage] = useState("");
  const [rule, setRule] = useState("");
  const [others, setOthers] = useState(false);
  const send = useAnswer(action);
  const offered = action.always ?? [];
  const decide = (fields: Pick<Extract<Sent, { type: "user.tool_confirmation" }>, "decision" | "rule" | "message" | "others">) =>
    send.mutate({ type: "user.tool_confirmation", action_id: action.id, args_hash: action.args_hash, ...fields });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    decide(rule === "" ? { decision: "once" } : { decision: "always", rule: offered[Number(rule)] });
  };
  const isDone = send.isPending || send.isSuccess;
  return (
    <form onSubmit={submit}>
      {action.reason === "loop" && <p className="quiet small">The agent has made the same calls again and again.</p>}
      {action.rule && <p className="quiet small">Asked by the rule: {ruleText(action.rule)}</p>}
      <textarea
        aria-label={`Words for the agent, if ${action.tool} is rejected`}
        placeholder="If you reject it: what should the agent do instead?"
        rows={Math.min(8, Math.max(1, message.split("\n").length))}
        value={message}
        onChange={(event) => setMessage(event.target.value)}
      />
      {offered.length > 0 && (
        <Select label="Allow" value={rule} onChange={setRule}>
          <option value="">this call only</option>
          {offered.map((one, at) => (
            <option key={at} value={at}>
              for the rest of the session: {ruleText(one)}
            </option>
          ))}
        </Select>
      )}
      <div className="under">
        <button type="submit" className="main" disabled={isDone}>
          {send.isPending ? "Sending…" : send.isSuccess ? "Sent" : "Approve"}
        </button>
        <button
          type="button"
          className="danger"
          disabled={isDone}
          onClick={() => decide({ decision: "reject", ...(message && { message }), ...(others && { others: "reject" as const }) })}
        >
          Reject
        </button>
        <Check label="Reject the other calls that wait too" value={others} onChange={setOthers} />
      </div>
      <Trouble error={send.error} />
    </form>
  );
}
