// Tools of an agent: names of tools of the service, and definitions of custom ones.
import type { Schemas } from "../api/client";

type Tool = Schemas["AgentTool"];

/** The tools as words, `all` where the agent has no list. */
export function named(tools: Tool[] | null | undefined, all = "all"): string {
  if (!tools) return all;
  if (tools.length === 0) return "none";
  return tools.map((tool) => (typeof tool === "string" ? tool : `${tool.name} (custom)`)).join(", ");
}

/** The list as the two fields of a form. */
export function fieldsOf(tools: Tool[] | null | undefined): { tools: string; custom: string } {
  const custom = (tools ?? []).filter((tool) => typeof tool !== "string");
  return {
    tools: (tools ?? []).filter((tool) => typeof tool === "string").join(", "),
    custom: custom.length > 0 ? JSON.stringify(custom, null, 2) : "",
  };
}

/** Reads the two fields of a form. Throws an `Error` for the user. */
export function toolsOf({ tools, custom }: { tools: string; custom: string }): Tool[] {
  const names = tools.split(/[\s,]+/).filter(Boolean);
  if (custom.trim() === "") return names;
  let list: unknown;
  try {
    list = JSON.parse(custom);
  } catch {
    list = undefined;
  }
  if (!Array.isArray(list)) throw new Error("The custom tools are not a JSON list.");
  return [...names, ...(list as Tool[])];
}
