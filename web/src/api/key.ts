// API key of the signed-in user: stored for this tab only, never in a URL.

const NAME = "sojourn.key";
/** Reason of a sign-out after a response with status 401. */
export const KEY_REFUSED = "This key is unknown, expired or revoked.";
const listeners = new Set<() => void>();

/** Reason for the last sign-out, for the sign-in page. */
let reason: string | undefined;

export function readKey(): string | null {
  return sessionStorage.getItem(NAME);
}

export function signIn(key: string): void {
  sessionStorage.setItem(NAME, key);
  reason = undefined;
  listeners.forEach((listener) => listener());
}

export function signOut(why?: string): void {
  if (readKey() === null) return;
  sessionStorage.removeItem(NAME);
  reason = why;
  listeners.forEach((listener) => listener());
}

export function signedOutBecause(): string | undefined {
  return reason;
}

export function onKeyChange(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
