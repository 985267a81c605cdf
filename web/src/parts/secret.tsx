// Dialog content for a new secret, which is shown once.
import type { ReactNode } from "react";
import { Copy } from "./basics";

export function ShownOnce(props: { secret?: string | null; label: string; onDone: () => void; children: ReactNode }) {
  return (
    <>
      {props.children}
      {props.secret && (
        <pre className="output" tabIndex={0} role="region" aria-label={props.label}>
          {props.secret}
        </pre>
      )}
      <footer>
        {props.secret && <Copy text={props.secret} label="Copy it" />}
        <button type="button" className="main" onClick={props.onDone}>
          Done
        </button>
      </footer>
    </>
  );
}
