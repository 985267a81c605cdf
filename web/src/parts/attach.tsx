// Button that attaches files to a message, and the list of those that are attached.
import { useRef } from "react";
import type { Attached, AttachedFile } from "./attached";
import { bytes } from "./format";
import { visible } from "./text";

export function AttachButton({ attached }: { attached: Attached }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        ref={input}
        type="file"
        multiple
        hidden
        onChange={({ target }) => {
          attached.add([...(target.files ?? [])]);
          // The same file can be chosen again after it was removed.
          target.value = "";
        }}
      />
      <button type="button" className="small" onClick={() => input.current?.click()}>
        Attach files
      </button>
    </>
  );
}

export function AttachedList({ attached }: { attached: Attached }) {
  const { files, refusals, isUploading } = attached;
  const failed = files.filter(({ state }) => state.is === "failed").length;
  return (
    <>
      {files.length > 0 && (
        <ul className="attached" aria-label="Attached files">
          {files.map((one) => (
            <AttachedItem key={one.key} one={one} disabled={isUploading} onRemove={() => attached.remove(one)} />
          ))}
        </ul>
      )}
      {isUploading && files.length > 0 && (
        <p className="under">
          <span role="status">Uploading…</span>
          <button type="button" className="plain small" onClick={attached.stop}>
            Stop
          </button>
        </p>
      )}
      {failed > 0 && !isUploading && (
        <p className="trouble" role="alert">
          Nothing was sent, because {failed === 1 ? "1 file was" : `${failed} files were`} not uploaded. Try again, or remove{" "}
          {failed === 1 ? "it" : "them"}.
        </p>
      )}
      {refusals.length > 0 && (
        <ul className="trouble lines" role="alert">
          {refusals.map((line) => (
            <li key={line}>{line}</li>
          ))}
        </ul>
      )}
    </>
  );
}

function AttachedItem({ one, disabled, onRemove }: { one: AttachedFile; disabled: boolean; onRemove: () => void }) {
  const { file, state } = one;
  const name = visible(file.name);
  return (
    <li data-state={state.is}>
      <span className="name">{name}</span>
      <span className="quiet">{bytes(file.size)}</span>
      {state.is === "uploading" && (
        <>
          <progress value={state.part} aria-label={`Upload of ${name}`} />
          <span className="quiet number">{Math.round(state.part * 100)} %</span>
        </>
      )}
      {state.is === "stored" && <span className="quiet">uploaded</span>}
      {state.is === "failed" && <span className="reason">{`Not uploaded: ${state.reason}`}</span>}
      <button type="button" className="plain small" disabled={disabled} onClick={onRemove}>
        Remove<span className="visually-hidden"> {name}</span>
      </button>
    </li>
  );
}
