//! Permits that limit concurrent deliveries, so that a slow receiver delays no other receiver.
//!
//! Owned by the dispatcher of one process. There are limits per destination and per organization, and
//! recently slow receivers get at most half of all permits: so permits for deliveries to responsive
//! receivers remain available.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use uuid::Uuid;

use crate::{
    base::limit::{
        WEBHOOK_SLOW_AFTER, WEBHOOK_SLOW_RECORDS, WEBHOOKS_IN_FLIGHT_MAX, WEBHOOKS_PER_DESTINATION_MAX,
        WEBHOOKS_PER_ORG_MAX, WEBHOOKS_SLOW_MAX,
    },
    store::outbox::{Capacity, Claimed},
};

/// Permit of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permit {
    destination: Uuid,
    org: Uuid,
    /// Whether the receiver was known to be slow when the permit was taken.
    was_slow: bool,
}

/// The permits of a process.
#[derive(Debug, Default)]
pub(super) struct Permits {
    destinations: HashMap<Uuid, i32>,
    orgs: HashMap<Uuid, i32>,
    /// Time at which a receiver was last slow.
    slow: HashMap<Uuid, Instant>,
    taken: usize,
    taken_by_slow: usize,
}

impl Permit {
    /// Creates the permit for a delivery.
    pub(super) fn of(claimed: &Claimed) -> Self {
        Self::new(claimed.destination.uuid(), claimed.org.uuid())
    }

    fn new(destination: Uuid, org: Uuid) -> Self {
        Self { destination, org, was_slow: false }
    }
}

impl Permits {
    /// Returns which deliveries can be claimed now.
    pub(super) fn capacity(&mut self, now: Instant) -> Capacity {
        self.slow.retain(|_, at| now.duration_since(*at) < WEBHOOK_SLOW_RECORDS.0);
        let full = |held: &HashMap<Uuid, i32>, most: i32| -> Vec<Uuid> {
            held.iter().filter(|(_, held)| **held >= most).map(|(id, _)| *id).collect()
        };
        let mut full_destinations = full(&self.destinations, WEBHOOKS_PER_DESTINATION_MAX);
        if self.taken_by_slow >= WEBHOOKS_SLOW_MAX {
            full_destinations.extend(self.slow.keys());
        }
        Capacity {
            free: WEBHOOKS_IN_FLIGHT_MAX.saturating_sub(self.taken) as i64,
            destinations: self.destinations.iter().map(|(id, held)| (*id, *held)).unzip(),
            orgs: self.orgs.iter().map(|(id, held)| (*id, *held)).unzip(),
            full_orgs: full(&self.orgs, WEBHOOKS_PER_ORG_MAX),
            full_destinations,
        }
    }

    /// Whether a limit is reached, so that the end of a delivery may allow another one.
    pub(super) fn is_crowded(&self) -> bool {
        self.taken >= WEBHOOKS_IN_FLIGHT_MAX
            || self.taken_by_slow >= WEBHOOKS_SLOW_MAX
            || self.destinations.values().any(|held| *held >= WEBHOOKS_PER_DESTINATION_MAX)
            || self.orgs.values().any(|held| *held >= WEBHOOKS_PER_ORG_MAX)
    }

    /// Takes a permit for a claimed delivery.
    pub(super) fn take(&mut self, mut permit: Permit) -> Permit {
        permit.was_slow = self.slow.contains_key(&permit.destination);
        *self.destinations.entry(permit.destination).or_default() += 1;
        *self.orgs.entry(permit.org).or_default() += 1;
        self.taken += 1;
        self.taken_by_slow += usize::from(permit.was_slow);
        permit
    }

    /// Releases a permit. `took` and `has_answered` describe how the receiver behaved.
    pub(super) fn release(&mut self, permit: Permit, took: Duration, has_answered: bool, now: Instant) {
        for (held, id) in [(&mut self.destinations, permit.destination), (&mut self.orgs, permit.org)] {
            if let Some(count) = held.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    held.remove(&id);
                }
            }
        }
        self.taken -= 1;
        self.taken_by_slow -= usize::from(permit.was_slow);
        if took < WEBHOOK_SLOW_AFTER && has_answered {
            self.slow.remove(&permit.destination);
        } else if self.slow.len() < WEBHOOK_SLOW_RECORDS.1 {
            self.slow.insert(permit.destination, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    #[test]
    fn one_destination_and_one_organization_have_their_share_and_no_more() {
        let mut permits = Permits::default();
        let now = Instant::now();
        let mut held = Vec::new();
        for _ in 0..WEBHOOKS_PER_DESTINATION_MAX {
            held.push(permits.take(Permit::new(id(1), id(100))));
        }
        assert_eq!(permits.capacity(now).full_destinations, [id(1)]);
        assert!(permits.is_crowded());
        for number in 2..=(WEBHOOKS_PER_ORG_MAX - WEBHOOKS_PER_DESTINATION_MAX + 1) {
            held.push(permits.take(Permit::new(id(number as u128), id(100))));
        }
        let capacity = permits.capacity(now);
        assert_eq!(capacity.full_orgs, [id(100)]);
        assert_eq!(capacity.free as usize, WEBHOOKS_IN_FLIGHT_MAX - WEBHOOKS_PER_ORG_MAX as usize);
        for permit in held {
            permits.release(permit, Duration::ZERO, true, now);
        }
        let capacity = permits.capacity(now);
        assert!(capacity.full_orgs.is_empty() && capacity.orgs.0.is_empty() && !permits.is_crowded());
        assert_eq!(capacity.free as usize, WEBHOOKS_IN_FLIGHT_MAX);
    }

    #[test]
    fn slow_receivers_have_half_of_the_places_until_they_answer_again() {
        let mut permits = Permits::default();
        let now = Instant::now();
        let (count, org) = (WEBHOOKS_SLOW_MAX as u128, |number: u128| id(1_000 + number / 60));
        for number in 0..count {
            let permit = permits.take(Permit::new(id(number), org(number)));
            let (took, has_answered) =
                if number % 2 == 0 { (WEBHOOK_SLOW_AFTER, true) } else { (Duration::ZERO, false) };
            permits.release(permit, took, has_answered, now);
        }
        let held: Vec<_> =
            (0..count).map(|number| permits.take(Permit::new(id(number), org(number)))).collect();
        let capacity = permits.capacity(now);
        assert_eq!(capacity.full_destinations.len(), WEBHOOKS_SLOW_MAX, "no more for those that are slow");
        assert_eq!(
            capacity.free as usize,
            WEBHOOKS_IN_FLIGHT_MAX - WEBHOOKS_SLOW_MAX,
            "the rest is for others"
        );
        permits.release(held[0], Duration::ZERO, true, now);
        assert!(!permits.slow.contains_key(&id(0)), "it answers again");
        assert!(permits.capacity(now).full_destinations.is_empty());
        permits.capacity(now + WEBHOOK_SLOW_RECORDS.0);
        assert!(permits.slow.is_empty(), "what was slow long ago is removed");
    }
}
