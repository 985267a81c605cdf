// Rows of the timeline, folded from the events of the log as they arrive.
import type { Body, Event } from "../api/follow";
import { number, text } from "./body";
import { noticed } from "./notices";

interface Base {
  /** Stable while the row changes. */
  key: string;
  /** Of the first event of the row. */
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
  /** Text beside tool calls, as opposed to an answer. */
  narration: boolean;
  question: boolean;
  options: string[];
  /** Input of the caller beside the text. */
  input?: unknown;
  from?: string;
  /** Path of the whole body, when the text here is truncated. */
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
  /** Caller who ran it; absent when the agent did. */
  by?: string;
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
  cost_micros: number;
  error?: { code: string; message: string };
  limit?: string;
}
export type Row = TurnRow | StepRow | MessageRow | ThinkingRow | ToolRow | NoticeRow | EndRow;

/** Totals of a log. */
export interface Tally {
  turns: number;
  /** Model calls of the newest turn. */
  steps: number;
  /** Start of the running turn. */
  running_since?: string;
  /** The question that waits for an answer. */
  question?: MessageRow;
  /** Tokens of each turn by kind, and its cost as far as prices are known. */
  usage: { turn: number; usage: Record<string, number>; cost_micros: number }[];
}

/** Folds events into rows. A changed row is a new object, so that views detect it. */
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
      case "exec.started":
        this.calls.set(text(body.exec_id), this.rows.length);
        return this.push({
          ...base,
          kind: "tool",
          call: text(body.exec_id),
          tool: "exec",
          by: event.actor.display ?? "a caller",
          summary: text(body.command),
          input: { command: body.command },
          state: "running",
        });
      case "exec.completed":
        if (body.exec_id !== undefined) this.call(body, { state: number(body.exit_code) === 0 ? "ok" : "failed", output: text(body.summary) });
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
    if (place !== undefined) this.tally.usage.push({ turn: place, usage: usage(body), cost_micros: cost(body) });
    this.push({
      ...base,
      kind: "end",
      turn,
      reason: text(body.yield_reason),
      seconds: number(body.active_seconds),
      usage: usage(body),
      cost_micros: cost(body),
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

const usage = (body: Body) => (body.usage ?? {}) as Record<string, number>;
const PRICED = ["model_micros", "sandbox_cpu_micros", "sandbox_memory_micros", "fee_micros"];

/** Micro-USD of all parts with a known price. */
function cost(body: Body): number {
  const parts = ((body.usage as Body | undefined)?.cost ?? {}) as Body;
  return PRICED.reduce((sum, part) => sum + number(parts[part]), 0);
}

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
