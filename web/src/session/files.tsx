// Files of the session's sandbox: directories to walk through, text to read, everything
// to download. Looking needs the sandbox, so a person is told when that wakes it.
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
/** So many rows are drawn at once; a directory may have thousands. */
const ROWS = 200;

/** What looking at the files does to the sandbox as it is; nothing where it is awake. */
function before(state?: State): { title: string; text: string; act: string } | undefined {
  switch (state) {
    case undefined:
      return {
        title: "There is no sandbox yet",
        text: "It is made when a tool first needs it. Looking makes one now, which takes a moment and costs what a sandbox costs.",
        act: "Make it and look",
      };
    case "hibernated":
    case "stopping":
      return {
        title: "The sandbox sleeps",
        text: "Nobody needed it, so it was put away with all its files. Waking it takes a moment and costs what a sandbox costs.",
        act: "Wake it and look",
      };
    case "lost":
      return {
        title: "The sandbox was lost",
        text: "It died. Another takes its place with the files that were kept, when someone needs it.",
        act: "Make another and look",
      };
    case "starting":
    case "running":
    case "frozen":
      return undefined;
  }
}

const WAITS: Partial<Record<State, string>> = {
  frozen: "The sandbox rests; it is woken up…",
  starting: "The sandbox is being made…",
  hibernated: "The sandbox wakes up. This takes a moment…",
  stopping: "The sandbox wakes up. This takes a moment…",
};

export function Files({ session }: { session: Session }) {
  const state = session.sandbox?.state;
  // Whoever looks at files goes on looking when the sandbox falls asleep meanwhile.
  const [wanted, setWanted] = useState(() => before(state) === undefined);
  const [where, setWhere] = useSearchParams();
  if (session.status === "archived") {
    return (
      <Empty title="The files are gone">
        <p>A session that is closed has no sandbox and no disk any more. Its log stays.</p>
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
  const waits = (state && WAITS[state]) ?? (state ? undefined : "The sandbox is being made…");
  const goes = (to: Record<string, string>) => setWhere(to);
  return (
    <div className="page files">
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
    <nav className="crumbs" aria-label="Where these files are">
      <ol>
        <li>
          <button type="button" className="plain mono" aria-label="The top directory" onClick={() => goes({ path: "/" })}>
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

/** Directories first, as people look for things. */
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
          // With the slash a link leads where it points to, and a file is no directory.
          params: { path: { session_id: session }, query: { path: below(path, "") } },
          signal,
        }),
      ),
    // Each look keeps the sandbox awake: only a person asks for another.
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
          {query.data.truncated && ", and more that are not listed"}
        </p>
        <button type="button" disabled={query.isFetching} onClick={() => query.refetch()}>
          {query.isFetching ? "Looking…" : "Look again"}
        </button>
      </div>
      {entries.length === 0 && (
        <Empty title="Nothing is here">
          <p>What the agent or your own commands write into this directory appears when you look again.</p>
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

/** Says what takes so long, and since when. */
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
