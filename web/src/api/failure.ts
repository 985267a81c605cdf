// Failed requests, with advice on what to do about them.
import type { components } from "./schema";

type Detail = components["schemas"]["ErrorDetail"];

/** An error response of the service, or `unreachable` when there was no response. */
export class Failure extends Error {
  readonly type: Detail["type"] | "unreachable";
  readonly code?: string;
  readonly param?: string;
  readonly request?: string;

  private constructor(message: string, detail: Partial<Omit<Detail, "type">> & { type: Failure["type"] }) {
    super(message);
    this.type = detail.type;
    this.code = detail.code ?? undefined;
    this.param = detail.param ?? undefined;
    this.request = detail.request_id;
  }

  static of(body: unknown, status: number): Failure {
    const detail = (body as { error?: Detail } | undefined)?.error;
    if (!detail) return new Failure(`The service returned ${status} without an error message.`, { type: "internal" });
    return new Failure(detail.message, detail);
  }

  /** An input that this page refuses before it sends it. */
  static invalid(message: string): Failure {
    return new Failure(message, { type: "invalid" });
  }

  static unreachable(): Failure {
    return new Failure("The service cannot be reached.", { type: "unreachable" });
  }
}

/** Advice for the user; undefined where the error message already contains it. */
export function advice(failure: Failure): string | undefined {
  switch (failure.type) {
    case "unreachable":
      return "Check that it is running and that this machine is online. The page recovers by itself.";
    case "unauthorized":
      return "Sign in with another key.";
    case "forbidden":
      return "This key lacks a scope. Sign in with a key that has it.";
    case "rate_limited":
      return "This key exceeded its rate limit. Wait a moment, then try again.";
    case "unavailable":
      return "The service is busy or restarting. Trying again is safe.";
    case "internal":
      return "This is an error of the service. Its log contains the request id.";
    case "conflict":
      return failure.code === "archived" ? "Create a new session to continue." : undefined;
    case "unprocessable":
      return failure.code === "no_credential"
        ? "Store a key for the model's provider under Credentials, or select one in the agent."
        : undefined;
    default:
      return undefined;
  }
}

/** The reason of an error and the advice, as one line. */
export function reason(error: unknown): string {
  if (!(error instanceof Failure)) return "Unexpected error on this page.";
  // Its advice is for a page that reads again by itself.
  const hint = error.type === "unreachable" ? undefined : advice(error);
  const message = /[.!?]$/.test(error.message) ? error.message : `${error.message}.`;
  return hint ? `${message} ${hint}` : message;
}
