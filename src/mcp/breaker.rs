//! Breaker of each server: after several failures of transport it is not tried for a while, so that a server that hangs
//! does not delay every turn.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    base::limit::{MCP_BREAKER_FAILURES, MCP_BREAKER_OPEN, MCP_BREAKER_WINDOW, MCP_BREAKERS_MAX},
    domain::{CredentialId, OrgId},
};

/// A server, as an organization reaches it.
pub(super) type Key = (OrgId, String, Option<CredentialId>);

/// Breakers of the servers that failed lately.
#[derive(Default)]
pub(super) struct Breakers(Mutex<HashMap<Key, Breaker>>);

#[derive(Debug)]
struct Breaker {
    /// Times of the failures since the last success or opening.
    failures: Vec<Instant>,
    opened: Option<Opened>,
}

#[derive(Clone, Copy, Debug)]
struct Opened {
    until: Instant,
    time: Duration,
}

impl Breakers {
    /// Returns the time for which the breaker is open, if it is: the server is not tried. Afterwards an attempt shows
    /// whether it is back.
    pub(super) fn open_for(&self, key: &Key, now: Instant) -> Option<Duration> {
        let breakers = self.lock();
        let until = breakers.get(key)?.opened?.until;
        until.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// Notes that a server answered.
    pub(super) fn succeeded(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// Notes that a server could not be reached, or did not answer.
    pub(super) fn failed(&self, key: &Key, now: Instant) {
        let mut breakers = self.lock();
        if !breakers.contains_key(key) && breakers.len() >= MCP_BREAKERS_MAX {
            let is_old = |breaker: &Breaker| {
                let last = breaker.opened.map(|opened| opened.until).max(breaker.failures.last().copied());
                last.is_none_or(|last| now.saturating_duration_since(last) > MCP_BREAKER_WINDOW)
            };
            breakers.retain(|_, breaker| !is_old(breaker));
            if breakers.len() >= MCP_BREAKERS_MAX {
                return;
            }
        }
        let breaker = breakers.entry(key.clone()).or_insert(Breaker { failures: Vec::new(), opened: None });
        breaker.failures.retain(|at| now.saturating_duration_since(*at) <= MCP_BREAKER_WINDOW);
        breaker.failures.push(now);
        // Attempts that began before the opening say nothing new.
        if breaker.opened.is_some_and(|opened| now < opened.until) {
            return;
        }
        // The attempt after an opening shows by itself that the server is still away.
        if breaker.opened.is_some() || breaker.failures.len() >= MCP_BREAKER_FAILURES {
            let (first, longest) = MCP_BREAKER_OPEN;
            let time = breaker.opened.map_or(first, |opened| (opened.time * 2).min(longest));
            breaker.opened = Some(Opened { until: now + time, time });
            metrics::counter!("sojourn_mcp_servers_suspended_total").increment(1);
            breaker.failures.clear();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Breaker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::OrgId;

    fn key(url: &str) -> Key {
        (OrgId::from_uuid(uuid::Uuid::nil()), url.to_owned(), None)
    }

    #[test]
    fn five_failures_in_a_minute_open_it_for_a_time_that_doubles() {
        let (breakers, start, server) = (Breakers::default(), Instant::now(), key("a"));
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for second in 0..4 {
            breakers.failed(&server, at(second));
        }
        assert_eq!(breakers.open_for(&server, at(4)), None);
        breakers.failed(&server, at(4));
        assert_eq!(breakers.open_for(&server, at(4)), Some(Duration::from_secs(30)));
        assert_eq!(breakers.open_for(&key("b"), at(4)), None, "another server is not concerned");
        assert_eq!(breakers.open_for(&server, at(34)), None);
        breakers.failed(&server, at(34));
        assert_eq!(breakers.open_for(&server, at(34)), Some(Duration::from_secs(60)));
        for _ in 0..5 {
            breakers.failed(&server, at(100));
        }
        assert_eq!(breakers.open_for(&server, at(100)), Some(Duration::from_secs(120)));
        for second in [300, 600, 1_000, 1_400] {
            breakers.failed(&server, at(second));
        }
        assert_eq!(breakers.open_for(&server, at(1_400)), Some(Duration::from_secs(300)));
        breakers.succeeded(&server);
        breakers.failed(&server, at(1_500));
        assert_eq!(breakers.open_for(&server, at(1_500)), None);
    }

    #[test]
    fn failures_that_are_far_apart_do_not_open_it() {
        let (breakers, start, server) = (Breakers::default(), Instant::now(), key("a"));
        for minute in 0..20 {
            breakers.failed(&server, start + Duration::from_secs(30 * minute));
        }
        assert_eq!(breakers.open_for(&server, start + Duration::from_secs(600)), None);
    }
}
