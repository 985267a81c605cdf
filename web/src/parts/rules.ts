// Egress rules of a sandbox as text, one per line: "host[:port] [METHODS] [/path]".
import type { Schemas } from "../api/client";

type Rule = Schemas["EgressRule"];

const LINE = /^([^\s:/]+)(?::(\d+))?(?:\s+([A-Za-z]+(?:,[A-Za-z]+)*))?(?:\s+(\/\S*))?$/;

export function writeRules(rules: Rule[]): string {
  const line = ({ host, port, methods, path_prefix }: Rule) =>
    [host + (port && port !== 443 ? `:${port}` : ""), methods?.join(","), path_prefix].filter(Boolean).join(" ");
  return rules.map(line).join("\n");
}

/** Throws an `Error` that names the invalid line. */
export function readRules(text: string): Rule[] {
  const lines = text.split("\n").map((line) => line.trim());
  return lines.flatMap((line, at) => {
    if (line === "") return [];
    const [, host, port, methods, path] = LINE.exec(line) ?? [];
    if (!host) throw new Error(`Line ${at + 1} of the network must have the form “host METHODS /path”.`);
    const rule: Rule = { host };
    if (port) rule.port = Number(port);
    if (methods) rule.methods = methods.toUpperCase().split(",");
    if (path) rule.path_prefix = path;
    return [rule];
  });
}

/** Variables as lines of NAME=value. A value that does not fit on a line is written as a JSON string. */
export function writeVariables(variables: Record<string, string>): string {
  const written = (value: string) => (/^"|[\r\n]/.test(value) ? JSON.stringify(value) : value);
  return Object.entries(variables)
    .map(([name, value]) => `${name}=${written(value)}`)
    .join("\n");
}

/** Throws an `Error` that names the invalid line. */
export function readVariables(text: string): Record<string, string> {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  const pair = (line: string, at: number): [string, string] => {
    const middle = line.indexOf("=");
    if (middle < 1) throw new Error(`Line ${at + 1} of the variables must have the form “NAME=value”.`);
    const [name, value] = [line.slice(0, middle).trim(), line.slice(middle + 1)];
    if (!value.startsWith('"')) return [name, value];
    try {
      return [name, String(JSON.parse(value))];
    } catch {
      throw new Error(`Line ${at + 1} of the variables: a value that begins with " must be a JSON string.`);
    }
  };
  return Object.fromEntries(lines.map(pair));
}
