// Permission rules as text and as the field of a form.
import type { Schemas } from "../api/client";

type Rule = Schemas["PermissionRule"];

/** A rule in words. */
export function ruleText({ tool, prefix, path, host, policy }: Rule): string {
  const scope = prefix ?? path ?? host;
  return `${policy} ${tool}${scope ? ` ${scope}` : ""}`;
}

/** The rules as the field of a form: JSON, or nothing. */
export function rulesField(rules: Rule[] | undefined): string {
  return rules && rules.length > 0 ? JSON.stringify(rules, null, 2) : "";
}

/** Reads the field of a form. Throws an `Error` for the user. */
export function rulesOf(field: string): Rule[] {
  if (field.trim() === "") return [];
  let list: unknown;
  try {
    list = JSON.parse(field);
  } catch {
    list = undefined;
  }
  if (!Array.isArray(list)) throw new Error("The permissions are not a JSON list.");
  return list as Rule[];
}
