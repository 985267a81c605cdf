// One-line notices of events outside the conversation: limits, errors, the sandbox.
import type { Event } from "../api/follow";
import { bytes, span } from "../parts/format";
import { number, text } from "./body";
import type { NoticeRow } from "./rows";

const when = (ts: unknown) => new Date(text(ts)).toLocaleString();

const ENDS: Record<string, string> = {
  idle: "idle timeout",
  expired: "maximum lifetime reached",
  rotated: "replaced by a new sandbox",
};

/** The notice of an event; undefined for events without information for a user. */
export function noticed(event: Event): Pick<NoticeRow, "tone" | "title" | "detail" | "retry_at"> | undefined {
  const { body } = event;
  const of = () => `${number(body.used).toLocaleString()} of ${number(body.allowed).toLocaleString()}`;
  switch (event.type) {
    case "error.model":
    case "error.runtime":
    case "error.task": {
      const who = { "error.model": "The model", "error.runtime": "The service", "error.task": "The task" }[event.type];
      const retry_at = text(body.retry_at) || undefined;
      const title = `${who} failed: ${text(body.code).replaceAll("_", " ")}`;
      return { tone: retry_at ? "warn" : "bad", title, detail: text(body.message), retry_at };
    }
    case "limit.warning":
      return { tone: "warn", title: `80% of the limit “${text(body.limit)}” used`, detail: of() };
    case "limit.exceeded":
      return { tone: "bad", title: `Limit “${text(body.limit)}” exceeded`, detail: of() };
    case "sandbox.created":
      return { tone: "plain", title: "Sandbox attached", detail: `in ${span(number(body.duration_ms))}` };
    case "sandbox.frozen":
      return { tone: "plain", title: "Sandbox frozen", detail: "idle" };
    case "sandbox.thawed":
      return { tone: "plain", title: "Sandbox thawed" };
    case "sandbox.checkpoint_created":
      return { tone: "plain", title: "Files saved in a checkpoint" };
    case "sandbox.checkpoint_restored":
      return { tone: "plain", title: "Files restored from a checkpoint", detail: `in ${span(number(body.duration_ms))}` };
    case "sandbox.files_lost":
      return { tone: "bad", title: "Files lost with the disk", detail: body.since === undefined ? "all files" : `changes after ${when(body.since)}` };
    case "sandbox.rotation_failed":
      return { tone: body.failed ? "bad" : "warn", title: "The sandbox could not be replaced", detail: text(body.reason) };
    case "sandbox.lost":
      return { tone: "warn", title: "Sandbox lost", detail: text(body.reason) };
    case "sandbox.terminated":
      return { tone: "plain", title: "Sandbox removed", detail: ENDS[text(body.reason)] ?? text(body.reason) };
    case "egress.denied":
      return {
        tone: "warn",
        title: `Request to ${text(body.host)} denied`,
        detail: `${text(body.reason).replaceAll("_", " ")}${number(body.count) > 1 ? `, ${number(body.count)} times` : ""}`,
      };
    case "file.written":
      return { tone: "plain", title: `${event.actor.display ?? "A caller"} wrote ${text(body.path)}`, detail: bytes(number(body.bytes)) };
    case "wake.scheduled":
      return { tone: "plain", title: `Wake scheduled for ${when(body.at)}`, detail: text(body.note) };
    case "session.rejected":
      return { tone: "bad", title: "Turn not started", detail: text(body.message) };
    case "turn.cancel_requested":
      return { tone: "plain", title: body.mode === "interrupt" ? "Interrupted by a message" : "Cancellation requested" };
    case "session.canceled":
      return { tone: "plain", title: "Session canceled" };
    case "session.status_changed":
      return { tone: "plain", title: `Session ${text(body.to)}` };
    case "session.updated":
      return { tone: "plain", title: `Changed: ${Object.keys(body).join(", ")}` };
    default:
      return undefined;
  }
}
