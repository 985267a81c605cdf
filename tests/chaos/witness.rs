//! Records of the witness, compared with the faults: who wrote under which epoch, why each lease was taken
//! over, and how long a turn waited for its next worker.

use std::{fs, io, path::Path, time::Duration};

use sqlx::{FromRow, PgConnection};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use crate::{
    check::public,
    client::Violations,
    cluster::Cluster,
    load::Canceled,
    processes::{FIRST_API, Fault},
};

/// Time that a fault may have effects on a cancellation: a freeze, and the lease that expires meanwhile.
const REACH: Duration = Duration::from_secs(8);
/// A statement that was on its way when a fault began is executed within this time after it.
const ON_ITS_WAY: Duration = Duration::from_millis(250);
/// Log message of a worker that gives a job up, and the reason that counts.
const GIVEN_UP: [&str; 2] =
    ["job failed; it is claimed again when its lease expires", "error=the database is not available"];
/// Time for which a fault can keep the database from answering others: a frozen process keeps its locks until then.
const LOCKS_KEPT: Duration = Duration::from_secs(20);
/// Jobs that may be given up, and the share of all takeovers if that is more.
const GIVEN_UP_MAX: (u64, f64) = (5, 0.05);
/// Worst time from the loss of a worker to the next one: the guarantee `Alive`.
const RECOVERY_MAX: Duration = Duration::from_secs(30);

#[derive(FromRow)]
struct Takeover {
    session_id: Uuid,
    kind: String,
    process: Option<i32>,
    lease_until: OffsetDateTime,
    at: OffsetDateTime,
    server_start: OffsetDateTime,
}

#[derive(FromRow)]
struct Attempt {
    session_id: Uuid,
    turn_id: Uuid,
    attempt: i32,
    /// Attempts that were retries.
    retries: i32,
    at: OffsetDateTime,
    /// Start of the first attempt.
    first_at: OffsetDateTime,
}

/// Takeovers, and durations from a fault to the next attempt of an affected turn.
#[derive(Debug, Default)]
pub struct Recoveries {
    pub times: Vec<Duration>,
    pub takeovers: u64,
    /// Takeovers whose holder had no fault after it last renewed its lease.
    pub unexplained: u64,
    /// Takeovers of jobs that their holder had given up, because the database did not answer it.
    pub given_up: u64,
}

/// Every worker writes only under an epoch that it raised itself.
pub async fn check_epochs(cluster: &Cluster, violations: &Violations) -> anyhow::Result<()> {
    let mut connection = cluster.superuser().await?;
    let stale: Vec<(Uuid, String)> = sqlx::query_as(
        "select w.session_id,
                format('process %s wrote %s (%s) under epoch %s of process %s',
                       w.process, w.type, w.seq, w.epoch, e.process)
         from chaos.write w
         left join chaos.epoch e on e.session_id = w.session_id and e.epoch = w.epoch
         where w.process < $1
           and w.process is distinct from e.process
           -- Written like a caller's event, under the lock of the row, also by the worker of a parent.
           and w.type not in ('action.closed', 'user.message')
         order by w.at",
    )
    .bind(i32::try_from(FIRST_API)?)
    .fetch_all(&mut connection)
    .await?;
    for (session, words) in stale {
        violations.note(format!("{session}: {words}"));
    }
    Ok(())
}

/// Every takeover follows a fault of the very process that held the lease, or of the database, after which
/// the lease was not renewed. None comes before the end of the lease, nor before the server has been up for
/// the length of a lease.
///
/// A holder also gives a job up if the database does not answer it, as while a frozen process keeps a lock: then its log says
/// so.
pub async fn check_takeovers(
    (cluster, logs): (&Cluster, &Path),
    lease: Duration,
    faults: &[Fault],
    violations: &Violations,
) -> anyhow::Result<Recoveries> {
    let mut connection = cluster.superuser().await?;
    let takeovers: Vec<Takeover> =
        sqlx::query_as("select * from chaos.takeover order by at").fetch_all(&mut connection).await?;
    let mut found = Recoveries { takeovers: takeovers.len() as u64, ..Recoveries::default() };
    for one in &takeovers {
        let what = format!("{} of {} was taken from process {:?}", one.kind, one.session_id, one.process);
        if one.at < one.lease_until {
            violations.note(format!("{what} {} before the end of its lease", one.lease_until - one.at));
        }
        if one.at < one.server_start + lease {
            violations.note(format!("{what} {} after the server's start", one.at - one.server_start));
        }
        if one.cause(lease, faults).is_none() && one.is_given_up(lease, faults, logs)? {
            found.given_up += 1;
        } else if one.cause(lease, faults).is_none() {
            found.unexplained += 1;
            violations.note(format!(
                "{what} at {} without a fault since its lease was renewed, at {}",
                one.at,
                one.lease_until - lease
            ));
        }
    }
    let (least, share) = GIVEN_UP_MAX;
    if found.given_up > least.max((found.takeovers as f64 * share) as u64) {
        violations
            .note(format!("{} of {} jobs were given up by their holder", found.given_up, found.takeovers));
    }
    found.times = recoveries(&mut connection, lease, faults, &takeovers, violations).await?;
    Ok(found)
}

impl Takeover {
    /// Whether its holder gave the job up, after it had renewed the lease for the last time, because a fault kept the
    /// database from answering.
    fn is_given_up(&self, lease: Duration, faults: &[Fault], logs: &Path) -> anyhow::Result<bool> {
        let Some(process) = self.process else { return Ok(false) };
        let (session, begin) = (public(self.session_id).to_string(), format!("{process:04}-"));
        let is_of_it = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&begin);
        let entries = fs::read_dir(logs)?.collect::<io::Result<Vec<_>>>()?;
        let Some(log) = entries.iter().find(|entry| is_of_it(entry)) else { return Ok(false) };
        let says_so =
            |line: &&str| line.contains(&session) && GIVEN_UP.iter().all(|part| line.contains(part));
        let at = |line: &str| OffsetDateTime::parse(line.split(' ').next()?, &Rfc3339).ok();
        let times = fs::read_to_string(log.path())?.lines().filter(says_so).map(at).collect::<Vec<_>>();
        let follows_fault = |time: OffsetDateTime| {
            let lasted = |fault: &Fault| fault.until.is_none_or(|until| until + LOCKS_KEPT >= time);
            faults.iter().any(|fault| fault.from <= time && lasted(fault))
        };
        let is_it = |time: OffsetDateTime| self.lease_until - lease <= time && time <= self.at;
        Ok(times.into_iter().flatten().any(|time| is_it(time) && follows_fault(time)))
    }

    /// The last fault of the holder or of the database from which the holder did not recover: it never
    /// renewed the lease afterwards.
    fn cause<'a>(&self, lease: Duration, faults: &'a [Fault]) -> Option<&'a Fault> {
        let renewed = self.lease_until - lease;
        let process = self.process.and_then(|process| u32::try_from(process).ok());
        let is_cause = |fault: &&Fault| {
            let concerns = fault.process == 0 || fault.keeps_locks || Some(fault.process) == process;
            let lasted = fault.until.is_none_or(|until| renewed <= until + ON_ITS_WAY);
            concerns && fault.from <= self.at && lasted
        };
        faults.iter().filter(is_cause).max_by_key(|fault| fault.from)
    }
}

/// Time from the fault to each second or later attempt of a turn.
async fn recoveries(
    connection: &mut PgConnection,
    lease: Duration,
    faults: &[Fault],
    takeovers: &[Takeover],
    violations: &Violations,
) -> anyhow::Result<Vec<Duration>> {
    let attempts: Vec<Attempt> = sqlx::query_as(
        "select session_id, turn_id, attempt, retries, at, first_at
         from (
             select session_id, turn_id, attempt, at,
                    first_value(at) over (partition by session_id, turn_id order by seq) as first_at,
                    type, lag(type) over (partition by session_id, turn_id order by seq) as before,
                    (count(*) filter (where type = 'turn.retried')
                        over (partition by session_id, turn_id order by seq))::integer as retries
             from chaos.write
             where type in ('turn.started', 'turn.retried')
         ) w
         where type = 'turn.started' and before = 'turn.started' and at > first_at
         order by at",
    )
    .fetch_all(connection)
    .await?;
    let mut times = Vec::new();
    for one in &attempts {
        // One for each attempt. The next may be before its start: until the job is claimed, the holder writes.
        let is_of_turn = |taken: &&Takeover| {
            taken.session_id == one.session_id
                && taken.kind == "turn"
                && taken.at > one.first_at
                && taken.at <= one.at
        };
        let taken: Vec<_> = takeovers.iter().filter(is_of_turn).collect();
        let takeovers = (one.attempt - 1 - one.retries).unsigned_abs() as usize;
        let Some(taken) = taken.last().filter(|_| taken.len() >= takeovers) else {
            let Attempt { session_id, turn_id, attempt, .. } = one;
            violations.note(format!("{session_id}: attempt {attempt} of {turn_id} follows no takeover"));
            continue;
        };
        // Without one, the takeover was recorded as a violation.
        let Some(cause) = taken.cause(lease, faults) else { continue };
        let Ok(time) = Duration::try_from(one.at - cause.from) else { continue };
        if time > RECOVERY_MAX && cause.process != 0 {
            violations.note(format!("{}: a turn waited {time:?} for its next worker", one.session_id));
        }
        times.push(time);
    }
    Ok(times)
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
        let is_hit = |fault: &Fault| {
            (fault.keeps_locks || concerns(fault.process))
                && fault.from <= ended
                && fault.until.is_none_or(|until| until >= since)
        };
        if !writers.is_empty() && !faults.iter().any(is_hit) {
            times.push(cancel.took);
        }
    }
    Ok(times)
}
