// Files of messages and tool results. Only images of some types are shown; the browser opens no other file.
import { createContext, type ReactNode, type RefObject, useContext, useEffect, useRef, useState } from "react";
import { useMutation, useQuery } from "@tanstack/react-query";
import { reason } from "../api/failure";
import { saveAs } from "../api/files";
import { type FilePart, isShown, readFile } from "../api/stored-files";
import { Dialog, Loading } from "../parts/basics";
import { bytes } from "../parts/format";
import { visible } from "../parts/text";

/** Time for which the bytes of an image that is scrolled away stay in memory. */
const IMAGE_CACHE_MS = 60_000;
/** Distance from the visible part of the timeline, in pixels, within which an image is loaded. */
const NEAR_PX = 300;

const labelOf = (file: FilePart) => `${visible(file.name)}, ${bytes(file.bytes)}`;

const Show = createContext<(file: FilePart) => void>(() => undefined);

/** Shows an image of its children in a dialog. The dialog is here, because rows that are scrolled away are unmounted. */
export function ImageViewer({ children }: { children: ReactNode }) {
  const [shown, setShown] = useState<FilePart>();
  return (
    <Show value={setShown}>
      {children}
      {shown && <LargeImage file={shown} onClose={() => setShown(undefined)} />}
    </Show>
  );
}

export function FileList({ files }: { files: FilePart[] }) {
  if (files.length === 0) return null;
  return (
    <ul className="files" aria-label="Files">
      {files.map((file, at) => (
        <li key={at}>{isShown(file) ? <Thumbnail file={file} /> : <FileRow file={file} />}</li>
      ))}
    </ul>
  );
}

function FileRow({ file }: { file: FilePart }) {
  return (
    <p className="file">
      <span className="name">{visible(file.name)}</span>
      <span className="quiet">{visible(file.media_type)}</span>
      <span className="quiet">{bytes(file.bytes)}</span>
      <Download file={file} />
    </p>
  );
}

function Thumbnail({ file }: { file: FilePart }) {
  const show = useContext(Show);
  const button = useRef<HTMLButtonElement>(null);
  const image = useImage(file, useIsNear(button));
  if (image.failure) return <NotShown file={file} failure={image.failure} />;
  return (
    <button ref={button} type="button" className="thumbnail" disabled={!image.url} onClick={() => show(file)}>
      {image.url ? <img src={image.url} alt={labelOf(file)} decoding="async" onError={image.onError} /> : <span>{labelOf(file)}</span>}
    </button>
  );
}

function LargeImage({ file, onClose }: { file: FilePart; onClose: () => void }) {
  const image = useImage(file, true);
  return (
    <Dialog title={visible(file.name)} onClose={onClose}>
      {image.failure ? (
        <NotShown file={file} failure={image.failure} />
      ) : (
        <>
          {image.url ? <img className="large" src={image.url} alt={labelOf(file)} onError={image.onError} /> : <Loading />}
          <FileRow file={file} />
        </>
      )}
    </Dialog>
  );
}

function NotShown({ file, failure }: { file: FilePart; failure: string }) {
  return (
    <p className="file">
      <span>
        {labelOf(file)} cannot be shown: {failure}
      </span>
      <Download file={file} />
    </p>
  );
}

function Download({ file }: { file: FilePart }) {
  const save = useMutation({ mutationFn: async () => saveAs([await readFile(file)], file.name) });
  return (
    <>
      <button type="button" className="plain small" disabled={save.isPending} onClick={() => save.mutate()}>
        {save.isPending ? "Downloading…" : "Download"}
        <span className="visually-hidden"> {visible(file.name)}</span>
      </button>
      {save.error && (
        <span role="alert">
          {visible(file.name)} cannot be downloaded: {reason(save.error)}
        </span>
      )}
    </>
  );
}

interface Image {
  /** Address of its bytes, revoked when the component is unmounted. */
  url?: string;
  /** Why it cannot be shown. */
  failure?: string;
  onError: () => void;
}

/** Reads an image once it is `wanted`. */
function useImage(file: FilePart, wanted: boolean): Image {
  const { data, error } = useQuery({
    queryKey: ["stored-file", file.file_id],
    queryFn: ({ signal }) => readFile(file, signal),
    enabled: wanted,
    // A stored file never changes.
    staleTime: Infinity,
    gcTime: IMAGE_CACHE_MS,
    retry: false,
  });
  const [url, setUrl] = useState<string>();
  const [isBroken, setBroken] = useState(false);
  useEffect(() => {
    if (!data) return;
    const made = URL.createObjectURL(data);
    setUrl(made);
    return () => {
      setUrl(undefined);
      URL.revokeObjectURL(made);
    };
  }, [data]);
  const failure = error ? reason(error) : isBroken ? "The browser cannot decode it." : undefined;
  return { url, failure, onError: () => setBroken(true) };
}

/** Whether an element was near the visible part of the timeline. */
function useIsNear(element: RefObject<HTMLElement | null>): boolean {
  const [isNear, setNear] = useState(false);
  useEffect(() => {
    if (!element.current) return;
    const watcher = new IntersectionObserver((entries) => entries.some(({ isIntersecting }) => isIntersecting) && setNear(true), {
      root: element.current.closest(".frame"),
      rootMargin: `${NEAR_PX}px`,
    });
    watcher.observe(element.current);
    return () => watcher.disconnect();
  }, [element]);
  return isNear;
}
