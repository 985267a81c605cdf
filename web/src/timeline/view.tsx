// Timeline of a session. Follows the end while the agent works.
import { useState } from "react";
import { Badge } from "../parts/basics";
import { clock, count, dollars, short, span, tokens, words } from "../parts/format";
import { Json, Prose } from "../parts/text";
import { VirtualList } from "../parts/virtual";
import type { Log } from "../session/log";
import { FileList, ImageViewer } from "./files";
import type { EndRow, MessageRow, NoticeRow, Row, StepRow, TurnRow } from "./rows";
import { ToolCall } from "./tool";
import { WholeBody } from "./whole";

const NARRATION_PX = 45;
/** One line of thumbnails. */
const FILES_PX = 130;
const HEIGHTS: Record<Row["kind"], number> = {
  turn: 41,
  step: 26,
  message: 102,
  thinking: 27,
  tool: 29,
  notice: 28,
  end: 56,
};

/** Close estimates, so that a list that is scrolled far seldom corrects itself. */
const estimate = (row: Row) => {
  const height = row.kind === "message" && row.narration ? NARRATION_PX : HEIGHTS[row.kind];
  return "files" in row && row.files.length > 0 ? height + FILES_PX : height;
};

export function TimelineView({ log, status }: { log: Log; status: string }) {
  const { rows } = log.timeline;
  // Rows that are scrolled away are unmounted, so the set of open rows is stored here.
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const toggle = (key: string) => {
    const next = new Set(open);
    if (!next.delete(key)) next.add(key);
    setOpen(next);
  };
  const isQuiet = rows.length === 0 && log.connection === "live";
  return (
    <ImageViewer>
      <VirtualList
        label="Timeline"
        rows={rows}
        version={log.version}
        keyOf={(row) => row.key}
        estimate={estimate}
        follows
        render={(row) => <TimelineRow row={row} isOpen={open.has(row.key)} toggle={() => toggle(row.key)} />}
      >
        {isQuiet && <p className="empty">No events yet. Send the first message below.</p>}
        {status === "running" && (
          <p className="working" role="status">
            <i aria-hidden />
            The agent is working
          </p>
        )}
      </VirtualList>
    </ImageViewer>
  );
}

export interface RowProps<R> {
  row: R;
  isOpen: boolean;
  toggle: () => void;
}

function TimelineRow({ row, isOpen, toggle }: RowProps<Row>) {
  switch (row.kind) {
    case "turn":
      return <Turn row={row} />;
    case "step":
      return <Step row={row} />;
    case "message":
      return <Message row={row} isOpen={isOpen} toggle={toggle} />;
    case "thinking":
      return (
        <div className="thinking">
          <button type="button" className="plain" aria-expanded={isOpen} onClick={toggle}>
            Thinking
          </button>
          {isOpen && <Prose text={row.text} />}
        </div>
      );
    case "tool":
      return <ToolCall row={row} isOpen={isOpen} toggle={toggle} />;
    case "notice":
      return <Notice row={row} />;
    case "end":
      return <End row={row} />;
  }
}

function Turn({ row }: { row: TurnRow }) {
  return (
    <div className="turn">
      <h2>Turn {row.number}</h2>
      {row.attempt > 1 && <span className="quiet">attempt {row.attempt}: continued by another worker</span>}
      <time className="quiet" dateTime={row.ts}>
        {clock(row.ts)}
      </time>
    </div>
  );
}

function Step({ row }: { row: StepRow }) {
  const read = tokens(row.usage) - (row.usage.output_tokens ?? 0);
  return (
    <div className="step quiet">
      <span>Step {row.index}</span>
      <span className="mono">{row.model}</span>
      <span>{span(row.duration_ms)}</span>
      <span title={`${count(tokens(row.usage))} tokens`}>
        {short(read)} in, {short(row.usage.output_tokens ?? 0)} out
      </span>
    </div>
  );
}

function Message({ row, isOpen, toggle }: RowProps<MessageRow>) {
  const who = row.role === "user" ? (row.from ?? "You") : row.question ? "The agent asks" : "Agent";
  return (
    <article className="message" data-role={row.role} data-narration={row.narration ? "" : undefined}>
      <header>
        <strong>{who}</strong>
        <time className="quiet" dateTime={row.ts}>
          {clock(row.ts)}
        </time>
      </header>
      {row.text && row.output === undefined && (row.role === "agent" ? <Prose text={row.text} /> : <Said text={row.text} isOpen={isOpen} toggle={toggle} />)}
      <FileList files={row.files} />
      {row.options.length > 0 && (
        <ul className="asked">
          {row.options.map((option) => (
            <li key={option}>{option}</li>
          ))}
        </ul>
      )}
      {row.input !== undefined && (
        <details>
          <summary>Input object</summary>
          <Json value={row.input} label="Input object" />
        </details>
      )}
      {row.output !== undefined && <Json value={row.output} label="Output" />}
      {row.whole && <WholeBody path={row.whole} />}
    </article>
  );
}

/** Longer text of a caller is collapsed, in characters. */
const SAID_MAX = 900;

/** Text of a caller as it was written: it may be code, which is not Markdown. */
function Said({ text, isOpen, toggle }: { text: string; isOpen: boolean; toggle: () => void }) {
  const isLong = text.length > SAID_MAX;
  return (
    <>
      <p className="said">{isLong && !isOpen ? `${text.slice(0, SAID_MAX)}…` : text}</p>
      {isLong && (
        <button type="button" className="plain small" aria-expanded={isOpen} onClick={toggle}>
          {isOpen ? "Show less" : "Show all"}
        </button>
      )}
    </>
  );
}

function Notice({ row }: { row: NoticeRow }) {
  return (
    <div className="notice" data-tone={row.tone}>
      <strong>{row.title}</strong>
      {row.detail && <span>{row.detail}</span>}
      {row.retry_at && <span className="quiet">next attempt at {clock(row.retry_at)}</span>}
    </div>
  );
}

/** Advice after a turn that did not complete. */
const NEXT: Record<string, string> = {
  needs_input: "The agent waits for your answer.",
  budget_exceeded: "Raise the limit under Details, then send a message to continue.",
  deadline_exceeded: "Raise the limit under Details, or send a message to continue in a new turn.",
  max_turns: "Raise the limit under Details, then send a message.",
  error: "The session stays open: fix the cause, then send a message.",
};

function End({ row }: { row: EndRow }) {
  return (
    <div className="end" data-reason={row.reason}>
      <Badge of={row.reason} />
      {row.limit && <span>limit: {words(row.limit)}</span>}
      <span className="quiet">
        {row.seconds} s, {short(tokens(row.usage))} tokens{row.cost_micros > 0 && `, ${dollars(row.cost_micros)}`}
      </span>
      {row.error && (
        <p>
          {row.error.message} <span className="mono quiet">{row.error.code}</span>
        </p>
      )}
      {NEXT[row.reason] && <p className="quiet">{NEXT[row.reason]}</p>}
    </div>
  );
}
