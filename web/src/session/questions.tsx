// The form that answers the questions of an agent.
import { type FormEvent, useState } from "react";
import type { Schemas } from "../api/client";
import { Trouble } from "../parts/basics";

type Question = Schemas["Question"];
type Answer = Required<Schemas["QuestionAnswer"]>;

/** Answers all questions of an action at once. `send` is the call that sends them. */
export function Questions(props: {
  questions: Question[];
  send: { mutate: (answers: Schemas["QuestionAnswer"][]) => void; isPending: boolean; isSuccess: boolean; error: unknown };
}) {
  const { questions, send } = props;
  const [answers, setAnswers] = useState<Answer[]>(() => questions.map(() => ({ labels: [], text: "" })));
  const change = (at: number, answer: Answer) => setAnswers(answers.map((one, index) => (index === at ? answer : one)));
  const isAnswered = answers.every(({ labels, text }) => labels.length > 0 || text?.trim());
  const submit = (event: FormEvent) => {
    event.preventDefault();
    send.mutate(answers.map(({ labels, text }) => ({ labels, ...(text?.trim() && { text }) })));
  };
  return (
    <form onSubmit={submit}>
      {questions.map((question, at) => (
        <Asked key={at} question={question} answer={answers[at]!} onChange={(answer) => change(at, answer)} />
      ))}
      <div className="under">
        <button type="submit" className="main" disabled={!isAnswered || send.isPending || send.isSuccess}>
          {send.isPending ? "Sending…" : send.isSuccess ? "Sent" : "Answer"}
        </button>
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
      </legend>
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
          placeholder={options.length > 0 ? "Or in your own words" : "Your answer"}
          rows={Math.min(8, Math.max(1, (answer.text ?? "").split("\n").length))}
          value={answer.text ?? ""}
          onChange={(event) => onChange({ ...answer, text: event.target.value })}
        />
      )}
    </fieldset>
  );
}
