// Permission rules as text.
import type { Schemas } from "../api/client";

type Rule = Schemas["PermissionRule"];

/** A rule in words. */
export function ruleText({ tool, prefix, path, host, policy }: Rule): string {
  const scope = prefix ?? path ?? host;
  return `${policy} ${tool}${scope ? ` ${scope}` : ""}`;
}
