//! Rate limits, and the headers that report them.
//!
//! The caller's extractor takes one request from the allowance and attaches the rest to the request; the
//! request middleware writes it to the response headers.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use governor::{
    NotUntil, Quota, RateLimiter,
    clock::{Clock, DefaultClock, QuantaInstant},
    middleware::StateInformationMiddleware,
    state::keyed::DashMapStateStore,
};

use crate::{
    base::limit::{RATE_SWEEP_REQUESTS, REQUESTS_BURST_SECONDS},
    domain::{InvokeTokenId, KeyId, OrgId, SessionId, TriggerId},
};

/// Owner of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RateKey {
    Key(KeyId),
    /// All client tokens of one session.
    Tokens(SessionId),
    /// All senders to one inbound trigger.
    Trigger(TriggerId),
    InvokeToken(InvokeTokenId),
    /// All keys and tokens of an organization together.
    Organization(OrgId),
}

/// Remaining requests of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance {
    /// Size of the burst.
    pub limit: u32,
    /// Remaining requests of the burst.
    pub remaining: u32,
    /// Seconds until the whole burst is available again.
    pub reset_seconds: u64,
}

/// Carries the allowance from the caller's extractor to the request middleware.
#[derive(Clone, Debug, Default)]
pub(super) struct AllowanceSlot(pub Arc<OnceLock<Allowance>>);

/// The rate limits of a process.
pub(super) struct Rates {
    limiter: RateLimiter<RateKey, DashMapStateStore<RateKey>, DefaultClock, StateInformationMiddleware>,
    per_second: u32,
    asked: AtomicU32,
}

impl Rates {
    /// Limits each caller to `per_second` sustained requests per second.
    ///
    /// After a pause a caller may send a burst of `REQUESTS_BURST_SECONDS` times that number.
    pub(super) fn new(per_second: u32) -> Self {
        let burst = per_second.saturating_mul(REQUESTS_BURST_SECONDS).max(1);
        let per_second = per_second.max(1);
        let rate = per_second.try_into().expect("the rate is not zero");
        let quota = Quota::per_second(rate).allow_burst(burst.try_into().expect("the burst is not zero"));
        let limiter = RateLimiter::keyed(quota).with_middleware::<StateInformationMiddleware>();
        Self { limiter, per_second, asked: AtomicU32::new(0) }
    }

    /// Takes one request. The error contains the time to wait.
    pub(super) fn take(&self, who: RateKey) -> Result<Allowance, (Allowance, Duration)> {
        if self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(RATE_SWEEP_REQUESTS) {
            // A caller with its full allowance needs no entry.
            self.limiter.retain_recent();
        }
        match self.limiter.check_key(&who) {
            Ok(state) => {
                Ok(self.allowance(state.quota().burst_size().get(), state.remaining_burst_capacity()))
            }
            Err(until) => Err((self.allowance(until.quota().burst_size().get(), 0), wait(&until))),
        }
    }

    /// Returns the sustained requests per second of one caller.
    pub(super) fn per_second(&self) -> u32 {
        self.per_second
    }

    fn allowance(&self, limit: u32, remaining: u32) -> Allowance {
        let used = limit.saturating_sub(remaining);
        Allowance { limit, remaining, reset_seconds: u64::from(used.div_ceil(self.per_second)) }
    }
}

impl Allowance {
    /// Writes the allowance to the response headers (IETF draft-ietf-httpapi-ratelimit-headers-03).
    pub(super) fn write(self, headers: &mut HeaderMap) {
        let fields = [
            ("ratelimit-limit", u64::from(self.limit)),
            ("ratelimit-remaining", u64::from(self.remaining)),
            ("ratelimit-reset", self.reset_seconds),
        ];
        for (name, value) in fields {
            headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
        }
    }
}

fn wait(until: &NotUntil<QuantaInstant>) -> Duration {
    until.wait_time_from(DefaultClock::default().now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Origin;

    #[test]
    fn each_caller_has_an_allowance_of_its_own() {
        let (rates, origin) = (Rates::new(1), Origin::system());
        let (one, other) = (RateKey::Key(origin.id()), RateKey::Tokens(origin.id()));
        for taken in 1..=REQUESTS_BURST_SECONDS {
            let left = rates.take(one).expect("the burst is there");
            assert_eq!(left.limit, REQUESTS_BURST_SECONDS);
            // A second may pass in the meantime and restore one request.
            assert!(left.remaining >= REQUESTS_BURST_SECONDS - taken && left.remaining < left.limit);
            assert!(left.reset_seconds <= u64::from(taken));
        }
        assert!(rates.take(other).is_ok());
    }
}
