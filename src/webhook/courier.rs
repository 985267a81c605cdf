//! From the outbox to the receivers: claim what is due, send it, write down what
//! became of it.
//!
//! Letters go out side by side, so one slow receiver delays nobody else's. A
//! courier that dies between claim and settling loses nothing: the claim ends and
//! the letter is due again, under the same id.

use serde_json::{Map, value::RawValue};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    letter::{Letter, Parts},
    schedule::{Next, next},
    send::{Outcome, send},
    sign::Secret,
};
use crate::{
    base::{
        Origin,
        limit::{CLAIM_POLL, DRAIN_TIMEOUT, WEBHOOK_HOLD, WEBHOOKS_IN_FLIGHT_MAX},
    },
    domain::Entry,
    net,
    store::{
        self, Store,
        delivery::{Claimed, Settled, Status},
        hint::Hints,
    },
    wire::event::EventView,
};

/// Sends the deliveries of the whole service, beside other couriers.
#[derive(Clone)]
pub struct Courier {
    pub store: Store,
    pub hints: Hints,
    pub client: net::Client,
    pub origin: Origin,
}

impl Courier {
    /// Delivers until `stop`; letters under way are waited for, but not for long.
    pub async fn run(self, stop: CancellationToken) {
        let mut under_way = JoinSet::new();
        while !stop.is_cancelled() {
            while under_way.try_join_next().is_some() {}
            let claimed_all = self.claim(&mut under_way).await;
            tokio::select! {
                () = self.hints.delivery() => {}
                () = sleep(CLAIM_POLL) => {}
                Some(_) = under_way.join_next(), if !claimed_all => {}
                () = stop.cancelled() => {}
            }
        }
        let _ = timeout(DRAIN_TIMEOUT, async { while under_way.join_next().await.is_some() {} }).await;
        under_way.shutdown().await;
    }

    /// Claims as much as may be under way. Returns whether nothing more was due.
    async fn claim(&self, under_way: &mut JoinSet<()>) -> bool {
        let free = WEBHOOKS_IN_FLIGHT_MAX.saturating_sub(under_way.len());
        if free == 0 {
            return false;
        }
        match self.store.claim_deliveries(free as i64, WEBHOOK_HOLD.as_secs_f64()).await {
            Ok(claimed) => {
                let claimed_all = claimed.len() < free;
                for delivery in claimed {
                    under_way.spawn(self.clone().deliver(delivery));
                }
                claimed_all
            }
            Err(error) => {
                tracing::warn!(%error, "deliveries could not be claimed; trying again");
                true
            }
        }
    }

    async fn deliver(self, claimed: Claimed) {
        let written = if claimed.is_wanted { self.write(&claimed).await } else { Ok(None) };
        let settled = match written {
            Ok(Some(letter)) => {
                let outcome = send(&self.client, &letter).await;
                settled(&claimed, outcome, &self.origin)
            }
            Ok(None) => dead("the destination is disabled or its letter cannot be written"),
            // The claim runs out and the letter is due again.
            Err(error) => {
                tracing::warn!(%error, delivery.id = %claimed.delivery, "a delivery could not be prepared");
                return;
            }
        };
        metrics::counter!("sojourn_delivery_tries_total", "outcome" => outcome_of(&settled.status))
            .increment(1);
        if let Err(error) = self.store.settle_delivery(&claimed, &settled).await {
            tracing::warn!(%error, delivery.id = %claimed.delivery, "a delivery could not be settled; it is sent again");
        }
    }

    async fn write(&self, claimed: &Claimed) -> store::Result<Option<Letter>> {
        let key = self.store.data_key(claimed.tenant).await?;
        let entry = self.store.event_at(claimed.tenant, claimed.session, claimed.event_seq).await?;
        let (Ok(secret), Ok(url)) = (Secret::parse(&claimed.secret(&key)?), net::parse(&claimed.url)) else {
            return Ok(None);
        };
        let Some(event) = event(&entry, claimed.include_raw) else { return Ok(None) };
        let metadata: Map<String, serde_json::Value> =
            serde_json::from_str(&claimed.metadata).unwrap_or_default();
        Ok(Some(Letter::write(Parts {
            url: &url,
            delivery: claimed.delivery,
            session: claimed.session,
            metadata: &metadata,
            event_id: claimed.event,
            event_type: &entry.kind,
            event: &event,
            secrets: &[secret],
            at: self.origin.now(),
        })))
    }
}

/// The event as it is sent; without the caller's `raw` unless it is wanted.
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

/// What became of one try, as a label.
fn outcome_of(status: &Status) -> &'static str {
    match status {
        Status::Delivered => "delivered",
        Status::Failed { .. } => "retried",
        Status::DeadLetter => "dead_letter",
        Status::Gone => "gone",
    }
}

fn settled(claimed: &Claimed, outcome: Outcome, origin: &Origin) -> Settled {
    let tries = claimed.attempt.unsigned_abs();
    let status = match next(tries, &outcome, origin) {
        Next::Delivered => Status::Delivered,
        Next::Retry { at } => Status::Failed { retry_at: at },
        Next::Dead => Status::DeadLetter,
        Next::DisableDestination => Status::Gone,
    };
    Settled { status, response_code: outcome.status, error: outcome.error }
}

fn dead(error: &str) -> Settled {
    Settled { status: Status::DeadLetter, response_code: None, error: Some(error.to_owned()) }
}
