// One file of a sandbox. Text is shown as text, whatever the file name says: the browser never opens a file
// that an agent wrote.
import { useState } from "react";
import { useMutation, useQuery } from "@tanstack/react-query";
import { api, take } from "../api/client";
import { Failure } from "../api/failure";
import { download, readPart } from "../api/files";
import { Copy, Trouble } from "../parts/basics";
import { bytes } from "../parts/format";
import { Output, visible } from "../parts/text";
import { Waiting } from "./files";

/** Bytes of a file that are read and shown. */
const SHOWN_BYTES = 256 << 10;

interface Seen {
  /** Absent when the file is not text. */
  text?: string;
  size: number;
  isCut: boolean;
  isDirectory: boolean;
}

/** The text of a file; undefined when it is not UTF-8. */
async function words(part: Blob, isCut: boolean): Promise<string | undefined> {
  const raw = new Uint8Array(await part.arrayBuffer());
  if (raw.includes(0)) return undefined;
  try {
    // A truncated file may end in the middle of a character.
    return new TextDecoder("utf-8", { fatal: true }).decode(raw, { stream: isCut });
  } catch {
    return undefined;
  }
}

async function see(session: string, path: string, signal: AbortSignal): Promise<Seen> {
  try {
    const { bytes: part, size } = await readPart(session, path, 0, SHOWN_BYTES, signal);
    const isCut = size > part.size;
    return { text: await words(part, isCut), size, isCut, isDirectory: false };
  } catch (error) {
    // A link to a directory can only be listed with a trailing slash.
    if (!(error instanceof Failure) || error.type !== "invalid") throw error;
    const query = { path: `${path}/` };
    const listed = api.GET("/v3/sessions/{session_id}/files/list", { params: { path: { session_id: session }, query }, signal });
    await take(listed).catch(() => {
      throw error;
    });
    return { size: 0, isCut: false, isDirectory: true };
  }
}

interface Props {
  session: string;
  path: string;
  name: string;
  waits?: string;
  onDirectory: () => void;
}

export function FileView({ session, path, name, waits, onDirectory }: Props) {
  const [done, setDone] = useState(0);
  const query = useQuery({
    queryKey: ["session", session, "file", path],
    queryFn: ({ signal }) => see(session, path, signal),
    staleTime: Infinity,
    gcTime: 0,
    refetchOnReconnect: false,
    retry: false,
  });
  const save = useMutation({ mutationFn: () => download(session, path, name, setDone) });
  if (query.isPending) return <Waiting text={waits ?? "Reading the file…"} />;
  if (query.error) return <Trouble error={query.error} retry={() => query.refetch()} />;
  const { text, size, isCut, isDirectory } = query.data;
  if (isDirectory) {
    return (
      <p>
        This is a link to a directory.{" "}
        <button type="button" onClick={onDirectory}>
          Open directory
        </button>
      </p>
    );
  }
  return (
    <>
      <div className="head">
        <p className="quiet">
          {bytes(size)}
          {isCut && text !== undefined && `, of which the first ${bytes(SHOWN_BYTES)} are shown`}
        </p>
        <div className="actions">
          {text && !isCut && <Copy text={text} />}
          <button type="button" disabled={query.isFetching} onClick={() => query.refetch()}>
            Reload
          </button>
          <button type="button" className="main" disabled={save.isPending} onClick={() => save.mutate()}>
            {save.isPending ? `Downloading… ${Math.round(done * 100)} %` : "Download"}
          </button>
        </div>
      </div>
      <Trouble error={save.error} />
      {text === undefined && <p className="quiet">This file is not text. Download it to open it.</p>}
      {text === "" && <p className="quiet">The file is empty.</p>}
      {text && <Output text={visible(text)} label={`Text of ${name}`} />}
    </>
  );
}
