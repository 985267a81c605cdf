// Fields of an event's body, which may hold anything.

export const text = (value: unknown): string => (typeof value === "string" ? value : "");
export const number = (value: unknown): number => (typeof value === "number" ? value : 0);
