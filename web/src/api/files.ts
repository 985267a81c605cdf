// Files of a session's sandbox, part by part, as the service gives them.
import { api } from "./client";
import { Failure } from "./failure";

/** What one answer may hold; the service's own bound. */
const PART_BYTES = 64 << 20;

export interface Part {
  bytes: Blob;
  /** Of the whole file. */
  size: number;
}

/** Reads `length` bytes from `first` on, fewer at the file's end. */
export async function readPart(session: string, path: string, first: number, length: number, signal?: AbortSignal): Promise<Part> {
  const { data, error, response } = await api.GET("/v3/sessions/{session_id}/files", {
    params: {
      path: { session_id: session },
      query: { path },
      header: { Range: `bytes=${first}-${first + length - 1}` },
    },
    parseAs: "blob",
    signal,
  });
  if (!response.ok) throw Failure.of(error, response.status);
  const bytes = data as unknown as Blob;
  // An empty file has no range, and is answered whole.
  const size = Number(response.headers.get("Content-Range")?.split("/")[1] ?? bytes.size);
  return { bytes, size };
}

/** Reads all of a file, and gives it to the browser to keep under `name`. */
export async function download(session: string, path: string, name: string, onProgress: (part: number) => void): Promise<void> {
  const parts: Blob[] = [];
  let read = 0;
  for (;;) {
    const { bytes, size } = await readPart(session, path, read, PART_BYTES);
    parts.push(bytes);
    read += bytes.size;
    if (bytes.size === 0 || read >= size) break;
    onProgress(read / size);
  }
  // Of no type that a browser would open.
  const url = URL.createObjectURL(new Blob(parts, { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // The browser has begun to read it by then.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
