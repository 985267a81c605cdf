// The form that answers the questions of an agent or of an MCP server.
import { type FormEvent, useState } from "react";
import type { Schemas } from "../api/client";
import { Trouble } from "../parts/basics";

type Question = Schemas["Question"];
type Answer = Required<Schemas["QuestionAnswer"]>;

/** Answers all questions of an action at once. `send` is the call that sends them; nothing declines those of a server. */
export function Questions(props: {
  questions: Question[];
  server?: string | null;
  message?: string | null;
  send: { mutate: (answers: Schemas["QuestionAnswer"][] | undefined) => void; isPending: boolean; isSuccess: boolean; error: unknown };
}) {
  const { questions, server, message, send } = props;
  const [answers, setAnswers] = useState<Answer[]>(() => questions.map(() => ({ labels: [], text: "" })));
  const change = (at: number, answer: Answer) => setAnswers(answers.map((one, index) => (index === at ? answer : one)));
  const isAnswered = answers.every(({ labels, text }, at) => labels.length > 0 || text?.trim() || questions[at]!.optional);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    send.mutate(answers.map(({ labels, text }) => ({ labels, ...(text?.trim() && { text }) })));
  };
  return (
    <form onSubmit={submit}>
      {server && (
        <p>
          The server <span className="badge">{server}</span> asks: {message}
        </p>
      )}
      {questions.map((question, at) => (
        <Asked key={at} question={question} answer={answers[at]!} onChange={(answer) => change(at, answer)} />
      ))}
      <div className="under">
        <button type="submit" className="main" disabled={!isAnswered || send.isPending || send.isSuccess}>
          {send.isPending ? "Sending…" : send.isSuccess ? "Sent" : "Answer"}
        </button>
        {server && (
          <button type="button" disabled={send.isPending || send.isSuccess} onClick={() => send.mutate(undefined)}>
            Decline
          </button>
        )}
      </div>
      <Trouble error={send.error} />
    </form>
  );
}

function Asked(props: { question: Question; answer: Answer; onChange: (answer: Answer) => void }) {
  const { question, answer, onChange } = props;
  const options = question.options ?? [];
  const choose = (label: string, isChosen: boolean) => {
    const others = question.multiple ? answer.labels.filter((one) => one !== label) : [];
    onChange({ ...answer, labels: isChosen ? [...others, label] : others });
  };
  return (
    <fieldset className="question">
      <legend>
        {question.header && <span className="badge">{question.header}</span>} {question.question}
        {question.optional && <span className="quiet small"> (optional)</span>}
      </legend>
      {question.url && <Address url={question.url} />}
      {options.map(({ label, description }) => (
        <label key={label} className="check">
          <input
            // A click on the only choice takes it back, which a radio button does not allow.
            type="checkbox"
            checked={answer.labels.includes(label)}
            onChange={(event) => choose(label, event.target.checked)}
          />
          {label}
          {description && <span className="quiet small">{description}</span>}
        </label>
      ))}
      {(question.free_text || options.length === 0) && (
        <textarea
          aria-label={`Your words for: ${question.question}`}
          placeholder={options.length > 0 ? "Or in your own words" : hint(question.format)}
          rows={Math.min(8, Math.max(1, (answer.text ?? "").split("\n").length))}
          value={answer.text ?? ""}
          onChange={(event) => onChange({ ...answer, text: event.target.value })}
        />
      )}
    </fieldset>
  );
}

/** What a written answer has to be, in a few words. */
function hint(format: Schemas["AnswerFormat"] | null | undefined): string {
  if (!format) return "Your answer";
  const { type, minimum, maximum, min_length, max_length } = format;
  const what = type === "integer" ? "A whole number" : type === "number" ? "A number" : format.format ? `Text: ${format.format}` : "Your answer";
  const [least, most] = type === "string" ? [min_length, max_length] : [minimum, maximum];
  const bounds = [least != null && `at least ${least}`, most != null && `at most ${most}`].filter(Boolean).join(", ");
  const unit = type === "string" && bounds ? " characters" : "";
  return bounds ? `${what}, ${bounds}${unit}` : what;
}

/** An address that a server wants to be opened: its host stands out, and nothing but a web address is a link. */
function Address({ url }: { url: string }) {
  const parsed = URL.canParse(url) ? new URL(url) : undefined;
  if (!parsed || !["http:", "https:"].includes(parsed.protocol)) return <p className="bad">The server gave an address that cannot be opened: {url}</p>;
  return (
    <p>
      Opens <strong>{parsed.host}</strong>: <a href={parsed.href} target="_blank" rel="noopener noreferrer">{parsed.href}</a>
    </p>
  );
}
