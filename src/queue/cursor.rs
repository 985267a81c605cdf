//! Positions from which claims begin, and their pause after an outage of the database.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    base::{
        Id, Timestamp,
        limit::{CLAIM_AFTER_OUTAGE, CLAIM_OUTAGE_MIN, CONTROL_INTERVAL},
    },
    domain::OrgId,
};

/// Positions of claims: each begins where the last one ended.
pub(super) struct Cursor {
    /// The organization that was served last.
    pub(super) after: OrgId,
    /// Every job that was ready before this time was claimed; `None` reads all.
    pub(super) since: Option<Timestamp>,
    /// Every job that was due before this time is ready; `None` reads all.
    pub(super) due_since: Option<Timestamp>,
    /// Time of the last read with `CLAIM_MARGIN_MAX`.
    pub(super) read_back_at: Option<Instant>,
    /// Time since when `since` and `due_since` are known.
    pub(super) known_at: Instant,
    /// Time of the last claim of maintenance jobs of other nodes.
    pub(super) others_read_at: Option<Instant>,
}

impl Cursor {
    pub(super) fn new() -> Self {
        Self {
            after: Id::from_uuid(Uuid::nil()),
            since: None,
            due_since: None,
            read_back_at: None,
            known_at: Instant::now(),
            others_read_at: None,
        }
    }

    pub(super) fn forget_times(&mut self) {
        (self.since, self.due_since, self.known_at) = (None, None, Instant::now());
    }
}

/// Visits of organizations in the order of their ids, from one on and around to it.
pub(super) struct Rotation {
    start: OrgId,
    /// The last one visited: whether it comes before the start or is it, and its id.
    reached: (bool, OrgId),
    /// Each was visited.
    pub(super) is_over: bool,
}

impl Rotation {
    pub(super) fn after(start: OrgId) -> Self {
        Self { start, reached: (false, start), is_over: false }
    }

    pub(super) fn visit(&mut self, org: OrgId) {
        let place = (org <= self.start, org);
        self.is_over |= place <= self.reached || org == self.start;
        self.reached = place;
    }
}

/// Times at which the database answered this process.
#[derive(Default)]
pub(super) struct Answering {
    /// Time since when it has answered every query; `None` while it does not answer.
    pub(super) since: Option<Instant>,
    /// Time of the last answer.
    last: Option<Instant>,
    /// Until then nothing is claimed.
    holders_renew_until: Option<Instant>,
}

impl Answering {
    /// Notes whether the database answered a query.
    pub(super) fn note(&mut self, did: bool, lease: Duration) {
        let now = Instant::now();
        self.since = did.then(|| self.since.unwrap_or(now));
        if did {
            let outage = lease.saturating_sub(2 * CONTROL_INTERVAL).max(CLAIM_OUTAGE_MIN);
            if self.last.is_some_and(|last| now - last >= outage) {
                self.holders_renew_until = Some(now + CLAIM_AFTER_OUTAGE);
            }
            self.last = Some(now);
        }
    }

    /// Whether the holders of leases renew them now, after an outage of the database.
    pub(super) fn holders_renew(&self) -> bool {
        self.holders_renew_until.is_some_and(|until| Instant::now() < until)
    }
}
