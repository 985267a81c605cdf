// The error that every method throws for an unsuccessful answer.
import type { components } from "./schema.js";

type Detail = components["schemas"]["ErrorDetail"];

/** An answer of the service that is not a success. */
export class SojournError extends Error {
  private constructor(
    message: string,
    /** HTTP status. */
    readonly status: number,
    /** Error type, stable: base decisions on it. docs/errors.md lists all. */
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
    if (!detail) return new SojournError(`the service answered ${status} without an error body`, status, "internal");
    const { message, type, code, param, request_id } = detail;
    return new SojournError(message, status, type, code ?? undefined, param ?? undefined, request_id);
  }
}
