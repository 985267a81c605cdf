// Files that are attached to a message which is not sent yet.
import { type ClipboardEvent, type DragEvent, useEffect, useRef, useState } from "react";
import { nonce } from "../api/client";
import { reason } from "../api/failure";
import { deleteFile, FILE_BYTES_MAX, MESSAGE_FILES_MAX, type SentFile, type StoredFile, upload } from "../api/stored-files";
import { bytes } from "./format";
import { visible } from "./text";

type State =
  | { is: "waiting" }
  /** `part` of its bytes is sent, 0 to 1. */
  | { is: "uploading"; part: number }
  | { is: "stored"; stored: StoredFile }
  | { is: "failed"; reason: string };

export interface AttachedFile {
  /** Also the idempotency key of its upload. */
  key: string;
  file: File;
  state: State;
}

export type Attached = ReturnType<typeof useAttached>;

/** Reason why a file cannot be attached. */
function refusal({ size }: File): string | undefined {
  if (size === 0) return "it is empty";
  if (size > FILE_BYTES_MAX) return `it has ${bytes(size)}, and a file may have at most ${bytes(FILE_BYTES_MAX)}`;
  return undefined;
}

/** The attached files of a form, and their uploads. Unmounting it stops the uploads. */
export function useAttached() {
  const [files, setFiles] = useState<AttachedFile[]>([]);
  const [refusals, setRefusals] = useState<string[]>([]);
  const [isUploading, setUploading] = useState(false);
  const running = useRef<AbortController>(undefined);
  useEffect(() => () => running.current?.abort(), []);

  const add = (chosen: File[]) => {
    const refused = chosen.flatMap((file) => {
      const why = refusal(file);
      return why ? [`${visible(file.name)} is not attached: ${why}.`] : [];
    });
    const accepted = chosen.filter((file) => !refusal(file));
    const free = MESSAGE_FILES_MAX - files.length;
    for (const { name } of accepted.splice(free)) {
      refused.push(`${visible(name)} is not attached: a message may have at most ${MESSAGE_FILES_MAX} files.`);
    }
    setRefusals(refused);
    setFiles((now) => [...now, ...accepted.map((file) => ({ key: nonce(), file, state: { is: "waiting" as const } }))]);
  };
  const remove = ({ key, state }: AttachedFile) => {
    setRefusals([]);
    setFiles((now) => now.filter((one) => one.key !== key));
    // If it fails, the file is in use, or stays in the list of files.
    if (state.is === "stored") deleteFile(state.stored.id).catch(() => undefined);
  };

  /** Uploads the files that are not stored yet. Returns the parts of the message, or nothing if one of them failed. */
  const uploadAll = async (): Promise<SentFile[] | undefined> => {
    if (running.current) return undefined;
    const end = new AbortController();
    running.current = end;
    setUploading(true);
    setRefusals([]);
    const set = (key: string, state: State) => setFiles((now) => now.map((one) => (one.key === key ? { ...one, state } : one)));
    const stored: (StoredFile | undefined)[] = [];
    for (const one of files) stored.push(await store(one, end.signal, (state) => set(one.key, state)));
    running.current = undefined;
    setUploading(false);
    if (end.signal.aborted || stored.includes(undefined)) return undefined;
    return stored.filter((file) => file !== undefined).map(part);
  };
  /** Removes the files of a message that was sent. */
  const clear = (sent: SentFile[]) => {
    const ids = sent.map(({ source }) => source.file_id);
    setFiles((now) => now.filter(({ state }) => state.is !== "stored" || !ids.includes(state.stored.id)));
  };
  return { files, refusals, isUploading, add, remove, uploadAll, stop: () => running.current?.abort(), clear, zone: useZone(add) };
}

/** Stores one file and reports its states; returns nothing if it failed. */
async function store({ key, file, state }: AttachedFile, signal: AbortSignal, set: (state: State) => void): Promise<StoredFile | undefined> {
  if (state.is === "stored") return state.stored;
  if (signal.aborted) return undefined;
  set({ is: "uploading", part: 0 });
  try {
    const stored = await upload(file, { key, signal, onProgress: (part) => set({ is: "uploading", part }) });
    set({ is: "stored", stored });
    return stored;
  } catch (error) {
    set(signal.aborted ? { is: "waiting" } : { is: "failed", reason: reason(error) });
    return undefined;
  }
}

function part({ id, image }: StoredFile): SentFile {
  return { type: image ? "image" : "document", source: { type: "file", file_id: id } };
}

const hasFiles = (transfer: DataTransfer | null) => transfer?.types.includes("Files") ?? false;

/** Properties of an element that takes dropped files and pasted images. */
function useZone(add: (files: File[]) => void) {
  const [isOver, setOver] = useState(false);
  useEffect(() => {
    // Without this, the browser leaves the page and opens a file that is dropped beside the element.
    const ignore = (event: globalThis.DragEvent) => {
      if (event.defaultPrevented || !hasFiles(event.dataTransfer)) return;
      event.preventDefault();
      if (event.dataTransfer) event.dataTransfer.dropEffect = "none";
    };
    const end = new AbortController();
    window.addEventListener("dragover", ignore, { signal: end.signal });
    window.addEventListener("drop", ignore, { signal: end.signal });
    return () => end.abort();
  }, []);
  return {
    "data-drop": isOver ? "" : undefined,
    onDragOver(event: DragEvent) {
      if (!hasFiles(event.dataTransfer)) return;
      event.preventDefault();
      setOver(true);
    },
    onDragLeave({ currentTarget, relatedTarget }: DragEvent) {
      if (!(relatedTarget instanceof Node && currentTarget.contains(relatedTarget))) setOver(false);
    },
    onDrop(event: DragEvent) {
      setOver(false);
      if (!hasFiles(event.dataTransfer)) return;
      event.preventDefault();
      add([...event.dataTransfer.files]);
    },
    onPaste(event: ClipboardEvent) {
      const images = [...event.clipboardData.files].filter(({ type }) => type.startsWith("image/"));
      // Programs that copy a text add an image of it.
      if (images.length === 0 || event.clipboardData.types.includes("text/plain")) return;
      event.preventDefault();
      add(images);
    },
  };
}
