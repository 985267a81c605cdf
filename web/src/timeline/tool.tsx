// A tool call: one line that expands to its input and output.
import { diffLines } from "diff";
import type { Schemas } from "../api/client";
import { span, words } from "../parts/format";
import { Json, Output } from "../parts/text";
import { FileList } from "./files";
import type { RowProps } from "./view";
import type { ToolRow } from "./rows";
import { WholeBody } from "./whole";

const STATES: Record<ToolRow["state"], [string, string]> = {
  running: ["●", "running"],
  waiting: ["◷", "waits for a result"],
  ok: ["✓", "done"],
  failed: ["✕", "failed"],
  not_run: ["–", "not run"],
  unknown: ["?", "outcome unknown after a crash"],
};

export function ToolCall({ row, isOpen, toggle }: RowProps<ToolRow>) {
  const [mark, said] = STATES[row.state];
  // A call that did not run took no time.
  const took = row.state === "not_run" ? undefined : (row.exec?.duration_ms ?? row.duration_ms);
  return (
    <div className="tool" data-state={row.state}>
      <button type="button" className="plain" aria-expanded={isOpen} onClick={toggle}>
        <span className="state" aria-hidden>
          {mark}
        </span>
        <span className="name">{row.tool}</span>
        <span className="what mono">{row.summary}</span>
        {row.by && <span className="quiet">{row.by}</span>}
        <span className="visually-hidden">{said}</span>
        {row.exec && row.exec.exit_code !== 0 && <span className="exit">exit {row.exec.exit_code}</span>}
        {took !== undefined && <span className="quiet took">{span(took)}</span>}
      </button>
      <FileList files={row.files} />
      {isOpen && (
        <div className="inside">
          <h3>Input</h3>
          <Input tool={row.tool} input={row.input} />
          {row.exec && (
            <p className="quiet">
              Exit code {row.exec.exit_code}, {words(row.exec.cause)}, {row.exec.bytes.toLocaleString("en")} bytes in{" "}
              {span(row.exec.duration_ms)}
            </p>
          )}
          {row.output !== undefined && (
            <>
              <h3>{row.state === "failed" ? "Error" : "Output"}</h3>
              {row.output === "" ? <p className="quiet">No output.</p> : <Output text={row.output} label={`Output of ${row.tool}`} />}
            </>
          )}
          {(row.state === "running" || row.state === "waiting") && <p className="quiet">No result yet.</p>}
          {row.whole && <WholeBody path={row.whole} />}
        </div>
      )}
    </div>
  );
}

/** The input in a readable form: a command, a change or a file; JSON otherwise. */
function Input({ tool, input }: { tool: string; input: unknown }) {
  const fields = (typeof input === "object" && input !== null ? input : {}) as Record<string, unknown>;
  if ((tool === "bash" || tool === "exec") && typeof fields.command === "string") {
    return <Output text={fields.command} label="Command" />;
  }
  if (tool === "edit" && typeof fields.old === "string" && typeof fields.new === "string") {
    return (
      <>
        <p className="mono">{String(fields.path ?? "")}</p>
        <Change before={fields.old} after={fields.new} />
      </>
    );
  }
  if (tool === "write" && typeof fields.content === "string") {
    return (
      <>
        <p className="mono">{String(fields.path ?? "")}</p>
        <Change before="" after={fields.content} />
      </>
    );
  }
  if (tool === "ask" && Array.isArray(fields.questions)) {
    return <Asked questions={fields.questions as Partial<Question>[]} />;
  }
  if (tool === "ask" && typeof fields.question === "string") {
    return <Asked questions={[{ question: fields.question, options: labels(fields.options) }]} />;
  }
  return <Json value={input} label={`Input of ${tool}`} />;
}

type Question = Schemas["Question"];

/** Options of a question that ends its turn: words only. */
function labels(options: unknown): Question["options"] {
  return Array.isArray(options) ? options.map((label) => ({ label: String(label) })) : [];
}

/** Questions as they were asked; the model may have left a part out. */
function Asked({ questions }: { questions: Partial<Question>[] }) {
  return (
    <ul>
      {questions.map(({ header, question, options }, at) => (
        <li key={at}>
          {header && <span className="quiet">{header}: </span>}
          {question}
          {(options ?? []).length > 0 && (
            <ul>
              {options?.map(({ label, description }) => (
                <li key={label}>
                  {label}
                  {description && <span className="quiet"> – {description}</span>}
                </li>
              ))}
            </ul>
          )}
        </li>
      ))}
    </ul>
  );
}

function Change({ before, after }: { before: string; after: string }) {
  const ended = (text: string) => (text === "" || text.endsWith("\n") ? text : `${text}\n`);
  const lines = diffLines(ended(before), ended(after)).flatMap((part, at) =>
    part.value
      .replace(/\n$/, "")
      .split("\n")
      .map((line, row) => ({ key: `${at}-${row}`, line, sign: part.added ? "+" : part.removed ? "-" : " " })),
  );
  return (
    <pre className="output" tabIndex={0} role="region" aria-label="Change">
      {lines.map(({ key, line, sign }) => (
        <span key={key} data-diff={{ "+": "add", "-": "cut" }[sign]}>{`${sign} ${line}\n`}</span>
      ))}
    </pre>
  );
}
