// Why a request was not done, in words that say what to do about it.
import type { components } from "./schema";

type Detail = components["schemas"]["ErrorDetail"];

/** A refusal of the service, or `unreachable` when there was no answer at all. */
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
    if (!detail) return new Failure(`The service answered ${status} without a reason.`, { type: "internal" });
    return new Failure(detail.message, detail);
  }

  static unreachable(): Failure {
    return new Failure("The service cannot be reached.", { type: "unreachable" });
  }
}

/** What a person can do about it; nothing where the message says so itself. */
export function advice(failure: Failure): string | undefined {
  switch (failure.type) {
    case "unreachable":
      return "Is it running, and is this network up? The page goes on by itself when it is back.";
    case "unauthorized":
      return "Sign in with another key.";
    case "forbidden":
      return "This key lacks a scope. Sign in with a key that has it.";
    case "rate_limited":
      return "This key asks too often. Wait a moment, then try again.";
    case "unavailable":
      return "The service is busy or restarting. Trying again is safe.";
    case "internal":
      return "This is a fault of the service. Its log names the request by its id.";
    case "conflict":
      return failure.code === "archived" ? "Create a new session to go on." : undefined;
    case "unprocessable":
      return failure.code === "no_credential"
        ? "Store a key for the model's provider under Credentials, or name one in the agent."
        : undefined;
    default:
      return undefined;
  }
}
