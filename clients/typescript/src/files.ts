// Stored files of an organization, for messages and results of custom tools.
import { SojournError } from "./error.js";
import type { Sojourn } from "./index.js";
import type { components } from "./schema.js";

type Schemas = components["schemas"];

/** A stored file. */
export type StoredFile = Schemas["FileView"];

/** A part of a message or of a result: a text, an image or a document. */
export type ContentPart = Schemas["ContentInput"];

/** A file: its bytes, or its path on this machine (Node, Deno and Bun). */
export type FileData = string | Blob | ArrayBuffer | Uint8Array;

/**
 * Bytes of files that are sent within a message, less than; others are uploaded before. A message may have 8 MiB, and
 * base64 makes 4 of 3 bytes.
 */
const INLINE_BYTES = 4 << 20;
/** Bytes that are encoded at once; those of all chunks but the last one need no padding. */
const CHUNK_BYTES = 3 << 13;
/** Name of bytes that are uploaded without one. */
const UNNAMED = "file";
/** First bytes of the images that a model can get; a dot is any byte. */
const IMAGE = /^(\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP)/s;

/** The files of an organization. */
export class Files {
  constructor(private readonly client: Sojourn) {}

  /** Stores a file of at most 30 MiB until it is deleted. The name is by default that of the `File`, or the last part of the path. */
  async upload(file: FileData, name?: string): Promise<StoredFile> {
    return this.store(await read(file, name));
  }

  /** Returns a page of the files, newest first; with `session` those that this session uses. */
  list(query: { session?: string; limit?: number; cursor?: string } = {}): Promise<Schemas["Page_FileView"]> {
    return this.client.take(this.client.api.GET("/v3/files", { params: { query } }));
  }

  /** Yields every file, page by page; with `session` those that this session uses. */
  async *pages(query: { session?: string } = {}): AsyncGenerator<StoredFile> {
    let cursor: string | undefined;
    do {
      const page = await this.list({ limit: 100, ...query, cursor });
      yield* page.data;
      cursor = page.next_cursor ?? undefined;
    } while (cursor !== undefined);
  }

  get(file: string): Promise<StoredFile> {
    return this.client.take(this.client.api.GET("/v3/files/{file_id}", { params: at(file) }));
  }

  /** Reads the bytes of a file, as they were uploaded. */
  async content(file: string): Promise<Blob> {
    const reading = this.client.api.GET("/v3/files/{file_id}/content", { params: at(file), parseAs: "blob" });
    return (await this.client.take(reading)) as unknown as Blob;
  }

  /** Deletes a file. Throws a `SojournError` with the code `in_use` while a session uses it. */
  async delete(file: string): Promise<void> {
    await this.client.take(this.client.api.DELETE("/v3/files/{file_id}", { params: at(file) }));
  }

  /**
   * Makes a part of a message or of a result from a file: an image, or else a document. A file of less than 4 MiB is
   * sent within the message and deleted with the session; another one is uploaded and stays until it is deleted.
   */
  async part(file: FileData, name?: string): Promise<ContentPart> {
    const [part] = await this.make([await read(file, name)]);
    return part!;
  }

  /** Makes parts of one message from several files, which fit into the message: those that would not are uploaded. */
  async parts(...files: FileData[]): Promise<ContentPart[]> {
    return this.make(await Promise.all(files.map((file) => read(file))));
  }

  private async make(files: LocalFile[]): Promise<ContentPart[]> {
    const parts: ContentPart[] = [];
    let left = INLINE_BYTES;
    for (const file of files) {
      const { content, name } = file;
      const isInline = content.length < left;
      left -= isInline ? content.length : 0;
      const source = isInline
        ? { type: "base64" as const, data: base64(content) }
        : { type: "file" as const, file_id: (await this.store(file)).id };
      const type = IMAGE.test(latin(content.subarray(0, 12))) ? "image" : "document";
      parts.push({ type, source, ...(name ? { name } : {}) });
    }
    return parts;
  }

  private store({ content, name = UNNAMED }: LocalFile): Promise<StoredFile> {
    const headers = { "Content-Type": "application/octet-stream" };
    const params = { query: { name } };
    const bodySerializer = () => content;
    return this.client.take(this.client.api.POST("/v3/files", { params, headers, body: "", bodySerializer }));
  }
}

interface LocalFile {
  content: Uint8Array<ArrayBuffer>;
  name?: string;
}

async function read(file: FileData, name?: string): Promise<LocalFile> {
  if (typeof file === "string") return readPath(file, name);
  if (file instanceof Blob) {
    const own = "name" in file && typeof file.name === "string" ? file.name : undefined;
    return { content: new Uint8Array(await file.arrayBuffer()), name: name ?? own };
  }
  return { content: new Uint8Array(file), name };
}

/** Reads a file of this machine. The modules are named by variables, so that bundlers for browsers do not look for them. */
async function readPath(path: string, name?: string): Promise<LocalFile> {
  const [files, paths] = ["node:fs/promises", "node:path"];
  const { readFile } = (await import(/* webpackIgnore: true */ /* @vite-ignore */ files!)) as typeof import("node:fs/promises");
  const { basename } = (await import(/* webpackIgnore: true */ /* @vite-ignore */ paths!)) as typeof import("node:path");
  return { content: new Uint8Array(await readFile(path)), name: name ?? basename(path) };
}

/** One character for each byte. */
const latin = (bytes: Uint8Array) => String.fromCharCode(...bytes);

function base64(content: Uint8Array): string {
  const chunks: string[] = [];
  for (let start = 0; start < content.length; start += CHUNK_BYTES) {
    chunks.push(btoa(latin(content.subarray(start, start + CHUNK_BYTES))));
  }
  return chunks.join("");
}

const at = (file: string) => ({ path: { file_id: file } });
