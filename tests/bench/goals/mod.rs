//! Goals, one file for each measurement.

mod appends;
mod create;
mod growth;
mod idle;
mod kill;
mod long;
mod outbox;
mod sandboxes;
mod steer;
mod streams;
mod turns;
mod waiting;

use crate::{Bench, measure::Measured, plan::Goal};

/// Measures one goal.
pub async fn run(bench: &Bench, goal: Goal) -> anyhow::Result<Vec<Measured>> {
    match goal {
        Goal::P1 | Goal::P2 => appends::throughput(bench).await,
        Goal::P3 => appends::single(bench).await,
        Goal::P4 => create::run(bench).await,
        Goal::P5 => steer::run(bench).await,
        Goal::P6 => turns::run(bench).await,
        Goal::P7 => streams::throughput(bench).await,
        Goal::P8 => streams::latency(bench).await,
        Goal::P9 => idle::run(bench).await,
        Goal::P10 => kill::run(bench).await,
        Goal::P11 => {
            let mut measured = long::run(bench).await?;
            measured.extend(growth::run(bench).await?);
            Ok(measured)
        }
        Goal::P12 => outbox::run(bench).await,
        Goal::P13 => sandboxes::run(bench).await,
        Goal::P14 => waiting::run(bench).await,
    }
}
