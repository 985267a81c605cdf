// Limits as a form: one number each, empty for none.
import type { Schemas } from "../api/client";
import { Field } from "./basics";
import { count, dollars } from "./format";

type Name = keyof Schemas["Limits"];

export const LIMITS = [
  ["tokens", "Tokens", "of the whole session"],
  ["cost_micros", "Cost", "dollars that the session may cost"],
  ["turns", "Turns", "that the session may run"],
  ["tool_calls", "Tool calls", "of the whole session"],
  ["duration_seconds", "Seconds of work", "in all turns together"],
  ["turn_seconds", "Seconds of a turn", "wall clock, from its start"],
  ["steps", "Steps of a turn", "model calls; 200 when empty"],
] as const satisfies [Name, string, string][];

/** How many of what the service counts are one of what a person types. */
const UNITS: Partial<Record<Name, number>> = { cost_micros: 1_000_000 };

/** A value of a limit, or what counts against it, as people read it. */
export function shown(name: Name, value: number): string {
  return name === "cost_micros" ? dollars(value) : count(value);
}

/** The limits that a form names; one of `set` that it leaves empty is null, which removes it. */
export function limitsOf(values: Record<string, string>, set: Schemas["Limits"] = {}): Schemas["LimitsInput"] {
  const named = LIMITS.filter(([name]) => values[name]?.trim() || set[name] != null);
  const read = (name: Name) => {
    const typed = values[name]?.trim();
    return typed ? Math.round(Number(typed) * (UNITS[name] ?? 1)) : null;
  };
  return Object.fromEntries(named.map(([name]) => [name, read(name)]));
}

/** A form's values for these limits. */
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
