// Form fields of limits: one number each, empty for no limit.
import type { Schemas } from "../api/client";
import { Field } from "./basics";
import { count, dollars } from "./format";

type Name = keyof Schemas["Limits"];

export const LIMITS = [
  ["tokens", "Tokens", "in the whole session"],
  ["cost_micros", "Cost", "maximum cost of the session, in dollars"],
  ["turns", "Turns", "in the whole session"],
  ["tool_calls", "Tool calls", "in the whole session"],
  ["duration_seconds", "Seconds of work", "turns and callers' commands"],
  ["turn_seconds", "Seconds per turn", "wall-clock time of one turn"],
  ["steps", "Steps per turn", "model calls; 200 when empty"],
] as const satisfies [Name, string, string][];

/** Units of the API in one unit of the form. */
const UNITS: Partial<Record<Name, number>> = { cost_micros: 1_000_000 };

/** A value of a limit, or of what counts against it, for display. */
export function shown(name: Name, value: number): string {
  return name === "cost_micros" ? dollars(value) : count(value);
}

/** Limits from the form. A limit of `set` that is empty in the form becomes null, which removes it. */
export function limitsOf(values: Record<string, string>, set: Schemas["Limits"] = {}): Schemas["LimitsInput"] {
  const named = LIMITS.filter(([name]) => values[name]?.trim() || set[name] != null);
  const read = (name: Name) => {
    const typed = values[name]?.trim();
    return typed ? Math.round(Number(typed) * (UNITS[name] ?? 1)) : null;
  };
  return Object.fromEntries(named.map(([name]) => [name, read(name)]));
}

/** Form values of these limits. */
export function formOf(limits: Schemas["Limits"]): Record<string, string> {
  const typed = (name: Name) => {
    const value = limits[name];
    return value == null ? "" : String(value / (UNITS[name] ?? 1));
  };
  return Object.fromEntries(LIMITS.map(([name]) => [name, typed(name)]));
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
              inputMode={UNITS[name] ? "decimal" : "numeric"}
              pattern={UNITS[name] ? "[0-9]*[.]?[0-9]*" : "[0-9]*"}
              value={props.values[name] ?? ""}
              onChange={(event) => props.onChange({ ...props.values, [name]: event.target.value })}
            />
          )}
        </Field>
      ))}
    </div>
  );
}
