// Rows of the timeline, folded from the events of the log as they arrive.
import type { Schemas } from "../api/client";
import type { Event } from "../api/follow";
import { type FilePart, filesOf } from "../api/stored-files";
import { noticed } from "./notices";

/** An event of one type. */
type Of<T extends Event["type"]> = Extract<Event, { type: T }>;
type Usage = Schemas["Usage"];

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
  usage: Usage;
}
export interface MessageRow extends Base {
  kind: "message";
  role: "user" | "agent";
  text: string;
  /** Text beside tool calls, as opposed to an answer. */
  narration: boolean;
  question: boolean;
  options: string[];
  files: FilePart[];
  /** Input of the caller beside the text. */
  input?: unknown;
  /** Structured output of the agent, whose JSON is the text. */
  output?: unknown;
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
  state: "running" | "waiting" | "ok" | "failed" | "not_run" | "unknown";
  exec?: Of<"exec.completed">["body"];
  output?: string;
  /** Files of the result. */
  files: FilePart[];
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
  usage: Usage;
  cost_micros: number;
  error?: Schemas["TurnError"];
  limit?: string;
}
export type Row = TurnRow | StepRow | MessageRow | ThinkingRow | ToolRow | NoticeRow | EndRow;

/** Totals of a log. */
export interface Tally {
  turns: number;
  /** Model calls of the newest turn. */
  steps: number;
  /** Start of the running turn, since its last retry. */
  running_since?: string;
  /** Seconds of the running turn before its last retry. */
  seconds_before: number;
  /** The question that waits for an answer. */
  question?: MessageRow;
  /** Tokens of each turn by kind, and its cost as far as prices are known. */
  usage: { turn: number; usage: Usage; cost_micros: number }[];
}

/** Folds events into rows. A changed row is a new object, so that views detect it. */
export class Timeline {
  readonly rows: Row[] = [];
  readonly tally: Tally = { turns: 0, steps: 0, seconds_before: 0, usage: [] };
  private readonly calls = new Map<string, number>();
  /** Calls by the id of their action. */
  private readonly actions = new Map<string, string>();
  /** Actions of MCP servers. */
  private readonly elicitations = new Set<string>();
  private readonly turns = new Map<string, number>();
  /** Seconds of each turn that ended; a retry continues one. */
  private readonly seconds = new Map<string, number>();
  /** Names of files by their ids. */
  private readonly names = new Map<string, string>();

  add(event: Event): void {
    const base = { key: event.id, seq: event.seq, ts: event.ts };
    const whole = event.content_ref ?? undefined;
    switch (event.type) {
      case "user.message":
        this.tally.question = undefined;
        return this.push(input(base, event, this.named(event), whole));
      case "agent.message": {
        const row = message(base, event, whole);
        if (row.question) this.tally.question = row;
        return this.push(row);
      }
      case "agent.thinking":
        return this.push({ ...base, kind: "thinking", text: event.body.text });
      case "turn.started":
        return this.started(base, event.body);
      case "step.completed": {
        const { index, model, duration_ms, usage } = event.body;
        this.tally.steps = index;
        return this.push({ ...base, kind: "step", index, model, duration_ms, usage });
      }
      case "tool.call": {
        const { call_id: call, tool, args_summary: summary, input } = event.body;
        this.calls.set(call, this.rows.length);
        return this.push({ ...base, kind: "tool", call, tool, summary, input, state: "running", files: [], whole });
      }
      case "action.required":
        this.actions.set(event.body.id, event.body.call_id);
        if (event.body.server) this.elicitations.add(event.body.id);
        return this.call(event.body.call_id, { state: "waiting" });
      case "user.custom_tool_result":
        return this.call(this.actions.get(event.body.action_id), {
          by: `by ${event.actor.display ?? "a caller"}`,
          files: this.named(event),
        });
      case "user.answer":
        return this.call(this.actions.get(event.body.action_id), {
          by: `answered by ${event.actor.display ?? "a caller"}`,
          // The server goes on with the call.
          ...(this.elicitations.has(event.body.action_id) && { state: "running" as const }),
        });
      case "user.tool_confirmation": {
        const who = event.actor.display ?? "a caller";
        const allows = event.body.decision !== "reject";
        const change = allows ? { by: `approved by ${who}`, state: "running" as const } : { by: `rejected by ${who}` };
        return this.call(this.actions.get(event.body.action_id), change);
      }
      case "exec.started": {
        const { exec_id: call, command } = event.body;
        this.calls.set(call, this.rows.length);
        return this.push({
          ...base,
          kind: "tool",
          call,
          tool: "exec",
          by: `by ${event.actor.display ?? "a caller"}`,
          summary: command,
          input: { command },
          state: "running",
          files: [],
        });
      }
      case "exec.completed": {
        const { call_id, exec_id, exit_code, summary } = event.body;
        if (exec_id) this.call(call_id, { state: exit_code === 0 ? "ok" : "failed", output: summary });
        return this.call(call_id, { exec: event.body });
      }
      case "tool.result": {
        const files = this.named(event);
        return this.call(event.body.call_id, {
          output: event.body.output,
          duration_ms: event.body.duration_ms,
          state: outcome(event.body),
          ...(files.length > 0 ? { files } : {}),
          ...(whole ? { whole } : {}),
        });
      }
      case "turn.completed":
        return this.completed(base, event.body);
      default: {
        const notice = noticed(event, this.names);
        if (notice) this.push({ ...base, kind: "notice", ...notice });
      }
    }
  }

  private started(base: Base, { turn_id: turn, attempt }: Of<"turn.started">["body"]): void {
    const known = this.turns.get(turn);
    const place = known ?? ++this.tally.turns;
    this.turns.set(turn, place);
    if (known === undefined) this.tally.steps = 0;
    if (!this.tally.running_since) this.tally.seconds_before = this.seconds.get(turn) ?? 0;
    this.tally.running_since ??= base.ts;
    this.push({ ...base, kind: "turn", turn, number: place, attempt });
  }

  private completed(base: Base, body: Schemas["TurnCompleted"]): void {
    const { turn_id: turn, usage } = body;
    this.tally.running_since = undefined;
    this.seconds.set(turn, body.active_seconds);
    const place = this.turns.get(turn);
    const cost_micros = cost(usage);
    // A retried turn ends again, with the usage of all its attempts.
    this.tally.usage = this.tally.usage.filter((known) => known.turn !== place);
    if (place !== undefined) this.tally.usage.push({ turn: place, usage, cost_micros });
    this.push({
      ...base,
      kind: "end",
      turn,
      reason: body.yield_reason,
      seconds: body.active_seconds,
      usage,
      cost_micros,
      error: body.error ?? undefined,
      limit: body.limit ?? undefined,
    });
  }

  /** The files of an event. Their names are stored for notices. */
  private named({ body }: Event): FilePart[] {
    const files = filesOf(body);
    for (const { file_id, name } of files) this.names.set(file_id, name);
    return files;
  }

  private call(call: string | undefined, change: Partial<ToolRow>): void {
    const at = call === undefined ? undefined : this.calls.get(call);
    const row = at === undefined ? undefined : this.rows[at];
    if (at !== undefined && row?.kind === "tool") this.rows[at] = { ...row, ...change };
  }

  private push(row: Row): void {
    this.rows.push(row);
  }
}

const PRICED = ["model_micros", "sandbox_cpu_micros", "sandbox_memory_micros", "fee_micros"] as const;

/** Micro-USD of all parts with a known price. */
function cost(usage: Usage): number {
  return PRICED.reduce((sum, part) => sum + (usage.cost?.[part] ?? 0), 0);
}

function input(base: Base, { body, actor }: Of<"user.message">, files: FilePart[], whole?: string): MessageRow {
  const source = body.envelope?.source;
  return {
    ...base,
    kind: "message",
    role: "user",
    text: body.text,
    narration: false,
    question: false,
    options: [],
    files,
    input: body.input,
    from: typeof source === "string" ? source : (actor.display ?? undefined),
    whole,
  };
}

function message(base: Base, { body, level, actor }: Of<"agent.message">, whole?: string): MessageRow {
  return {
    ...base,
    kind: "message",
    role: "agent",
    text: body.text,
    narration: level !== "user",
    question: body.awaiting_input === true,
    options: body.options ?? [],
    files: [],
    output: body.output,
    from: actor.display ?? undefined,
    whole,
  };
}

function outcome({ outcome, is_error }: Of<"tool.result">["body"]): ToolRow["state"] {
  if (outcome === "unknown" || outcome === "not_run") return outcome;
  return is_error ? "failed" : "ok";
}
