//! Dispatcher: claims due deliveries from the outbox, sends them, records the results.
//!
//! Deliveries are sent concurrently, with a limited number of permits per receiver, so a slow receiver
//! does not delay others. Each live process has some shards of the organizations, so a delivery wakes one of them, and
//! the limits of a receiver hold for all of them together; what is overdue is sent by any. If a dispatcher dies between
//! claim and settlement, nothing is lost: the claim expires and the delivery is due again, with the same id. Each claim
//! is an attempt, except when the database or the blob store was away before anything was sent: then it is claimed again
//! soon. A delivery that cannot be prepared for another reason is retried by the schedule of the others, and one whose
//! last attempt had no result is dead.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use serde_json::{Map, value::RawValue};
use tokio::{
    task::{self, JoinSet},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    permits::{Permit, Permits},
    schedule::{Next, next},
    send::{Outcome, send},
    sign::Secret,
    signed_request::{Parts, SignedRequest},
};
use crate::{
    base::{
        Origin,
        limit::{CLAIM_POLL, DRAIN_TIMEOUT, WEBHOOK_CLAIM_DELAY, WEBHOOK_RETRY_SECONDS},
    },
    domain::{DestinationId, Entry},
    net,
    store::{
        self, Store,
        notification::Notifications,
        outbox::{Claimed, Settled, Status},
    },
    wire::event::EventView,
};

/// Sends the deliveries of all organizations, concurrently with other dispatchers.
#[derive(Clone)]
pub struct Dispatcher {
    pub store: Store,
    pub notifications: Notifications,
    pub client: net::Client,
    pub origin: Origin,
}

impl Dispatcher {
    /// Sends deliveries until `stop`. Running deliveries are drained for at most `DRAIN_TIMEOUT`.
    pub async fn run(self, stop: CancellationToken) {
        let mut deliveries = Deliveries::default();
        while !stop.is_cancelled() {
            self.claim(&mut deliveries).await;
            tokio::select! {
                () = self.notifications.delivery() => {}
                () = sleep(CLAIM_POLL) => {}
                // Only if a limit is reached; otherwise a notification announces the next delivery.
                Some(done) = deliveries.under_way.join_next_with_id(), if deliveries.permits.is_crowded() => {
                    deliveries.settle(done);
                    deliveries.wait_for_more().await;
                }
                () = stop.cancelled() => {}
            }
        }
        let under_way = &mut deliveries.under_way;
        let _ = timeout(DRAIN_TIMEOUT, async { while under_way.join_next().await.is_some() {} }).await;
        under_way.shutdown().await;
    }

    /// Claims as many deliveries as there are free permits.
    async fn claim(&self, deliveries: &mut Deliveries) {
        // A look from the middle on does not show that nothing is due.
        let mut has_found = deliveries.after.is_some();
        loop {
            while let Some(done) = deliveries.under_way.try_join_next_with_id() {
                deliveries.settle(done);
            }
            let capacity = deliveries.permits.capacity(Instant::now());
            if capacity.free == 0 {
                return;
            }
            match self
                .store
                .claim_deliveries(&capacity, &self.notifications.delivery_shards(), deliveries.after)
                .await
            {
                Ok(claim) => {
                    // After the last destination, from the first again, unless none of them had any.
                    deliveries.after = claim.next;
                    has_found |= !claim.deliveries.is_empty();
                    if deliveries.after.is_none() && !std::mem::take(&mut has_found) {
                        return;
                    }
                    for delivery in claim.deliveries {
                        let permit = deliveries.permits.take(Permit::of(&delivery));
                        let task = deliveries.under_way.spawn(self.clone().deliver(delivery));
                        deliveries.by_task.insert(task.id(), permit);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "could not claim deliveries, retrying");
                    return;
                }
            }
        }
    }

    async fn deliver(self, claimed: Claimed) -> Done {
        let (settled, took, has_answered) = self.attempt(&claimed).await;
        metrics::counter!("sojourn_delivery_attempts_total", "outcome" => outcome_of(&settled.status))
            .increment(1);
        if let Err(error) = self.store.settle_delivery(&claimed, &settled, &self.origin).await {
            tracing::warn!(%error, delivery.id = %claimed.delivery, "could not settle a delivery; it is sent again");
        }
        Done { took, has_answered }
    }

    /// Returns the result of an attempt, its duration and whether the receiver answered.
    async fn attempt(&self, claimed: &Claimed) -> (Settled, Duration, bool) {
        if claimed.attempt.unsigned_abs() as usize > WEBHOOK_RETRY_SECONDS.len() {
            // Its dispatcher died in each attempt, or could not write the result.
            return (dead("the last attempt ended without a result"), Duration::ZERO, true);
        }
        let written = if claimed.is_wanted { self.write(claimed).await } else { Ok(None) };
        match written {
            Ok(Some(request)) => {
                let outcome = net::for_org(claimed.org, send(&self.client, &request)).await;
                let (took, has_answered) = (outcome.duration, outcome.status.is_some());
                (settled(claimed, outcome, &self.origin), took, has_answered)
            }
            Ok(None) => {
                (dead("the destination is disabled or its delivery cannot be written"), Duration::ZERO, true)
            }
            Err(error) => {
                tracing::warn!(%error, delivery.id = %claimed.delivery, "could not prepare a delivery, retrying");
                let reason = format!("the delivery cannot be prepared: {error}");
                let settled = match error {
                    store::Error::Unavailable { .. } | store::Error::BlobStore { .. } => {
                        let retry_after = Duration::from_secs(WEBHOOK_RETRY_SECONDS[1]);
                        ended(Status::Postponed { retry_after }, reason)
                    }
                    _ => {
                        let unsent = Outcome {
                            status: None,
                            error: Some(reason),
                            duration: Duration::ZERO,
                            retry_after: None,
                        };
                        Settled { duration: None, ..settled(claimed, unsent, &self.origin) }
                    }
                };
                (settled, Duration::ZERO, true)
            }
        }
    }

    async fn write(&self, claimed: &Claimed) -> store::Result<Option<SignedRequest>> {
        let Some((event_type, event)) = self.content(claimed).await? else { return Ok(None) };
        let secrets: Result<Vec<_>, _> =
            self.store.secrets(claimed)?.iter().map(|secret| Secret::parse(secret)).collect();
        let (Ok(secrets), Ok(url)) = (secrets, net::parse(&claimed.url)) else { return Ok(None) };
        let metadata: Map<String, serde_json::Value> =
            claimed.metadata.as_deref().and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
        Ok(Some(SignedRequest::write(Parts {
            url: &url,
            delivery: claimed.delivery,
            session: claimed.session,
            metadata: &metadata,
            event_id: claimed.event,
            event_type: &event_type,
            event: &event,
            secrets: &secrets,
            at: self.origin.now(),
        })))
    }

    /// Returns the event's type and JSON, from the log or from the notice itself. None if its session was
    /// deleted in the meantime.
    async fn content(&self, claimed: &Claimed) -> store::Result<Option<(String, Box<RawValue>)>> {
        if let (Some(kind), Some(notice)) = (&claimed.kind, &claimed.notice) {
            return Ok(RawValue::from_string(notice.clone()).ok().map(|event| (kind.clone(), event)));
        }
        let (Some(session), Some(seq)) = (claimed.session, claimed.event_seq) else { return Ok(None) };
        let entry = match self.store.event_at(claimed.org, session, seq, claimed.event).await {
            Ok(entry) => entry,
            Err(store::Error::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(event(&entry, claimed.include_raw).map(|event| (entry.kind.clone(), event)))
    }
}

/// The running deliveries with their permits.
#[derive(Default)]
struct Deliveries {
    permits: Permits,
    under_way: JoinSet<Done>,
    /// Destination after which the next claim looks for more.
    after: Option<DestinationId>,
    by_task: HashMap<task::Id, Permit>,
}

/// Behavior of the receiver in one attempt.
struct Done {
    took: Duration,
    has_answered: bool,
}

impl Deliveries {
    /// Waits briefly for more deliveries to end, so that their permits are used by one claim.
    async fn wait_for_more(&mut self) {
        let wanted = self.under_way.len() / 4;
        let ended = async {
            for _ in 0..wanted {
                let Some(done) = self.under_way.join_next_with_id().await else { return };
                self.settle(done);
            }
        };
        let _enough_or_late = timeout(WEBHOOK_CLAIM_DELAY, ended).await;
    }

    /// Releases the permit of an ended delivery, whatever its result.
    fn settle(&mut self, done: Result<(task::Id, Done), task::JoinError>) {
        let (id, Done { took, has_answered }) =
            done.unwrap_or_else(|panic| (panic.id(), Done { took: Duration::ZERO, has_answered: false }));
        if let Some(permit) = self.by_task.remove(&id) {
            self.permits.release(permit, took, has_answered, Instant::now());
        }
    }
}

/// Returns the event's JSON; without the caller's `raw` unless the destination includes it.
fn event(entry: &Entry, include_raw: bool) -> Option<Box<RawValue>> {
    let view = EventView::of(entry).ok()?;
    let mut value = serde_json::to_value(&view).ok()?;
    if !include_raw
        && let Some(envelope) = value.pointer_mut("/body/envelope").and_then(|value| value.as_object_mut())
    {
        envelope.remove("raw");
    }
    serde_json::value::to_raw_value(&value).ok()
}

/// Metric label for the result of one attempt.
fn outcome_of(status: &Status) -> &'static str {
    match status {
        Status::Delivered => "delivered",
        Status::Failed { .. } => "retried",
        Status::Postponed { .. } => "postponed",
        Status::DeadLetter => "dead_letter",
        Status::Gone => "gone",
    }
}

fn settled(claimed: &Claimed, outcome: Outcome, origin: &Origin) -> Settled {
    let tries = claimed.attempt.unsigned_abs();
    let status = match next(tries, &outcome, origin) {
        Next::Delivered => Status::Delivered,
        Next::Retry { after } => Status::Failed { retry_after: after },
        Next::Dead => Status::DeadLetter,
        Next::DisableDestination => Status::Gone,
    };
    Settled { status, response_code: outcome.status, error: outcome.error, duration: Some(outcome.duration) }
}

fn dead(error: &str) -> Settled {
    ended(Status::DeadLetter, error.to_owned())
}

/// Result of a claim that sent nothing.
fn ended(status: Status, error: String) -> Settled {
    Settled { status, response_code: None, error: Some(error), duration: None }
}
