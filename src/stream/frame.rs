//! Frames of a log stream, before `http` formats them as server-sent events or WebSocket messages.

use std::sync::Arc;

use time::format_description::well_known::Rfc3339;

use crate::{
    base::Timestamp,
    domain::{Entry, Level, TurnId},
    wire::event::EventView,
};

/// A frame for a reader of a log.
#[derive(Clone, Debug)]
pub enum Frame {
    /// An event of the log; advances the reader's cursor.
    Event(Arc<Item>),
    /// A piece of an unfinished response, as one line of JSON. Best effort.
    Delta(String),
    /// Heartbeat, so that proxies do not consider the connection dead.
    Alive,
}

/// An event in the form shared by all readers.
#[derive(Clone, Debug)]
pub struct Item {
    pub seq: i64,
    /// The event as one line of JSON; empty if its row cannot be decoded.
    pub json: String,
    pub(super) ts: Timestamp,
    pub(super) level: Level,
    pub(super) kind: String,
    pub(super) turn: Option<TurnId>,
}

/// End of the JSON of an input that no turn has consumed yet: `processed_at` is the last field.
const UNPROCESSED: &str = "\"processed_at\":null}";

impl Item {
    /// Returns the input as it reads back once `started`, the first event of its turn, is in the log.
    pub(super) fn processed(&self, started: &Self) -> Option<Self> {
        let head = self.json.strip_suffix(UNPROCESSED).filter(|_| self.turn == started.turn)?;
        let at = started.ts.format(&Rfc3339).ok()?;
        Some(Self { json: format!("{head}\"processed_at\":\"{at}\"}}"), ..self.clone() })
    }

    /// Whether it ends the wait of a turn's input.
    pub(super) fn consumes_input(&self) -> bool {
        matches!(self.kind.as_str(), "turn.started" | "turn.completed")
    }

    pub(super) fn of(entry: &Entry) -> Self {
        let json = EventView::of(entry).and_then(|view| serde_json::to_string(&view));
        let json = json.unwrap_or_else(|error| {
            tracing::error!(%error, session.id = %entry.session, entry.seq, "could not serialize an event");
            String::new()
        });
        Self {
            seq: entry.seq,
            json,
            ts: entry.ts,
            level: entry.level,
            kind: entry.kind.clone(),
            turn: entry.turn_id,
        }
    }
}

/// Whether an event type matches a filter: exactly, by prefix if the filter ends in `.*`, or by suffix if
/// it begins with `*.`. Same rules as in the store's queries.
pub(super) fn is_wanted(kind: &str, wanted: &str) -> bool {
    if let Some(prefix) = wanted.strip_suffix('*').filter(|prefix| prefix.ends_with('.')) {
        return kind.starts_with(prefix);
    }
    if let Some(suffix) = wanted.strip_prefix('*').filter(|suffix| suffix.starts_with('.')) {
        return kind.ends_with(suffix);
    }
    kind == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_wanted_exactly_or_by_its_beginning_or_ending() {
        for (kind, wanted, is) in [
            ("agent.message", "agent.message", true),
            ("agent.message", "agent.*", true),
            ("agent.message", "*.message", true),
            ("agent.message", "agent", false),
            ("agents.message", "agent.*", false),
            ("agent.thinking", "*.message", false),
            ("agent.message", "agent*", false),
        ] {
            assert_eq!(is_wanted(kind, wanted), is, "{kind} {wanted}");
        }
    }
}
