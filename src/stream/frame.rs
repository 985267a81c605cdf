//! What a stream says, before `http` writes it as server-sent events or over a
//! WebSocket.

use std::sync::Arc;

use crate::{
    base::Timestamp,
    domain::{Entry, Level, TurnId},
    wire::event::EventView,
};

/// One thing that a reader is told.
#[derive(Clone, Debug)]
pub enum Frame {
    /// An event of the log: what moves the reader's cursor.
    Event(Arc<Item>),
    /// A piece of an answer that is still growing, as one line of JSON: best effort.
    Delta(String),
    /// Nothing, so that nobody on the way believes the connection dead.
    Alive,
}

/// An event as every reader gets it.
#[derive(Clone, Debug)]
pub struct Item {
    pub seq: i64,
    /// The event as one line of JSON; empty when its row cannot be read.
    pub json: String,
    pub(super) ts: Timestamp,
    pub(super) level: Level,
    pub(super) kind: String,
    pub(super) turn: Option<TurnId>,
}

impl Item {
    pub(super) fn of(entry: &Entry) -> Self {
        let json = EventView::of(entry).and_then(|view| serde_json::to_string(&view));
        let json = json.unwrap_or_else(|error| {
            tracing::error!(%error, session.id = %entry.session, entry.seq, "an event cannot be written out");
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

/// Whether an event's type is the wanted one: exactly, by its beginning when that ends
/// in `.*`, by its ending when that begins with `*.`. As the store compares.
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
