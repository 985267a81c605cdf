// Skills of an organization: folders with instructions and files for agents.
import type { Sojourn } from "./index.js";
import type { components } from "./schema.js";

type Schemas = components["schemas"];

/** A version of a skill. */
export type Skill = Schemas["SkillView"];

/** A skill: the path of its folder on this machine (Node, Deno and Bun), or a tar archive of the folder. */
export type SkillData = string | Blob | ArrayBuffer | Uint8Array;

const BLOCK_BYTES = 512;
/** Longest name of an entry, and its longest prefix, in a ustar header. */
const NAME_BYTES = 100;
const PREFIX_BYTES = 155;
/** Offsets in a ustar header. */
const CHECKSUM_AT = 148;
const PREFIX_AT = 345;
const ANY_EXECUTE = 0o111;

/** The skills of an organization. */
export class Skills {
  constructor(private readonly client: Sojourn) {}

  /**
   * Stores a version of a skill, of at most 30 MiB and 500 files. Returns the newest version if it has the same files.
   * Throws an `Error` if the folder contains a link, or a path that is too long for a tar archive.
   */
  async upload(skill: SkillData): Promise<Skill> {
    const archive = typeof skill === "string" ? await pack(skill) : skill;
    const headers = { "Content-Type": "application/x-tar" };
    const bodySerializer = () => archive;
    return this.client.take(this.client.api.POST("/v3/skills", { headers, body: "", bodySerializer }));
  }

  /** Returns a page of the versions, newest first; with `name` those of this skill. */
  list(query: { name?: string; limit?: number; cursor?: string } = {}): Promise<Schemas["Page_SkillView"]> {
    return this.client.take(this.client.api.GET("/v3/skills", { params: { query } }));
  }

  /** Yields every version, page by page; with `name` those of this skill. */
  async *pages(query: { name?: string } = {}): AsyncGenerator<Skill> {
    let cursor: string | undefined;
    do {
      const page = await this.list({ limit: 100, ...query, cursor });
      yield* page.data;
      cursor = page.next_cursor ?? undefined;
    } while (cursor !== undefined);
  }

  get(skill: string): Promise<Skill> {
    return this.client.take(this.client.api.GET("/v3/skills/{skill_id}", { params: at(skill) }));
  }

  /** Reads a tar archive of the files of a version; its paths begin with the name of the skill. */
  async content(skill: string): Promise<Blob> {
    const reading = this.client.api.GET("/v3/skills/{skill_id}/content", { params: at(skill), parseAs: "blob" });
    return (await this.client.take(reading)) as unknown as Blob;
  }

  /** Deletes a version. Throws a `SojournError` with the code `in_use` while a session uses it or an agent needs it. */
  async delete(skill: string): Promise<void> {
    await this.client.take(this.client.api.DELETE("/v3/skills/{skill_id}", { params: at(skill) }));
  }
}

/** Packs the files of a folder as a ustar archive, in the order of their paths. */
async function pack(folder: string): Promise<Blob> {
  // The modules are named by variables, so that bundlers for browsers do not look for them.
  const [fs, paths] = ["node:fs/promises", "node:path"];
  const { readdir, readFile, stat } = (await import(/* webpackIgnore: true */ /* @vite-ignore */ fs!)) as typeof import("node:fs/promises");
  const { join } = (await import(/* webpackIgnore: true */ /* @vite-ignore */ paths!)) as typeof import("node:path");
  const files: string[] = [];
  const find = async (below: string) => {
    for (const entry of await readdir(join(folder, below), { withFileTypes: true })) {
      const path = below + entry.name;
      if (entry.isDirectory()) await find(`${path}/`);
      else if (entry.isFile()) files.push(path);
      else throw new Error(`${join(folder, path)} is neither a file nor a directory; links are not allowed`);
    }
  };
  await find("");
  const blocks: Uint8Array<ArrayBuffer>[] = [];
  for (const path of files.sort()) {
    const content = new Uint8Array(await readFile(join(folder, path)));
    const { mode } = await stat(join(folder, path));
    const padding = new Uint8Array(-content.length & (BLOCK_BYTES - 1));
    blocks.push(header(path, content.length, (mode & ANY_EXECUTE) !== 0), content, padding);
  }
  // Two empty blocks are the end of an archive.
  return new Blob([...blocks, new Uint8Array(2 * BLOCK_BYTES)]);
}

/** Returns the ustar header of a file. Its owner and its time are 0, so that equal folders have equal archives. */
function header(path: string, size: number, isExecutable: boolean): Uint8Array<ArrayBuffer> {
  const block = new Uint8Array(BLOCK_BYTES);
  const write = (offset: number, bytes: Uint8Array) => block.set(bytes, offset);
  const octal = (value: number, digits: number) => utf8(`${value.toString(8).padStart(digits, "0")}\0`);
  const [prefix, name] = split(path);
  write(0, name);
  write(100, octal(isExecutable ? 0o755 : 0o644, 7));
  write(108, octal(0, 7));
  write(116, octal(0, 7));
  write(124, octal(size, 11));
  write(136, octal(0, 11));
  // The checksum counts its own field as spaces.
  write(CHECKSUM_AT, utf8(" ".repeat(8)));
  write(156, utf8("0"));
  write(257, utf8("ustar\x0000"));
  write(PREFIX_AT, prefix);
  write(CHECKSUM_AT, octal(block.reduce((sum, byte) => sum + byte, 0), 6));
  return block;
}

/** Splits a path into the prefix and the name of a ustar header, at a slash that is in neither. */
function split(path: string): [prefix: Uint8Array, name: Uint8Array] {
  const bytes = utf8(path);
  if (bytes.length <= NAME_BYTES) return [new Uint8Array(), bytes];
  const slash = bytes.indexOf("/".charCodeAt(0), bytes.length - NAME_BYTES - 1);
  if (slash < 1 || slash > PREFIX_BYTES) throw new Error(`the path ${path} is too long for a tar archive`);
  return [bytes.subarray(0, slash), bytes.subarray(slash + 1)];
}

const utf8 = (text: string) => new TextEncoder().encode(text);

const at = (skill: string) => ({ path: { skill_id: skill } });
