// Skills of an agent as text: `name` for the newest version, `name@version` for another.
import type { Schemas } from "../api/client";

type Choice = Schemas["SkillChoice"];

/** The skills, each as `name` or `name@version`. */
export function skillNames(skills: Choice[] | null | undefined): string[] {
  return (skills ?? []).map(({ skill, version }) => (typeof version === "number" ? `${skill}@${version}` : skill));
}

/** Reads the field of a form, one skill a line. Throws an `Error` for the user. */
export function skillsOf(field: string): Choice[] {
  return field.split("\n").flatMap((line, at) => {
    if (line.trim() === "") return [];
    const [, skill, version] = /^([^@\s]+)(?:@([1-9][0-9]{0,8}|latest))?$/.exec(line.trim()) ?? [];
    if (!skill) throw new Error(`Line ${at + 1} of the skills is not a name or name@version.`);
    return [{ skill, version: version && version !== "latest" ? Number(version) : "latest" }];
  });
}
