// Limits as a form: one number each, empty for none.
import type { Schemas } from "../api/client";
import { Field } from "./basics";

export const LIMITS = [
  ["tokens", "Tokens", "of the whole session"],
  ["turns", "Turns", "that the session may run"],
  ["steps", "Steps", "model calls of one turn; 200 when empty"],
  ["turn_seconds", "Seconds", "wall clock of one turn"],
] as const satisfies [keyof Schemas["Limits"], string, string][];

/** The limits that a form names; one of `set` that it leaves empty is null, which removes it. */
export function limitsOf(values: Record<string, string>, set: Schemas["Limits"] = {}): Schemas["LimitsInput"] {
  const named = LIMITS.filter(([name]) => values[name]?.trim() || set[name] != null);
  return Object.fromEntries(named.map(([name]) => [name, values[name]?.trim() ? Number(values[name]) : null]));
}

/** A form's values for these limits. */
export function formOf(limits: Schemas["Limits"]): Record<string, string> {
  return Object.fromEntries(LIMITS.map(([name]) => [name, limits[name]?.toString() ?? ""]));
}

export function LimitFields(props: {
  values: Record<string, string>;
  onChange: (values: Record<string, string>) => void;
}) {
  return (
    <div className="row">
      {LIMITS.map(([name, label, hint]) => (
        <Field key={name} label={label} hint={hint}>
          {(id, hint) => (
            <input
              id={id}
              aria-describedby={hint}
              inputMode="numeric"
              pattern="[0-9]*"
              value={props.values[name] ?? ""}
              onChange={(event) => props.onChange({ ...props.values, [name]: event.target.value })}
            />
          )}
        </Field>
      ))}
    </div>
  );
}
