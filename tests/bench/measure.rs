//! A measurement: anchor, service, anchor, repeated.
//!
//! A repeat whose two anchors differ by more than `NOISE_MAX` shows noise of the machine and is rejected. A
//! figure with a ratio as its goal is divided by the mean of its own two anchors.

use crate::{Bench, plan::Goal, stats::Spread};

/// Largest accepted difference of the anchors of one repeat, as a fraction of the smaller one.
const NOISE_MAX: f64 = 0.25;
/// Attempts for each repeat that must be accepted.
const TRIES: usize = 3;

/// Goal of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Lower or upper bound of the ratio to the anchor.
    RatioAtLeast(f64),
    RatioAtMost(f64),
    /// Lower or upper bound of the figure itself.
    AtLeast(f64),
    AtMost(f64),
    /// Reported for comparison only.
    Told,
}

/// One figure of a goal.
#[derive(Clone, Debug)]
pub struct Metric {
    pub goal: Goal,
    pub what: String,
    pub unit: &'static str,
    pub target: Target,
}

/// One figure between its anchors.
#[derive(Clone, Copy, Debug)]
pub struct Repeat {
    pub before: f64,
    pub value: f64,
    pub after: f64,
    pub is_noisy: bool,
}

/// A figure with its repeats.
#[derive(Clone, Debug)]
pub struct Measured {
    pub metric: Metric,
    pub repeats: Vec<Repeat>,
}

impl Metric {
    pub fn new(goal: Goal, what: impl Into<String>, unit: &'static str, target: Target) -> Self {
        Self { goal, what: what.into(), unit, target }
    }
}

impl Repeat {
    /// The figure, divided by its anchors where the goal is a ratio.
    fn score(&self, target: Target) -> f64 {
        match target {
            Target::RatioAtLeast(_) | Target::RatioAtMost(_) => {
                self.value / ((self.before + self.after) / 2.0)
            }
            Target::AtLeast(_) | Target::AtMost(_) | Target::Told => self.value,
        }
    }
}

impl Measured {
    /// Repeats that count: those without noise, or all when every one is noisy.
    pub fn counted(&self) -> Vec<Repeat> {
        let quiet: Vec<_> = self.repeats.iter().filter(|repeat| !repeat.is_noisy).copied().collect();
        if quiet.is_empty() { self.repeats.clone() } else { quiet }
    }

    pub fn value(&self) -> Spread {
        let values: Vec<_> = self.counted().iter().map(|repeat| repeat.value).collect();
        Spread::of(&values).unwrap_or_default()
    }

    pub fn anchor(&self) -> Spread {
        let anchors: Vec<_> =
            self.counted().iter().map(|repeat| (repeat.before + repeat.after) / 2.0).collect();
        Spread::of(&anchors).unwrap_or_default()
    }

    /// Value that is compared with the goal.
    pub fn score(&self) -> Spread {
        let scores: Vec<_> = self.counted().iter().map(|repeat| repeat.score(self.metric.target)).collect();
        Spread::of(&scores).unwrap_or_default()
    }

    /// Whether the goal is met; `None` where there is none.
    pub fn holds(&self) -> Option<bool> {
        let score = self.score().median;
        match self.metric.target {
            Target::RatioAtLeast(bound) | Target::AtLeast(bound) => Some(score >= bound),
            Target::RatioAtMost(bound) | Target::AtMost(bound) => Some(score <= bound),
            Target::Told => None,
        }
    }
}

impl Bench {
    /// As [`Bench::measure`], for measurements that are too large or too slow to repeat.
    pub async fn measure_once(
        &self,
        metrics: Vec<Metric>,
        raw: impl AsyncFnMut() -> anyhow::Result<Vec<f64>>,
        service: impl AsyncFnMut() -> anyhow::Result<Vec<f64>>,
    ) -> anyhow::Result<Vec<Measured>> {
        self.repeat(1, 1, metrics, raw, service).await
    }

    /// Measures several figures at once. `raw` and `service` return one figure for each metric, in order.
    /// An anchor without such a figure returns fewer, and its first one is the speed of the machine. The first figure of the anchor decides about noise.
    pub async fn measure(
        &self,
        metrics: Vec<Metric>,
        raw: impl AsyncFnMut() -> anyhow::Result<Vec<f64>>,
        service: impl AsyncFnMut() -> anyhow::Result<Vec<f64>>,
    ) -> anyhow::Result<Vec<Measured>> {
        let wanted = self.plan.accepted();
        let tries = if self.plan.quick { 1 } else { wanted * TRIES };
        self.repeat(wanted, tries, metrics, raw, service).await
    }

    async fn repeat(
        &self,
        wanted: usize,
        tries: usize,
        metrics: Vec<Metric>,
        mut raw: impl AsyncFnMut() -> anyhow::Result<Vec<f64>>,
        mut service: impl AsyncFnMut() -> anyhow::Result<Vec<f64>>,
    ) -> anyhow::Result<Vec<Measured>> {
        let mut measured: Vec<_> =
            metrics.into_iter().map(|metric| Measured { metric, repeats: Vec::new() }).collect();
        let mut accepted = 0;
        for round in 1..=tries {
            let before = raw().await?;
            let values = service().await?;
            let after = raw().await?;
            let (one, other) = (before[0].min(after[0]), before[0].max(after[0]));
            let is_noisy = (other - one) / one > NOISE_MAX;
            for (at, measured) in measured.iter_mut().enumerate() {
                let of = |anchor: &[f64]| anchor.get(at).copied().unwrap_or(anchor[0]);
                let repeat = Repeat { before: of(&before), value: values[at], after: of(&after), is_noisy };
                measured.repeats.push(repeat);
            }
            let told: Vec<_> = measured
                .iter()
                .map(|measured| {
                    let value = measured.repeats.last().map_or(0.0, |repeat| repeat.value);
                    format!("{:.3} {}", value, measured.metric.unit)
                })
                .collect();
            let words = if is_noisy { " (noisy, rejected)" } else { "" };
            println!("  {round}: {}; anchor {one:.2} to {other:.2}{words}", told.join(", "));
            accepted += usize::from(!is_noisy);
            if accepted >= wanted {
                break;
            }
        }
        for measured in &measured {
            let (score, holds) = (measured.score(), measured.holds());
            println!(
                "  {}: {:.3} ({:.3} to {:.3}){}",
                measured.metric.what,
                score.median,
                score.least,
                score.most,
                holds.map_or("", |holds| if holds { ", met" } else { ", missed" })
            );
        }
        Ok(measured)
    }
}
