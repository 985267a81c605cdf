// What a timeline shows: one row for what a reader takes in at once, folded from
// the events of the log as they come.
import type { Body, Event } from "../api/follow";

interface Base {
  /** Stable over changes of the row. */
  key: string;
  /** Of the event that began it. */
  seq: number;
  ts: string;
}

export interface TurnRow extends Base {
  kind: "turn";
  turn: string;
  number: number;
  attempt: number;
}
export interface StepRow extends Base {
  kind: "step";
  index: number;
  model: string;
  duration_ms: number;
  usage: Record<string, number>;
}
export interface MessageRow extends Base {
  kind: "message";
  role: "user" | "agent";
  text: string;
  /** Words beside tool calls, as opposed to an answer. */
  narration: boolean;
  question: boolean;
  options: string[];
  /** What the caller sent beside the text. */
  input?: unknown;
  from?: string;
  /** Path of the whole body when the text here was cut. */
  whole?: string;
}
export interface ThinkingRow extends Base {
  kind: "thinking";
  text: string;
}
export interface ToolRow extends Base {
  kind: "tool";
  call: string;
  tool: string;
  summary: string;
  input: unknown;
  state: "running" | "ok" | "failed" | "not_run" | "unknown";
  exec?: { command: string; exit_code: number; cause: string; bytes: number; duration_ms: number };
  output?: string;
  duration_ms?: number;
  whole?: string;
}
export interface NoticeRow extends Base {
  kind: "notice";
  tone: "plain" | "warn" | "bad";
  title: string;
  detail?: string;
  retry_at?: string;
}
export interface EndRow extends Base {
  kind: "end";
  turn: string;
  reason: string;
  seconds: number;
  usage: Record<string, number>;
  error?: { code: string; message: string };
  limit?: string;
}
export type Row = TurnRow | StepRow | MessageRow | ThinkingRow | ToolRow | NoticeRow | EndRow;

/** What a log says beside its rows. */
export interface Tally {
  turns: number;
  /** Model calls of the newest turn. */
  steps: number;
  /** When the turn that runs began. */
  running_since?: string;
  /** The question that waits for its answer. */
  question?: MessageRow;
  /** Tokens of each turn, by kind. */
  usage: { turn: number; usage: Record<string, number> }[];
}

/** Folds events into rows. Changed rows are new objects, so that a view sees them. */
export class Timeline {
  readonly rows: Row[] = [];
  readonly tally: Tally = { turns: 0, steps: 0, usage: [] };
  private readonly calls = new Map<string, number>();
  private readonly turns = new Map<string, number>();

  add(event: Event): void {
    const base = { key: event.id, seq: event.seq, ts: event.ts };
    const whole = event.content_ref ?? undefined;
    const body = event.body;
    switch (event.type) {
      case "user.message":
        this.tally.question = undefined;
        return this.push(message(base, body, "user", event, whole));
      case "agent.message": {
        const row = message(base, body, "agent", event, whole);
        if (row.question) this.tally.question = row;
        return this.push(row);
      }
      case "agent.thinking":
        return this.push({ ...base, kind: "thinking", text: text(body.text) });
      case "turn.started":
        return this.started(base, body);
      case "step.completed":
        this.tally.steps = number(body.index);
        return this.push({
          ...base,
          kind: "step",
          index: number(body.index),
          model: text(body.model),
          duration_ms: number(body.duration_ms),
          usage: usage(body),
        });
      case "tool.call":
        this.calls.set(text(body.call_id), this.rows.length);
        return this.push({
          ...base,
          kind: "tool",
          call: text(body.call_id),
          tool: text(body.tool),
          summary: text(body.args_summary),
          input: body.input,
          state: "running",
          whole,
        });
      case "exec.completed":
        return this.call(body, { exec: body as unknown as ToolRow["exec"] });
      case "tool.result":
        return this.call(body, {
          output: text(body.output),
          duration_ms: number(body.duration_ms),
          state: outcome(body),
          ...(whole ? { whole } : {}),
        });
      case "turn.completed":
        return this.completed(base, body);
      default: {
        const notice = noticed(event);
        if (notice) this.push({ ...base, kind: "notice", ...notice });
      }
    }
  }

  private started(base: Base, body: Body): void {
    const turn = text(body.turn_id);
    const known = this.turns.get(turn);
    const place = known ?? ++this.tally.turns;
    this.turns.set(turn, place);
    if (known === undefined) this.tally.steps = 0;
    this.tally.running_since ??= base.ts;
    this.push({ ...base, kind: "turn", turn, number: place, attempt: number(body.attempt) });
  }

  private completed(base: Base, body: Body): void {
    const turn = text(body.turn_id);
    this.tally.running_since = undefined;
    const place = this.turns.get(turn);
    if (place !== undefined) this.tally.usage.push({ turn: place, usage: usage(body) });
    this.push({
      ...base,
      kind: "end",
      turn,
      reason: text(body.yield_reason),
      seconds: number(body.active_seconds),
      usage: usage(body),
      error: body.error as EndRow["error"],
      limit: body.limit === undefined ? undefined : text(body.limit),
    });
  }

  private call(body: Body, change: Partial<ToolRow>): void {
    const at = this.calls.get(text(body.call_id));
    const row = at === undefined ? undefined : this.rows[at];
    if (at !== undefined && row?.kind === "tool") this.rows[at] = { ...row, ...change };
  }

  private push(row: Row): void {
    this.rows.push(row);
  }
}

const text = (value: unknown): string => (typeof value === "string" ? value : "");
const number = (value: unknown): number => (typeof value === "number" ? value : 0);
const usage = (body: Body) => (body.usage ?? {}) as Record<string, number>;

function message(base: Base, body: Body, role: "user" | "agent", event: Event, whole?: string): MessageRow {
  const envelope = body.envelope as { source?: string } | undefined;
  return {
    ...base,
    kind: "message",
    role,
    text: text(body.text),
    narration: role === "agent" && event.level !== "user",
    question: body.awaiting_input === true,
    options: Array.isArray(body.options) ? body.options.map(text) : [],
    input: body.input,
    from: envelope?.source ?? event.actor.display ?? undefined,
    whole,
  };
}

function outcome(body: Body): ToolRow["state"] {
  if (body.outcome === "unknown" || body.outcome === "not_run") return body.outcome;
  return body.is_error === true ? "failed" : "ok";
}

function noticed(event: Event): Pick<NoticeRow, "tone" | "title" | "detail" | "retry_at"> | undefined {
  const { body } = event;
  const of = () => `${number(body.used).toLocaleString()} of ${number(body.allowed).toLocaleString()}`;
  switch (event.type) {
    case "error.model":
    case "error.runtime":
    case "error.task": {
      const who = { "error.model": "The model", "error.runtime": "The service", "error.task": "The task" }[event.type];
      const retry_at = text(body.retry_at) || undefined;
      const title = `${who} failed: ${text(body.code).replaceAll("_", " ")}`;
      return { tone: retry_at ? "warn" : "bad", title, detail: text(body.message), retry_at };
    }
    case "limit.warning":
      return { tone: "warn", title: `80 % of the limit “${text(body.limit)}” are used`, detail: of() };
    case "limit.exceeded":
      return { tone: "bad", title: `The limit “${text(body.limit)}” is reached`, detail: of() };
    case "sandbox.created":
      return { tone: "plain", title: "Sandbox attached", detail: `in ${number(body.duration_ms)} ms` };
    case "sandbox.lost":
      return { tone: "warn", title: "Sandbox lost", detail: text(body.reason) };
    case "sandbox.terminated":
      return { tone: "plain", title: "Sandbox ended", detail: text(body.reason) };
    case "turn.cancel_requested":
      return { tone: "plain", title: body.mode === "interrupt" ? "Interrupted by a message" : "Cancel requested" };
    case "session.status_changed":
      return { tone: "plain", title: `Session ${text(body.to)}` };
    case "session.updated":
      return { tone: "plain", title: `Changed: ${Object.keys(body).join(", ")}` };
    default:
      return undefined;
  }
}
