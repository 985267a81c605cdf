// Client of Sojourn: typed calls, streams that resume, files, webhook verification.
//
// Uses `fetch` and WebCrypto only, so it runs in Node, Deno, Bun, workers and browsers.
import createClient, { type Client } from "openapi-fetch";
import { SojournError } from "./error.js";
import { type ContentPart, Files } from "./files.js";
import { type ExecFrame, follow, followExec, type FollowOptions } from "./follow.js";
import { answerOf, confirmationOf, type Decision, type Replies, run, type RunOptions, type ToolHandlers } from "./run.js";
import type { components, paths } from "./schema.js";
import { Skills } from "./skills.js";

export { SojournError } from "./error.js";
export { type ContentPart, type FileData, Files, type StoredFile } from "./files.js";
export type { Event, ExecFrame, FollowOptions } from "./follow.js";
export type { Decision, Replies, Reply, RunOptions, ToolHandler, ToolHandlers } from "./run.js";
export { type Skill, type SkillData, Skills } from "./skills.js";
export { verifyWebhook, type Webhook, WebhookError } from "./webhook.js";
export type { components, paths } from "./schema.js";

type Schemas = components["schemas"];

/** How to reach the service. */
export interface Options {
  /** Address of the service, such as `http://127.0.0.1:8080`. */
  url: string;
  /** An API key, or an agent's invoke token for `invoke` alone. */
  key: string;
  /** Attempts of a call that is safe to repeat. Default: 4. */
  tries?: number;
}

/** Options of `steer`. */
export interface SteerOptions {
  mode?: Schemas["SteerMode"];
  /** Parts of the message behind its text; see `files.part`. */
  content?: ContentPart[];
}

/** Base of the back-off after a network error. */
const PAUSE_MS = 500;
/** Poll interval for a running command. */
const LOOK_MS = 1_000;
/** Largest part of a file that one answer contains. */
const PART_BYTES = 64 << 20;

/** Client of one service with one API key. */
export class Sojourn {
  /** Every operation of openapi.yaml, typed, by its path. */
  readonly api: Client<paths>;
  /** Stored files, and parts of messages and results that are files. */
  readonly files: Files;
  /** Skills: folders with instructions and files for agents. */
  readonly skills: Skills;
  private readonly url: string;
  private readonly key: string;
  private readonly tries: number;

  constructor(options: Options) {
    this.url = options.url.replace(/\/(v3\/?)?$/, "");
    this.key = options.key;
    this.tries = Math.max(1, options.tries ?? 4);
    this.api = createClient<paths>({ baseUrl: this.url, fetch: (request) => this.send(request) });
    this.files = new Files(this);
    this.skills = new Skills(this);
    this.api.use({
      onRequest: ({ request }) => {
        request.headers.set("Authorization", `Bearer ${this.key}`);
        // Makes a repeated POST take effect once.
        if (request.method === "POST" && !request.headers.has("Idempotency-Key")) {
          request.headers.set("Idempotency-Key", crypto.randomUUID());
        }
        return request;
      },
    });
  }

  /** Returns the body of a success. Throws a `SojournError` otherwise. */
  async take<T>(call: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
    const { data, error, response } = await call;
    if (!response.ok) throw SojournError.of(error, response.status);
    return data as T;
  }

  /** Creates a session. */
  create(body: Schemas["CreateSession"]): Promise<Schemas["CreatedSession"]> {
    return this.take(this.api.POST("/v3/sessions", { body }));
  }

  /** Starts a session at the invoke URL of an agent, with an API key or an invoke token of this agent. */
  invoke(agent: string, body: Schemas["InvokeAgent"]): Promise<Schemas["CreatedSession"]> {
    return this.take(this.api.POST("/v3/agents/{agent_id}/invoke", { params: { path: { agent_id: agent } }, body }));
  }

  /** Sends a message: a text, parts, or a text and parts behind it. It is durable when this returns. */
  steer(
    session: string,
    text: string | undefined,
    options?: Schemas["SteerMode"] | SteerOptions,
  ): Promise<Schemas["Steered"]> {
    const params = { path: { session_id: session } };
    const body = { text, ...(typeof options === "string" ? { mode: options } : options) };
    return this.take(this.api.POST("/v3/sessions/{session_id}/messages", { params, body }));
  }

  /** Asks the running turn to end and ends the queued one. */
  cancel(session: string, options: Schemas["WithChildren"] = {}): Promise<Schemas["Session"]> {
    const params = { path: { session_id: session } };
    return this.take(this.api.POST("/v3/sessions/{session_id}/cancel", { params, body: options }));
  }

  /** Has the history summarized before the next model call; an idle session gets a turn for it. */
  compact(session: string, instructions?: string): Promise<Schemas["Steered"]> {
    const params = { path: { session_id: session } };
    return this.take(this.api.POST("/v3/sessions/{session_id}/compact", { params, body: { instructions } }));
  }

  /** Retries the last turn of a session, which ended with an error: the same turn, as its next attempt. */
  retryTurn(session: string, turn: string): Promise<Schemas["Steered"]> {
    const params = { path: { session_id: session, turn_id: turn } };
    return this.take(this.api.POST("/v3/sessions/{session_id}/turns/{turn_id}/retry", { params }));
  }

  /** Yields the open actions of a session, or of all sessions: calls of custom tools, confirmations, questions. */
  async *pending(session?: string): AsyncGenerator<Schemas["PendingAction"]> {
    let cursor: string | undefined;
    do {
      const query = { limit: 100, cursor };
      const page = await this.take(
        session
          ? this.api.GET("/v3/sessions/{session_id}/pending", { params: { path: { session_id: session }, query } })
          : this.api.GET("/v3/pending", { params: { query } }),
      );
      yield* page.data;
      cursor = page.next_cursor ?? undefined;
    } while (cursor);
  }

  /** Decides on a call that a person must confirm. */
  confirm(action: Schemas["PendingAction"], decision: Decision): Promise<Schemas["SentEvents"]> {
    return this.sendEvent(action.session_id, confirmationOf(action, decision));
  }

  /** Answers the questions of an agent or an MCP server. */
  answer(action: Schemas["PendingAction"], answers: Replies): Promise<Schemas["SentEvents"]> {
    return this.sendEvent(action.session_id, answerOf(action, answers));
  }

  /** Closes a session permanently; its log stays readable. */
  archive(session: string, options: Schemas["WithChildren"] = {}): Promise<Schemas["Session"]> {
    const params = { path: { session_id: session } };
    return this.take(this.api.POST("/v3/sessions/{session_id}/archive", { params, body: options }));
  }

  /** Runs a command in the sandbox of the session and waits for its end. */
  async exec(session: string, command: string | string[], options: Omit<Schemas["ExecRequest"], "command"> = {}): Promise<Schemas["Exec"]> {
    const path = { session_id: session };
    let ran = await this.take(this.api.POST("/v3/sessions/{session_id}/exec", { params: { path }, body: { ...options, command } }));
    while (ran.state !== "completed" && ran.state !== "failed") {
      await wait(LOOK_MS);
      const params = { path: { ...path, exec_id: ran.id } };
      ran = (await this.take(this.api.GET("/v3/sessions/{session_id}/exec/{exec_id}", { params }))) as Schemas["Exec"];
    }
    return ran;
  }

  /**
   * Runs a command in the sandbox of the session and yields its output while it runs; the last
   * frame is its end. Reconnects after a cut. The command continues if the caller stops reading.
   */
  async *followExec(
    session: string,
    command: string | string[],
    options: Omit<Schemas["ExecRequest"], "command"> = {},
    signal?: AbortSignal,
  ): AsyncGenerator<ExecFrame> {
    const params = { path: { session_id: session }, header: { Prefer: "wait=0" } };
    const ran = await this.take(this.api.POST("/v3/sessions/{session_id}/exec", { params, body: { ...options, command } }));
    yield* followExec({ url: this.url, key: this.key }, session, ran.id, signal);
  }

  /** Lists a directory of the sandbox. */
  listFiles(session: string, path = "/workspace"): Promise<Schemas["Directory"]> {
    const params = { path: { session_id: session }, query: { path } };
    return this.take(this.api.GET("/v3/sessions/{session_id}/files/list", { params }));
  }

  /** Reads a whole file of the sandbox, in parts of 64 MiB. */
  async readFile(session: string, path: string): Promise<Blob> {
    const parts: Blob[] = [];
    for (let read = 0; ; ) {
      const header = { Range: `bytes=${read}-${read + PART_BYTES - 1}` };
      const params = { path: { session_id: session }, query: { path }, header };
      const { data, error, response } = await this.api.GET("/v3/sessions/{session_id}/files", { params, parseAs: "blob" });
      if (!response.ok) throw SojournError.of(error, response.status);
      const part = data as unknown as Blob;
      parts.push(part);
      read += part.size;
      // The answer for an empty file has no Content-Range.
      const size = Number(response.headers.get("content-range")?.split("/")[1] ?? part.size);
      if (part.size === 0 || read >= size) return new Blob(parts);
    }
  }

  /** Writes a file of at most 3 MiB into the sandbox; creates missing directories. */
  writeFile(session: string, path: string, content: BodyInit): Promise<Schemas["FileWritten"]> {
    const params = { path: { session_id: session }, query: { path } };
    const headers = { "Content-Type": "application/octet-stream" };
    const bodySerializer = () => content;
    return this.take(this.api.PUT("/v3/sessions/{session_id}/files", { params, headers, body: "", bodySerializer }));
  }

  /** Returns the last turn and its result. */
  result(session: string): Promise<Schemas["ResultView"]> {
    return this.take(this.api.GET("/v3/sessions/{session_id}/result", { params: { path: { session_id: session } } }));
  }

  /**
   * Yields the events of a session, existing and new, each once and in order. Reconnects after a
   * cut. Ends with `break`, or with the signal.
   */
  follow(session: string, options: FollowOptions = {}) {
    return follow({ url: this.url, key: this.key }, session, options);
  }

  /**
   * Waits until no turn is queued or running, then returns the result. A turn that waits for a caller
   * (`last_turn.state` is `waiting`) counts as settled; see `run`.
   */
  async settled(session: string, signal?: AbortSignal): Promise<Schemas["ResultView"]> {
    const params = { path: { session_id: session } };
    const get = () => this.take(this.api.GET("/v3/sessions/{session_id}", { params }));
    // A turn whose actions have ended is about to continue.
    const runs = async ({ status, last_turn }: Schemas["Session"]) =>
      last_turn?.state === "waiting"
        ? (await this.take(this.api.GET("/v3/sessions/{session_id}/pending", { params }))).data.length === 0
        : status === "queued" || status === "running";
    const now = await get();
    if (!(await runs(now))) return this.result(session);
    for await (const { type } of this.follow(session, { after: now.head, type: "turn.*", signal })) {
      if ((type === "turn.completed" || type === "turn.waiting") && !(await runs(await get()))) break;
    }
    return this.result(session);
  }

  /**
   * Runs the custom tools of a session until it neither runs nor waits, then returns the result. A call is
   * claimed first, so that one of several processes runs it, and its result is sent until the service answers.
   * The calls of a step run together. A call of a tool without a handler stays open for another process.
   * `onConfirmation` decides on calls that a person must confirm, `onQuestion` answers the agent's questions.
   */
  async run(session: string, tools: ToolHandlers, options: RunOptions = {}): Promise<Schemas["ResultView"]> {
    await run(this, session, tools, options);
    return this.result(session);
  }

  private sendEvent(session: string, event: Schemas["SentEvent"]): Promise<Schemas["SentEvents"]> {
    const params = { path: { session_id: session } };
    return this.take(this.api.POST("/v3/sessions/{session_id}/events", { params, body: { events: [event] } }));
  }

  /**
   * Sends a request; repeats it after 429, 503 and network errors, unless it is a PATCH. What a repeated DELETE does
   * not find was deleted by an earlier attempt.
   */
  private async send(request: Request): Promise<Response> {
    const repeatable = request.method !== "PATCH";
    let mayBeDeleted = false;
    for (let attempt = 1; ; attempt++) {
      const isLast = attempt >= this.tries || !repeatable;
      try {
        const response = await fetch(request.clone());
        if (mayBeDeleted && response.status === 404) return new Response(null, { status: 204 });
        mayBeDeleted ||= request.method === "DELETE" && response.status === 503;
        if (![429, 503].includes(response.status) || isLast) return response;
        await wait(Number(response.headers.get("retry-after") ?? 1) * 1_000);
      } catch (error) {
        if (isLast || request.signal.aborted) throw error;
        mayBeDeleted ||= request.method === "DELETE";
        await wait(PAUSE_MS * 2 ** attempt);
      }
    }
  }
}

const wait = (ms: number) => new Promise((done) => setTimeout(done, ms));
