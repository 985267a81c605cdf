// A refusal of the service.
import type { components } from "./schema.js";

type Detail = components["schemas"]["ErrorDetail"];

export class SojournError extends Error {
  private constructor(
    message: string,
    /** HTTP status. */
    readonly status: number,
    /** Stable: decide on it. docs/errors.md lists all. */
    readonly type: Detail["type"],
    readonly code?: string,
    readonly param?: string,
    readonly requestId?: string,
  ) {
    super(message);
    this.name = "SojournError";
  }

  static of(body: unknown, status: number): SojournError {
    const detail = (body as { error?: Detail } | undefined)?.error;
    if (!detail) return new SojournError(`the service answered ${status} without a reason`, status, "internal");
    const { message, type, code, param, request_id } = detail;
    return new SojournError(message, status, type, code ?? undefined, param ?? undefined, request_id);
  }
}
