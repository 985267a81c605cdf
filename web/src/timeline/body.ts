// Typed access to the fields of an event body, which may hold any value.

export const text = (value: unknown): string => (typeof value === "string" ? value : "");
export const number = (value: unknown): number => (typeof value === "number" ? value : 0);
