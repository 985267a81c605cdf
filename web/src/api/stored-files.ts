// Stored files: those of messages and of tool results, and the upload of new ones.
import { requestPath, type Schemas } from "./client";
import { Failure } from "./failure";
import { KEY_REFUSED, readKey, signOut } from "./key";

/** Largest file of an upload, in bytes; the service's own limit. */
export const FILE_BYTES_MAX = 30 << 20;
/** Files of one message; the service's own limit of its parts. */
export const MESSAGE_FILES_MAX = 32;

/** Types that the page shows as an image. SVG is not one of them: it may contain script. */
const SHOWN_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/** A file of a message or of a tool result. */
export type FilePart = Extract<Schemas["Content"], { file_id: string }>;
/** An uploaded file. */
export type StoredFile = Schemas["FileView"];
/** A part of a message that names an uploaded file. */
export type SentFile = Omit<Extract<Schemas["ContentInput"], { source: unknown }>, "source"> & {
  source: Extract<Schemas["FileSource"], { type: "file" }>;
};

/** The files in the `content` of an event's body. Parts of other types are left out. */
export function filesOf(body: object): FilePart[] {
  const { content } = body as { content?: unknown };
  return Array.isArray(content) ? content.filter(isFile) : [];
}

function isFile(part: unknown): part is FilePart {
  const { type, file_id, name, media_type, bytes } = (part ?? {}) as Partial<Record<string, unknown>>;
  const isText = [file_id, name, media_type].every((field) => typeof field === "string");
  return (type === "image" || type === "document") && isText && typeof bytes === "number";
}

/** Whether the page shows the file as an image. */
export function isShown(file: FilePart): boolean {
  return file.type === "image" && SHOWN_TYPES.includes(file.media_type);
}

/** Reads the bytes of a file. Their type is that of an image only if the page shows it. */
export async function readFile(file: FilePart, signal?: AbortSignal): Promise<Blob> {
  const response = await requestPath(`/v3/files/${encodeURIComponent(file.file_id)}/content`, { signal });
  const content = await response.arrayBuffer().catch((error: unknown) => {
    throw signal?.aborted ? error : Failure.unreachable();
  });
  return new Blob([content], { type: isShown(file) ? file.media_type : "application/octet-stream" });
}

/** Deletes an uploaded file. */
export async function deleteFile(id: string): Promise<void> {
  await requestPath(`/v3/files/${encodeURIComponent(id)}`, { method: "DELETE" });
}

interface Upload {
  /** Idempotency key: a repeated upload with it stores one file. */
  key: string;
  signal: AbortSignal;
  /** Gets the sent part of the bytes, 0 to 1. */
  onProgress: (part: number) => void;
}

/** Uploads a file; throws a `Failure`, or an `AbortError` after `signal` was aborted. */
export async function upload(file: File, { key, signal, onProgress }: Upload): Promise<StoredFile> {
  // A request whose file is a directory or was removed fails like one without a network.
  await file.slice(0, 1).arrayBuffer().catch(() => {
    throw Failure.invalid("The file cannot be read. Remove it and attach it again.");
  });
  signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    // `fetch` does not report the progress of an upload.
    const request = new XMLHttpRequest();
    request.open("POST", `/v3/files?${new URLSearchParams({ name: file.name })}`);
    request.setRequestHeader("Authorization", `Bearer ${readKey() ?? ""}`);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.setRequestHeader("Idempotency-Key", key);
    request.responseType = "json";
    request.upload.onprogress = ({ loaded, total }) => onProgress(total > 0 ? loaded / total : 0);
    request.onload = () => {
      if (request.status === 401) signOut(KEY_REFUSED);
      if (request.status >= 200 && request.status < 300) resolve(request.response as StoredFile);
      else reject(Failure.of(request.response, request.status));
    };
    request.onerror = () => reject(Failure.unreachable());
    request.onabort = () => reject(signal.reason);
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}
