//! Records of the witness: writers and their epochs, and the time from the loss of a worker to the next
//! attempt of its turn.

use std::{collections::HashMap, time::Duration};

use sqlx::FromRow;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    client::Violations,
    cluster::Cluster,
    load::Canceled,
    processes::{FIRST_API, Fault},
};

/// Time that a fault may have effects: a freeze, and the lease that expires meanwhile.
const REACH: Duration = Duration::from_secs(8);

#[derive(FromRow)]
struct Started {
    turn_id: Uuid,
    attempt: i32,
    at: OffsetDateTime,
    last_at: OffsetDateTime,
    last_process: Option<i32>,
}

/// Durations from a fault to the next attempt of an affected turn.
#[derive(Debug, Default)]
pub struct Recoveries {
    pub times: Vec<Duration>,
    /// Second attempts of turns whose worker had no fault.
    pub unexplained: u64,
}

/// No epoch has two writers, and none writes under an epoch that was replaced.
pub async fn check_epochs(cluster: &Cluster, violations: &Violations) -> anyhow::Result<()> {
    let mut connection = cluster.superuser().await?;
    let shared: Vec<(Uuid, i64, i64)> = sqlx::query_as(
        "select session_id, epoch, count(distinct process)
         from chaos.write
         where process < $1
         group by session_id, epoch
         having count(distinct process) > 1",
    )
    .bind(i32::try_from(FIRST_API)?)
    .fetch_all(&mut connection)
    .await?;
    for (session, epoch, writers) in shared {
        violations.note(format!("{session}: {writers} processes wrote under epoch {epoch}"));
    }
    let backwards: Vec<(Uuid, i64)> = sqlx::query_as(
        "select session_id, seq
         from (
             select session_id, seq, epoch, lag(epoch) over (partition by session_id order by seq) as before
             from chaos.write
         ) w
         where epoch < before",
    )
    .fetch_all(&mut connection)
    .await?;
    for (session, seq) in backwards {
        violations.note(format!("{session}: event {seq} was written under an epoch that was replaced"));
    }
    Ok(())
}

/// No lease is taken from its holder before the server has been up for the length of a lease.
pub async fn check_takeovers(
    cluster: &Cluster,
    lease: Duration,
    violations: &Violations,
) -> anyhow::Result<()> {
    let mut connection = cluster.superuser().await?;
    let early: Vec<(Uuid, OffsetDateTime, OffsetDateTime)> = sqlx::query_as(
        "select session_id, server_start, at
         from chaos.takeover
         where at < server_start + $1 * interval '1 millisecond'",
    )
    .bind(i64::try_from(lease.as_millis())?)
    .fetch_all(&mut connection)
    .await?;
    for (session, started, at) in early {
        violations.note(format!("{session} was taken over {} after the server's start", at - started));
    }
    Ok(())
}

/// Cancellations whose worker lived all the time: no fault hit the database or any writer of the session.
pub async fn undisturbed(
    cluster: &Cluster,
    cancels: &[Canceled],
    faults: &[Fault],
) -> anyhow::Result<Vec<Duration>> {
    let mut connection = cluster.superuser().await?;
    let mut times = Vec::new();
    for cancel in cancels {
        let since = cancel.at - REACH;
        let ended = cancel.at + cancel.took;
        let writers: Vec<(i32,)> = sqlx::query_as(
            "select distinct process
             from chaos.write
             where session_id = $1 and process < $2 and at between $3 and $4",
        )
        .bind(cancel.session.uuid())
        .bind(i32::try_from(FIRST_API)?)
        .bind(since)
        .bind(ended)
        .fetch_all(&mut connection)
        .await?;
        let concerns = |process: u32| {
            process == 0 || writers.iter().any(|(writer,)| u32::try_from(*writer) == Ok(process))
        };
        let is_hit = |fault: &Fault| concerns(fault.process) && fault.at >= since && fault.at <= ended;
        if !writers.is_empty() && !faults.iter().any(is_hit) {
            times.push(cancel.took);
        }
    }
    Ok(times)
}

/// Finds the fault of each second attempt.
pub async fn recoveries(
    cluster: &Cluster,
    faults: &[Fault],
    violations: &Violations,
) -> anyhow::Result<Recoveries> {
    let mut connection = cluster.superuser().await?;
    let started: Vec<Started> = sqlx::query_as(
        "select w.turn_id, w.attempt, w.at, p.at as last_at, p.process as last_process
         from chaos.write w
         join lateral (
             select at, process
             from chaos.write b
             where b.session_id = w.session_id and b.seq < w.seq and b.turn_id = w.turn_id
               -- A call that went with its worker is said by the next one, with its own start.
               and b.type not in ('user.message', 'turn.cancel_requested', 'step.aborted')
             order by b.seq desc
             limit 1
         ) p on true
         where w.type = 'turn.started' and w.attempt > 1
         order by w.at",
    )
    .fetch_all(&mut connection)
    .await?;
    let mut by_process: HashMap<u32, Vec<OffsetDateTime>> = HashMap::new();
    for fault in faults {
        by_process.entry(fault.process).or_default().push(fault.at);
    }
    let mut found = Recoveries::default();
    for one in &started {
        let last = one.last_process.and_then(|process| u32::try_from(process).ok()).unwrap_or_default();
        // A worker can die after its claim and before its first write.
        let hit = |process: u32, since: OffsetDateTime| {
            let times = by_process.get(&process)?;
            times.iter().copied().rfind(|at| *at >= since && *at <= one.at)
        };
        let margin = time::Duration::milliseconds(100);
        let since = one.last_at - margin;
        let cause = [hit(last, since), hit(0, since)]
            .into_iter()
            .flatten()
            .max()
            .or_else(|| faults.iter().map(|fault| fault.at).rfind(|at| *at >= since && *at <= one.at));
        match cause.and_then(|cause| Duration::try_from(one.at - cause).ok()) {
            Some(time) => found.times.push(time),
            None => {
                found.unexplained += 1;
                eprintln!("attempt {} of {} has no fault to explain it", one.attempt, one.turn_id);
            }
        }
    }
    if let Some(slow) = found.times.iter().find(|time| **time > Duration::from_secs(30)) {
        violations.note(format!("a turn waited {slow:?} for its next worker"));
    }
    Ok(found)
}
