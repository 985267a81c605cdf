// Lists of objects as the field of a form: JSON, or nothing.

/** The list as text. */
export function listField(list: unknown[] | null | undefined): string {
  return list && list.length > 0 ? JSON.stringify(list, null, 2) : "";
}

/** Reads the field of a form; `what` names its content. Throws an `Error` for the user. */
export function listOf<T>(field: string, what: string): T[] {
  if (field.trim() === "") return [];
  let list: unknown;
  try {
    list = JSON.parse(field);
  } catch {
    list = undefined;
  }
  if (!Array.isArray(list)) throw new Error(`The ${what} are not a JSON list.`);
  return list as T[];
}
