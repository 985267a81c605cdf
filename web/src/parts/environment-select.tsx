// Choice of the environment of new sessions, for agents, schedules and triggers.
import type { Schemas } from "../api/client";
import { useEnvironments } from "../pages/environments";
import { Select } from "./form";

type Choice = Schemas["EnvironmentChoice"];

/** The option that keeps an inline environment, which has no id. No name contains this character. */
const INLINE = "\u0000";

/** Form value of an environment: its id or name, or the option of an inline one; empty for the default. */
export function chosen(environment?: Choice | null): string {
  return typeof environment === "object" && environment ? INLINE : (environment ?? "");
}

/** Field of a request. Absent for an inline environment, which stays as it is; null for the default. */
export function choice(value: string): { environment?: Choice | null } {
  return value === INLINE ? {} : { environment: value || null };
}

export function EnvironmentSelect({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const { list } = useEnvironments();
  // A stored choice may be a name, or an environment beyond the first page.
  const isListed = value === "" || list.some(({ id }) => id === value);
  return (
    <Select label="Environment" value={value} onChange={onChange}>
      <option value="">default</option>
      {!isListed && <option value={value}>{value === INLINE ? "inline, as it is" : value}</option>}
      {list.map(({ id, name }) => (
        <option key={id} value={id}>
          {name}
        </option>
      ))}
    </Select>
  );
}
