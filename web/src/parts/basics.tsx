// Small components that every page uses.
import { type ReactNode, useEffect, useId, useRef, useState, useSyncExternalStore } from "react";
import { advice, Failure } from "../api/failure";
import { ago, words } from "./format";

// One clock for all ages on the page.
let now = Date.now();
const ticks = new Set<() => void>();
setInterval(() => {
  now = Date.now();
  ticks.forEach((tick) => tick());
}, 1_000);
const onTick = (tick: () => void) => {
  ticks.add(tick);
  return () => ticks.delete(tick);
};

/** Milliseconds since the epoch, updated each second. */
export const useNow = () => useSyncExternalStore(onTick, () => now);

export function Age({ ts }: { ts: string }) {
  const at = useNow();
  return (
    <time dateTime={ts} title={new Date(ts).toLocaleString()}>
      {ago(ts, at)}
    </time>
  );
}

const TONES: Record<string, string> = {
  running: "live",
  queued: "wait",
  awaiting_input: "ask",
  idle: "calm",
  failed: "bad",
  archived: "off",
  completed: "good",
  needs_input: "ask",
  requires_action: "ask",
  canceled: "off",
  error: "bad",
  budget_exceeded: "warn",
  deadline_exceeded: "warn",
  max_turns: "warn",
  delivered: "good",
  pending: "wait",
  delivering: "live",
  dead_letter: "bad",
  allowed: "good",
  denied: "bad",
};

/** A status as a colored badge. */
export function Badge({ of }: { of: string }) {
  return (
    <span className="badge" data-tone={TONES[of] ?? "calm"}>
      <i aria-hidden />
      {words(of)}
    </span>
  );
}

/** An error message, with advice. */
export function Trouble({ error, retry }: { error: unknown; retry?: () => void }) {
  if (!error) return null;
  const failure = error instanceof Failure ? error : undefined;
  const hint = failure && advice(failure);
  return (
    <div className="trouble" role="alert">
      <p>{failure?.message ?? "Unexpected error on this page."}</p>
      {failure?.param && <p className="quiet">Field: {failure.param}</p>}
      {hint && <p>{hint}</p>}
      {failure?.request && <p className="quiet mono">{failure.request}</p>}
      {retry && (
        <button type="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** Placeholder of an empty list: why it is empty, and how to start. */
export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Loading() {
  return (
    <p className="quiet" role="status">
      Loading…
    </p>
  );
}

/** A label, its control and its hint. The control gets the ids through a function. */
export function Field(props: { label: string; hint?: ReactNode; children: (id: string, hint?: string) => ReactNode }) {
  const id = useId();
  const hint = props.hint ? `${id}-hint` : undefined;
  return (
    <div className="field">
      <label htmlFor={id}>{props.label}</label>
      {props.children(id, hint)}
      {props.hint && (
        <small id={hint} className="quiet">
          {props.hint}
        </small>
      )}
    </div>
  );
}

/** A native dialog: it keeps the focus, and Escape closes it. */
export function Dialog(props: { title: string; onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const title = useId();
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} aria-labelledby={title} onClose={props.onClose}>
      <header>
        <h2 id={title}>{props.title}</h2>
        <button type="button" className="plain" aria-label="Close" onClick={() => dialog.current?.close()}>
          ✕
        </button>
      </header>
      {props.children}
    </dialog>
  );
}

/** A button that asks for confirmation before an action that cannot be undone. */
export function Confirmed(props: { label: string; sure: string; disabled?: boolean; onConfirm: () => void }) {
  const [asking, setAsking] = useState(false);
  useEffect(() => {
    if (!asking) return;
    const timer = setTimeout(() => setAsking(false), 4_000);
    return () => clearTimeout(timer);
  }, [asking]);
  const click = () => {
    if (asking) props.onConfirm();
    setAsking(!asking);
  };
  return (
    <button type="button" className={asking ? "danger" : ""} disabled={props.disabled} onClick={click}>
      {asking ? props.sure : props.label}
    </button>
  );
}

/** A button that copies text to the clipboard. */
export function Copy({ text, label }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  // Only secure contexts (https or localhost) have a clipboard.
  if (!navigator.clipboard) return null;
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1_500);
  };
  return (
    <button type="button" className="plain small" onClick={copy}>
      {done ? "Copied" : (label ?? "Copy")}
    </button>
  );
}

/** The query of a list; without pages, the last three are absent. */
export interface ListQuery {
  error: unknown;
  isPending: boolean;
  isSuccess: boolean;
  refetch(): unknown;
  hasNextPage?: boolean;
  isFetchingNextPage?: boolean;
  fetchNextPage?(): unknown;
}

/** Button that loads the next page of a list. */
export function More(props: { query: ListQuery }) {
  if (!props.query.hasNextPage) return null;
  return (
    <button type="button" disabled={props.query.isFetchingNextPage} onClick={() => props.query.fetchNextPage?.()}>
      {props.query.isFetchingNextPage ? "Loading…" : "Show more"}
    </button>
  );
}
