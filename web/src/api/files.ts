// Files of a session's sandbox, read in ranges.
import { api } from "./client";
import { Failure } from "./failure";

/** Largest range of one response, in bytes; the service's own limit. */
const PART_BYTES = 64 << 20;

export interface Part {
  bytes: Blob;
  /** Size of the whole file, in bytes. */
  size: number;
}

/** Reads `length` bytes at offset `first`; fewer at the end of the file. */
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
  // An empty file has no range and is returned whole.
  const size = Number(response.headers.get("Content-Range")?.split("/")[1] ?? bytes.size);
  return { bytes, size };
}

/** Reads a whole file and has the browser store it as `name`. */
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
  saveAs(parts, name);
}

/** Has the browser store bytes as `name`. */
export function saveAs(parts: Blob[], name: string): void {
  // A content type that no browser opens.
  const url = URL.createObjectURL(new Blob(parts, { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // The browser has started to read the blob by then.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
