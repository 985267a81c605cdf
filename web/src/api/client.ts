// API client of the pages: typed by openapi.yaml, authenticated with the API key of this tab.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";
import { Failure } from "./failure";
import { KEY_REFUSED, readKey, signOut } from "./key";

export type Schemas = components["schemas"];

const TRIES = 4;
const PAUSE_MS = 800;

export const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));

/** Random `Idempotency-Key`, so that a retried request is applied once. */
export function nonce(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Sends a request. Retries one that is safe to repeat, so it survives a restart of the service. */
async function send(request: Request): Promise<Response> {
  const repeatable = request.method === "GET" || request.headers.has("Idempotency-Key");
  for (let attempt = 1; ; attempt++) {
    const isLast = attempt === TRIES || !repeatable;
    try {
      const response = await fetch(request.clone());
      if (response.status !== 503 || isLast) return response;
    } catch (error) {
      if (request.signal.aborted) throw error;
      if (isLast) throw Failure.unreachable();
    }
    await pause(PAUSE_MS * attempt);
  }
}

export const api = createClient<paths>({ baseUrl: "", fetch: send });

api.use({
  onRequest({ request }) {
    const key = readKey();
    if (key) request.headers.set("Authorization", `Bearer ${key}`);
    if (request.method === "POST") {
      request.headers.set("Idempotency-Key", nonce());
      // The `source` of sessions that are created here.
      request.headers.set("X-Sojourn-Client", "dashboard");
    }
    return request;
  },
  onResponse({ response }) {
    if (response.status === 401) signOut(KEY_REFUSED);
  },
});

/** Returns the body of a success; throws a `Failure` otherwise. */
export async function take<T>(answer: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await answer;
  if (!response.ok) throw Failure.of(error, response.status);
  return data as T;
}

/** Requests any path of the API; throws a `Failure` unless it succeeds. */
export async function requestPath(path: string, init: { method?: string; signal?: AbortSignal } = {}): Promise<Response> {
  const headers = { Authorization: `Bearer ${readKey() ?? ""}` };
  const response = await send(new Request(path, { ...init, headers }));
  if (response.status === 401) signOut(KEY_REFUSED);
  if (!response.ok) throw Failure.of(await response.json().catch(() => undefined), response.status);
  return response;
}

/** Reads the JSON at any path of the API, for links that the service returns. */
export async function takePath(path: string): Promise<unknown> {
  const response = await requestPath(path);
  return response.json().catch(() => undefined);
}
