// Files of the session's sandbox: browse directories, read text, download. Reading needs a running sandbox,
// so the page asks before it starts one.
import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { useSearchParams } from "wouter";
import { api, type Schemas, take } from "../api/client";
import { Age, Empty, Trouble, useNow } from "../parts/basics";
import { bytes } from "../parts/format";
import { visible } from "../parts/text";
import { FileView } from "./file-view";

type Session = Schemas["Session"];
type State = Schemas["SandboxState"];
type Entry = Schemas["FileEntry"];

const ROOT = "/workspace";
/** Rows drawn at once; a directory may have thousands. */
const ROWS = 200;

/** What browsing does to a sandbox in this state; undefined when it is already running. */
function before(state?: State): { title: string; text: string; act: string } | undefined {
  switch (state) {
    case undefined:
      return {
        title: "No sandbox yet",
        text: "A sandbox starts when a tool first needs it. Browsing files starts one now, which takes a moment and incurs sandbox cost.",
        act: "Start sandbox",
      };
    case "hibernated":
    case "stopping":
      return {
        title: "The sandbox is hibernated",
        text: "It was idle, so its files were saved to a checkpoint and it was removed. Restoring it takes a moment and incurs sandbox cost.",
        act: "Restore sandbox",
      };
    case "lost":
      return {
        title: "The sandbox was lost",
        text: "It failed. A new sandbox starts from the last checkpoint when it is needed.",
        act: "Start a new sandbox",
      };
    case "starting":
    case "running":
    case "frozen":
      return undefined;
  }
}

const WAITS: Partial<Record<State, string>> = {
  frozen: "Thawing the sandbox…",
  starting: "Starting the sandbox…",
  hibernated: "Restoring the sandbox. This takes a moment…",
  stopping: "Restoring the sandbox. This takes a moment…",
};

export function Files({ session }: { session: Session }) {
  const state = session.sandbox?.state;
  // A reader who browses files keeps browsing when the sandbox is hibernated meanwhile.
  const [wanted, setWanted] = useState(() => before(state) === undefined);
  const [where, setWhere] = useSearchParams();
  if (session.status === "archived") {
    return (
      <Empty title="No files">
        <p>An archived session has no sandbox and no disk. Its log is retained.</p>
      </Empty>
    );
  }
  const asleep = wanted ? undefined : before(state);
  if (asleep) {
    return (
      <Empty title={asleep.title}>
        <p>{asleep.text}</p>
        <button type="button" className="main" onClick={() => setWanted(true)}>
          {asleep.act}
        </button>
      </Empty>
    );
  }
  const path = where.get("path") ?? ROOT;
  const file = where.get("file");
  const waits = (state && WAITS[state]) ?? (state ? undefined : "Starting the sandbox…");
  const goes = (to: Record<string, string>) => setWhere(to);
  return (
    <div className="page">
      <Crumbs path={path} file={file} goes={goes} />
      {file === null ? (
        <Directory session={session.id} path={path} waits={waits} goes={goes} />
      ) : (
        <FileView session={session.id} path={below(path, file)} name={file} waits={waits} onDirectory={() => goes({ path: below(path, file) })} />
      )}
    </div>
  );
}

type Goes = (to: Record<string, string>) => void;

const below = (path: string, name: string) => (path.endsWith("/") ? `${path}${name}` : `${path}/${name}`);

function Crumbs({ path, file, goes }: { path: string; file: string | null; goes: Goes }) {
  const names = path.split("/").filter(Boolean);
  const places = names.map((name, at) => ({ name, to: `/${names.slice(0, at + 1).join("/")}` }));
  const last = file === null ? places.length - 1 : places.length;
  return (
    <nav className="crumbs" aria-label="Path">
      <ol>
        <li>
          <button type="button" className="plain mono" aria-label="Root directory" onClick={() => goes({ path: "/" })}>
            /
          </button>
        </li>
        {places.map(({ name, to }, at) => (
          <li key={to}>
            <button
              type="button"
              className="plain mono"
              aria-current={at === last ? "location" : undefined}
              onClick={() => goes({ path: to })}
            >
              {visible(name)}
            </button>
          </li>
        ))}
        {file !== null && (
          <li>
            <span className="mono" aria-current="location">
              {visible(file)}
            </span>
          </li>
        )}
      </ol>
    </nav>
  );
}

/** Directories first. */
function ordered(entries: Entry[]): Entry[] {
  const rank = ({ type }: Entry) => (type === "directory" ? 0 : 1);
  return [...entries].sort((one, other) => rank(one) - rank(other));
}

function Directory(props: { session: string; path: string; waits?: string; goes: Goes }) {
  const { session, path, goes } = props;
  const [shown, setShown] = useState(ROWS);
  const query = useQuery({
    queryKey: ["session", session, "files", path],
    queryFn: ({ signal }) =>
      take(
        api.GET("/v3/sessions/{session_id}/files/list", {
          // The trailing slash follows a link, and rejects a file.
          params: { path: { session_id: session }, query: { path: below(path, "") } },
          signal,
        }),
      ),
    // Each read keeps the sandbox running, so only the user triggers another one.
    staleTime: Infinity,
    gcTime: 0,
    refetchOnReconnect: false,
    retry: false,
  });
  if (query.isPending) return <Waiting text={props.waits ?? "Reading the directory…"} />;
  if (query.error) return <Trouble error={query.error} retry={() => query.refetch()} />;
  const entries = ordered(query.data.entries);
  return (
    <>
      <div className="head">
        <p className="quiet">
          {entries.length === 1 ? "1 entry" : `${entries.length.toLocaleString("en")} entries`}
          {query.data.truncated && " and more that are not listed"}
        </p>
        <button type="button" disabled={query.isFetching} onClick={() => query.refetch()}>
          {query.isFetching ? "Loading…" : "Reload"}
        </button>
      </div>
      {entries.length === 0 && (
        <Empty title="Empty directory">
          <p>Files that the agent or your commands write here appear after a reload.</p>
        </Empty>
      )}
      {entries.length > 0 && <Entries entries={entries.slice(0, shown)} path={path} goes={goes} />}
      {entries.length > shown && (
        <button type="button" onClick={() => setShown(shown + ROWS)}>
          Show more
        </button>
      )}
    </>
  );
}

function Entries({ entries, path, goes }: { entries: Entry[]; path: string; goes: Goes }) {
  const open = ({ name, type }: Entry) => goes(type === "directory" ? { path: below(path, name) } : { path, file: name });
  return (
    <div className="table-wrap" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col" className="number">
              Size
            </th>
            <th scope="col">Changed</th>
          </tr>
        </thead>
        <tbody>
          {entries.map((entry) => (
            <tr key={entry.name}>
              <td>
                <Mark type={entry.type} />
                {entry.type === "other" ? (
                  <span className="mono">{visible(entry.name)}</span>
                ) : (
                  <button type="button" className="link mono" onClick={() => open(entry)}>
                    {visible(entry.name)}
                    {entry.type === "directory" && "/"}
                  </button>
                )}
              </td>
              <td data-label="Size" className="number">
                {entry.type === "file" ? bytes(entry.bytes) : ""}
              </td>
              <td data-label="Changed">{entry.modified_at && <Age ts={entry.modified_at} />}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const MARKS: Record<string, [string, string]> = {
  directory: ["directory", "M1.5 4.5v8h13v-7h-7l-1.5-2h-4.5z"],
  file: ["file", "M4 1.5h5.5l3 3v10H4zM9.5 1.5v3h3"],
  link: ["link", "M6 4H2.5v9.5h9.5V10M8.5 2.5h5v5M13.5 2.5l-6 6"],
};

function Mark({ type }: { type: string }) {
  const [said, path] = MARKS[type] ?? ["neither a file nor a directory", "M3 8h10"];
  return (
    <svg className="sort" viewBox="0 0 16 16" width="16" height="16" role="img" aria-label={said}>
      <path d={path} />
    </svg>
  );
}

/** Shows what is in progress, and for how many seconds. */
export function Waiting({ text }: { text: string }) {
  const now = useNow();
  const [since] = useState(now);
  const seconds = Math.round((now - since) / 1_000);
  return (
    <p className="working" role="status">
      <i aria-hidden />
      {text}
      {seconds > 2 && <span className="number">{seconds} s</span>}
    </p>
  );
}
