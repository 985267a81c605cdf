// Runs the custom tools of a session in this process.
import { SojournError } from "./error.js";
import type { ContentPart } from "./files.js";
import type { Sojourn } from "./index.js";
import type { components } from "./schema.js";

type Action = components["schemas"]["PendingAction"];

/**
 * Runs a call of a custom tool. What it returns is the result for the model: a string, parts (see `files.part`), or
 * another value as JSON; a long text is cut. If it throws, the model is told. Use `callId` as the key of whatever must
 * happen once.
 */
export type ToolHandler = (input: any, callId: string) => unknown;

/** Handlers by the name of their tool. */
export type ToolHandlers = Record<string, ToolHandler>;

/** A decision on a call: `once`, `reject`, or the fields of `user.tool_confirmation`. */
export type Decision = "once" | "reject" | Omit<Confirmation, "type" | "action_id" | "claim">;

type Confirmation = Extract<components["schemas"]["SentEvent"], { type: "user.tool_confirmation" }>;

/**
 * An answer to a question: labels of options, a text, or both. A string that is the label of an option chooses it; an empty one
 * answers an optional question.
 */
export type Reply = string | { labels?: string[]; text?: string };

/** Options of `run`. */
export interface RunOptions {
  /** Decides on a call that a person must confirm. Without a value, the decision is left to others. */
  onConfirmation?: (action: Action) => Decision | undefined | Promise<Decision | undefined>;
  /**
   * Answers the questions of an agent or an MCP server: a list with an answer for each, or the answer if there is one
   * question; `{ declined: true }` for a server that gets none. Without a value, the answers are left to others.
   */
  onQuestion?: (action: Action) => Replies | undefined | Promise<Replies | undefined>;
  signal?: AbortSignal;
}

/** The answers to the questions of an action. */
export type Replies = Reply | Reply[] | { declined: true };

type Sent = components["schemas"]["SentEvent"];

/** How long only this caller may answer a call that it runs; the longest that the service allows. */
const CLAIM_SECONDS = 600;
/** Longest text of a result as JSON; the service accepts 30,000 bytes with what surrounds it. */
const RESULT_BYTES = 29_900;
const CUT = "\n[the rest was cut]";
/** Most bytes that a file has in a result as JSON, without what it contains. */
const FILE_REF_BYTES = 1_200;
/** Least space of a text in a result, and of what surrounds it. */
const [TEXT_BYTES, WRAPPED_BYTES] = [100, 30];
/** Most parts of a result. */
const PARTS = 64;
/** Text of a result without any. */
const NOTHING = "(no output)";
/** Pause before a call is repeated: doubled after each failure. */
const PAUSE_MS = { first: 250, longest: 5_000 };
/** Poll interval while another process has claimed a call. */
const LOOK_MS = 1_000;

/** Runs calls until the session neither runs a turn nor waits for an action. */
export async function run(
  client: Sojourn,
  session: string,
  tools: ToolHandlers,
  { onConfirmation, onQuestion, signal }: RunOptions = {},
): Promise<void> {
  const path = { session_id: session };
  const query = { limit: 100 };
  const told = new Set<string>();
  const get = () => untilAnswered(() => client.take(client.api.GET("/v3/sessions/{session_id}", { params: { path } })), signal);
  const pending = () =>
    untilAnswered(() => client.take(client.api.GET("/v3/sessions/{session_id}/pending", { params: { path, query } })), signal);
  const events = client.follow(session, { after: (await get()).head, level: "user", signal });
  try {
    while (!signal?.aborted) {
      const open = (await pending()).data;
      const decide = async () => {
        for (const action of open.filter(({ id, kind }) => kind !== "tool_result" && !told.has(id))) {
          told.add(action.id);
          const event = await answer(client, action, onConfirmation, onQuestion, signal);
          if (event) await send(client, action, event, signal);
        }
      };
      const mine = open.filter(({ kind, tool }) => kind === "tool_result" && Object.hasOwn(tools, tool));
      const runs = mine.map((action) => runTool(client, action, tools[action.tool]!, signal));
      // A person may take long: the tools run meanwhile.
      const [ran] = await Promise.all([Promise.all(runs), decide()]);
      const { status, last_turn } = await get();
      if (status !== "queued" && status !== "running" && last_turn?.state !== "waiting") return;
      if (ran.includes(false)) {
        // Claimed by another process, which may have died: the claim ends.
        await wait(LOOK_MS);
        continue;
      }
      for (;;) {
        const { value, done } = await events.next();
        if (done || value.type === "action.required" || value.type === "turn.completed") break;
      }
    }
  } finally {
    await events.return(undefined);
  }
}

/** The event that ends an action by a decision or by answers, if there is a value. */
async function answer(
  client: Sojourn,
  action: Action,
  onConfirmation: RunOptions["onConfirmation"],
  onQuestion: RunOptions["onQuestion"],
  signal?: AbortSignal,
): Promise<Sent | undefined> {
  if (action.kind === "confirmation") {
    if (!onConfirmation) return undefined;
    const shown = await withInput(client, action, signal).catch((error: unknown) => {
      if (!(error instanceof SojournError) || !hasEnded(error)) throw error;
    });
    const decision = shown && (await onConfirmation(shown));
    return decision === undefined ? undefined : confirmationOf(action, decision);
  }
  const given = await onQuestion?.(action);
  return given === undefined ? undefined : answerOf(action, given);
}

/** The event that decides on a call. */
export function confirmationOf({ id: action_id, args_hash }: Action, decision: Decision): Sent {
  const fields = typeof decision === "string" ? { decision } : decision;
  return { type: "user.tool_confirmation", action_id, args_hash, ...fields };
}

/** The event that answers questions. */
export function answerOf({ id: action_id, questions }: Action, given: Replies): Sent {
  if (typeof given === "object" && "declined" in given) return { type: "user.answer", action_id, answers: [], declined: true };
  const answers = (Array.isArray(given) ? given : [given]).map((reply, at) => {
    if (typeof reply !== "string") return reply;
    if (!reply) return {};
    return questions?.[at]?.options?.some(({ label }) => label === reply) ? { labels: [reply] } : { text: reply };
  });
  return { type: "user.answer", action_id, answers };
}

/** Sends the event that ends an action. */
async function send(client: Sojourn, action: Action, event: Sent, signal?: AbortSignal): Promise<void> {
  const params = { path: { session_id: action.session_id }, header: once() };
  const sending = { params, body: { events: [event] } };
  for (;;) {
    try {
      await untilAnswered(() => client.take(client.api.POST("/v3/sessions/{session_id}/events", sending)), signal);
      return;
    } catch (error) {
      if (!(error instanceof SojournError) || signal?.aborted) throw error;
      if (hasEnded(error)) return;
      if (error.code !== "action_claimed") throw error;
    }
    // Another process may have died with its claim, which ends.
    await wait(LOOK_MS);
  }
}

/** Codes of a conflict with an action that has ended. */
const ENDED = ["action_resolved", "action_expired", "archived"];

/** Whether the action has ended, or its session is gone. */
const hasEnded = ({ status, code }: SojournError) => status === 404 || (status === 409 && ENDED.includes(code ?? ""));

/** Runs one call. Returns false if another process has claimed it. */
async function runTool(client: Sojourn, action: Action, handler: ToolHandler, signal?: AbortSignal): Promise<boolean> {
  const path = { session_id: action.session_id };
  try {
    const params = { path: { ...path, action_id: action.id }, header: once() };
    const claiming = { params, body: { seconds: CLAIM_SECONDS } };
    const { claim } = await untilAnswered(
      () => client.take(client.api.POST("/v3/sessions/{session_id}/pending/{action_id}/claim", claiming)),
      signal,
    );
    const { input } = await withInput(client, action, signal);
    let content: ContentPart[];
    let is_error = false;
    try {
      content = contentOf(await handler(input, action.call_id));
    } catch (error) {
      [content, is_error] = [contentOf(String(error)), true];
    }
    const result = { type: "user.custom_tool_result" as const, action_id: action.id, claim };
    const sendResult = (fields: { content: ContentPart[]; is_error: boolean }) => {
      const sending = { params: { path, header: once() }, body: { events: [{ ...result, ...fields }] } };
      return untilAnswered(() => client.take(client.api.POST("/v3/sessions/{session_id}/events", sending)), signal);
    };
    try {
      await sendResult({ content, is_error });
    } catch (error) {
      if (!refusesFiles(error, content)) throw error;
      await sendResult({ content: contentOf(String(error)), is_error: true });
    }
  } catch (error) {
    if (!(error instanceof SojournError)) throw error;
    if (error.code === "action_claimed") return false;
    if (!hasEnded(error)) throw error;
  }
  return true;
}

/** The action with its arguments, also if they are too large for the list of actions. */
async function withInput(client: Sojourn, action: Action, signal?: AbortSignal): Promise<Action> {
  if (action.input != null) return action;
  const path = { session_id: action.session_id, event_id: action.call_event_id };
  const get = () => client.api.GET("/v3/sessions/{session_id}/events/{event_id}/content", { params: { path } });
  const body = await untilAnswered(() => client.take(get()), signal);
  return { ...action, input: (body as { input?: Action["input"] }).input };
}

/** Repeats a call until the service answers. */
async function untilAnswered<T>(call: () => Promise<T>, signal?: AbortSignal): Promise<T> {
  for (let pause = PAUSE_MS.first; ; pause = Math.min(pause * 2, PAUSE_MS.longest)) {
    try {
      return await call();
    } catch (error) {
      const passes =
        !(error instanceof SojournError) || error.status >= 500 || error.status === 429 || error.code === "in_flight";
      if (!passes || signal?.aborted) throw error;
    }
    await wait(pause);
  }
}

/** One key for all repetitions of a request. */
const once = () => ({ "Idempotency-Key": crypto.randomUUID() });

/** Whether the service refused the files of a result, such as for a damaged image. */
function refusesFiles(error: unknown, content: ContentPart[]): boolean {
  if (!(error instanceof SojournError) || content.every(({ type }) => type === "text")) return false;
  return [400, 413].includes(error.status) || ["file_storage_full", "too_many_files"].includes(error.code ?? "");
}

/** The parts of a result: parts as they are, another value as a text; texts are cut where they are too long. */
function contentOf(result: unknown): ContentPart[] {
  const given: unknown[] = Array.isArray(result) ? result : [result];
  if (given.length === 0 || given.length > PARTS || !given.every(isPart)) return [{ type: "text", text: textOf(result) }];
  const parts = given.filter((part) => part.type !== "text" || part.text !== "");
  if (parts.length === 0) return [{ type: "text", text: NOTHING }];
  let texts = parts.filter(({ type }) => type === "text").length;
  let left = RESULT_BYTES - FILE_REF_BYTES * (parts.length - texts) - WRAPPED_BYTES * texts;
  return parts.map((part) => {
    if (part.type !== "text") return part;
    texts -= 1;
    // What follows keeps its least space.
    const text = textOf(part.text, Math.max(left - TEXT_BYTES * texts, TEXT_BYTES));
    left -= new TextEncoder().encode(JSON.stringify(text)).length;
    return { type: "text", text };
  });
}

/** Whether a value is a part of a result, and not other data. */
function isPart(value: unknown): value is ContentPart {
  if (typeof value !== "object" || value === null) return false;
  const { type, text, source, name: _, ...others } = value as Record<string, unknown>;
  if (Object.keys(others).length > 0) return false;
  if (type === "text") return typeof text === "string" && Object.keys(value).length === 2;
  return (type === "image" || type === "document") && typeof source === "object" && source !== null && text === undefined;
}

/** The text for the model: a string as it is, everything else as JSON; cut if it has more bytes as JSON. */
function textOf(result: unknown, most = RESULT_BYTES): string {
  const given = (typeof result === "string" ? result : JSON.stringify(result)) || NOTHING;
  // Half of a surrogate pair is no text.
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(new TextEncoder().encode(given));
  const bytes = new TextEncoder().encode(JSON.stringify(text));
  if (bytes.length <= most) return text;
  const limit = most - JSON.stringify(CUT).length;
  let begin = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes.subarray(0, limit), { stream: true });
  for (;;) {
    // A character whose escape was cut in two is left out.
    try {
      return (JSON.parse(`${begin}"`) as string) + CUT;
    } catch {
      begin = begin.slice(0, -1);
    }
  }
}

const wait = (ms: number) => new Promise((done) => setTimeout(done, ms));
