// One-line notices of events outside the conversation: limits, errors, the sandbox.
import type { Event } from "../api/follow";
import { bytes, span } from "../parts/format";
import { visible } from "../parts/text";
import type { NoticeRow } from "./rows";

const when = (ts: string) => new Date(ts).toLocaleString();

const ENDS: Record<string, string> = {
  idle: "idle timeout",
  expired: "maximum lifetime reached",
  rotated: "replaced by a new sandbox",
};

const share = ({ used, allowed }: { used: number; allowed: number }) => `${used.toLocaleString()} of ${allowed.toLocaleString()}`;

type Notice = Pick<NoticeRow, "tone" | "title" | "detail" | "retry_at">;

/** Files that the model refused: the text of its error is in the notice before this one. */
function dropped(files: string[], names: ReadonlyMap<string, string>): Notice {
  const title = files.length === 1 ? "1 file is not shown to the model any more" : `${files.length} files are not shown to the model any more`;
  const list = files.map((file) => visible(names.get(file) ?? file)).join(", ");
  return { tone: "warn", title, detail: `${list}. The model gets the path in the sandbox instead.` };
}

/** The notice of an event; undefined for events without information for a user. `names` are those of files by id. */
export function noticed(event: Event, names: ReadonlyMap<string, string>): Notice | undefined {
  switch (event.type) {
    case "error.model":
    case "error.runtime":
    case "error.task": {
      const who = { "error.model": "The model", "error.runtime": "The service", "error.task": "The task" }[event.type];
      const { code, message, retry_at } = event.body;
      const title = code === "files_refused" ? "The model refused files" : `${who} failed: ${code.replaceAll("_", " ")}`;
      return { tone: retry_at ? "warn" : "bad", title, detail: message, retry_at: retry_at ?? undefined };
    }
    case "limit.warning":
      return { tone: "warn", title: `80% of the limit “${event.body.limit}” used`, detail: share(event.body) };
    case "limit.exceeded":
      return { tone: "bad", title: `Limit “${event.body.limit}” exceeded`, detail: share(event.body) };
    case "sandbox.created":
      return { tone: "plain", title: "Sandbox attached", detail: `in ${span(event.body.duration_ms)}` };
    case "sandbox.waiting":
      return { tone: "warn", title: "Waiting for capacity for a sandbox", detail: `position ${event.body.queue_position}: ${event.body.shortage.replaceAll("_", " ")}` };
    case "sandbox.frozen":
      return { tone: "plain", title: "Sandbox frozen", detail: "idle" };
    case "sandbox.thawed":
      return { tone: "plain", title: "Sandbox thawed" };
    case "sandbox.checkpoint_created":
      return { tone: "plain", title: "Files saved in a checkpoint" };
    case "sandbox.checkpoint_restored":
      return { tone: "plain", title: "Files restored from a checkpoint", detail: `in ${span(event.body.duration_ms)}` };
    case "sandbox.files_lost":
      return { tone: "bad", title: "Files lost with the disk", detail: event.body.since ? `changes after ${when(event.body.since)}` : "all files" };
    case "sandbox.rotation_failed":
      return { tone: event.body.failed ? "bad" : "warn", title: "The sandbox could not be replaced", detail: event.body.reason };
    case "sandbox.lost":
      return { tone: "warn", title: "Sandbox lost", detail: event.body.reason };
    case "sandbox.terminated":
      return { tone: "plain", title: "Sandbox removed", detail: ENDS[event.body.reason] ?? event.body.reason };
    case "egress.denied":
      return {
        tone: "warn",
        title: `Request to ${event.body.host} denied`,
        detail: `${event.body.reason.replaceAll("_", " ")}${event.body.count > 1 ? `, ${event.body.count} times` : ""}`,
      };
    case "file.written":
      return { tone: "plain", title: `${event.actor.display ?? "A caller"} wrote ${event.body.path}`, detail: bytes(event.body.bytes) };
    case "wake.scheduled":
      return { tone: "plain", title: `Wake scheduled for ${when(event.body.at)}`, detail: event.body.note };
    case "session.rejected":
      return { tone: "bad", title: "Turn not started", detail: event.body.message };
    case "turn.waiting": {
      const count = event.body.action_ids.length;
      const below = event.body.session_ids?.length ?? 0;
      const until = `until ${when(event.body.expires_at)}`;
      if (count === 0 && below > 0) {
        return { tone: "plain", title: below === 1 ? "Waits for a child session" : `Waits for ${below} child sessions`, detail: until };
      }
      return { tone: "warn", title: count === 1 ? "Waits for an answer" : `Waits for ${count} answers`, detail: until };
    }
    case "history.compaction_requested":
      return { tone: "plain", title: `${event.actor.display ?? "A caller"} wants a summary of the history` };
    case "history.compacted":
      return { tone: "plain", title: "History summarized", detail: `${event.body.before_tokens.toLocaleString()} to ${event.body.after_tokens.toLocaleString()} tokens` };
    case "history.compaction_failed":
      return { tone: "bad", title: "A summary would not make the history shorter" };
    case "history.pruned": {
      const { file_ids = [], input_seqs = [] } = event.body as { file_ids?: string[]; input_seqs?: number[] };
      if (file_ids.length > 0) return dropped(file_ids, names);
      const title = input_seqs.length > 0 ? "Long messages left out of the history" : "Old results left out of the history";
      return { tone: "plain", title, detail: `${event.body.tokens.toLocaleString()} tokens` };
    }
    case "mcp.failed":
      return { tone: "warn", title: `The MCP server ${event.body.server} did not list its tools`, detail: event.body.message };
    case "output.rejected":
      return { tone: "warn", title: event.body.call_id ? "The output does not fit its schema" : "The output is missing", detail: event.body.faults.join("; ") };
    case "turn.steered": {
      const count = event.body.seqs.length;
      return { tone: "plain", title: count === 1 ? "Read a message" : `Read ${count} messages`, detail: "within the turn" };
    }
    case "turn.retried":
      return { tone: "plain", title: `${event.actor.display ?? "A caller"} retried the turn`, detail: `attempt ${event.body.attempt}` };
    case "turn.resumed":
      return { tone: "plain", title: "Continued", detail: `after ${span(event.body.waited_ms)}` };
    case "action.closed":
      return event.body.reason === "expired" ? { tone: "bad", title: "No result came in time" } : undefined;
    case "turn.cancel_requested":
      return { tone: "plain", title: event.body.mode === "interrupt" ? "Interrupted by a message" : "Cancellation requested" };
    case "session.canceled":
      return { tone: "plain", title: "Session canceled" };
    case "session.status_changed":
      return { tone: "plain", title: `Session ${event.body.to}` };
    case "session.updated":
      return { tone: "plain", title: `Changed: ${Object.keys(event.body).join(", ")}` };
    default:
      return undefined;
  }
}
