//! Medians, spreads and percentiles.

use std::time::Duration;

/// Median and range of several figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// `None` for an empty slice.
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, least, most })
    }
}

/// The value that `part` percent of the durations do not exceed, in milliseconds.
pub fn percentile_ms(times: &mut [Duration], part: usize) -> f64 {
    times.sort_unstable();
    let at = (times.len().saturating_sub(1) * part).div_ceil(100);
    times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1_000.0)
}

/// p50 and p99 of the durations, in milliseconds.
pub fn p50_p99(mut times: Vec<Duration>) -> Vec<f64> {
    vec![percentile_ms(&mut times, 50), percentile_ms(&mut times, 99)]
}
