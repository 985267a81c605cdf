//! Exponential back-off with jitter.

use std::time::Duration;

use super::Origin;

/// Exponential back-off with jitter between a first and a longest delay.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// Delay before the second try.
    pub first: Duration,
    /// Upper bound of a delay.
    pub longest: Duration,
}

impl Backoff {
    /// Returns the delay before try `attempt + 1`; the first try is 1.
    ///
    /// The delay is between half and all of the doubled value, so clients that failed together do
    /// not retry together.
    pub fn delay(&self, attempt: u32, origin: &Origin) -> Duration {
        let doublings = attempt.saturating_sub(1).min(16);
        let whole = self.first.saturating_mul(1 << doublings).min(self.longest);
        whole.mul_f64(0.5 + origin.fraction() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_and_stop_growing() {
        let backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(2) };
        let origin = Origin::system();
        for (attempt, whole_ms) in [(1, 100), (2, 200), (3, 400), (9, 2000), (400, 2000)] {
            let delay = backoff.delay(attempt, &origin).as_millis();
            assert!(delay >= whole_ms / 2 && delay <= whole_ms, "attempt {attempt}: {delay} ms");
        }
    }
}
