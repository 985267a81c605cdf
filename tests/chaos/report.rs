//! The table of a run: printed, and with an option written to docs/reliability.md.

use std::{
    fmt::Write,
    fs,
    path::Path,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use crate::{
    check::{Found, spread},
    faults::Faults,
    load::Load,
    readers::Readers,
    run::Run,
    witness::Recoveries,
};

/// A p99 of fewer samples is not published: it is the maximum, or close to it.
const P99_SAMPLES_MIN: usize = 1_000;
/// Violations that the page lists.
const VIOLATIONS_SHOWN: usize = 20;

/// Results of a run.
pub struct Outcome<'a> {
    pub run: Run,
    pub seed: u64,
    pub took: Duration,
    /// From the last fault until every session was idle.
    pub settled: Duration,
    pub faults: &'a Faults,
    pub load: &'a Load,
    pub readers: &'a Readers,
    pub found: Found,
    pub recoveries: Recoveries,
    /// Durations of cancellations whose worker lived.
    pub undisturbed: Vec<Duration>,
    /// Events that were delivered to the webhook, and requests that it received.
    pub delivered: (usize, u64),
    pub violations: Vec<String>,
}

impl Outcome<'_> {
    /// The table, as Markdown.
    pub fn table(&mut self) -> String {
        let mut rows = self.fault_rows();
        rows.extend(self.load_rows());
        rows.extend(self.time_rows());
        rows.push(("violations".to_owned(), self.violations.len().to_string()));
        let plan = &self.faults.plan;
        let mut table = format!(
            "| commit | date | command | machine |\n|---|---|---|---|\n| {} |\n\n\
             seed {}, {} API and {} worker processes, {} concurrent sessions, lease {} ms, {:.0} s\n\n| measure | value |\n|---|---|\n",
            self.run.cells(),
            self.seed,
            plan.apis,
            plan.workers,
            plan.sessions,
            plan.lease_ms,
            self.took.as_secs_f64()
        );
        for (what, count) in rows {
            writeln!(table, "| {what} | {count} |").expect("writing to a string cannot fail");
        }
        table
    }

    fn fault_rows(&self) -> Vec<(String, String)> {
        let (plan, counts) = (&self.faults.plan, &self.faults.counts);
        let of = |done: &AtomicU32, wanted: u32| format!("{} of {wanted}", done.load(Relaxed));
        let rows = [
            ("kills", of(&counts.kills, plan.kills)),
            ("of which between two writes of a call", counts.kills_at_seam.load(Relaxed).to_string()),
            ("freezes longer than the lease", of(&counts.freezes, plan.freezes)),
            ("of which between two writes of a call", counts.freezes_at_seam.load(Relaxed).to_string()),
            ("Postgres restarts (immediate)", of(&counts.restarts, plan.postgres_restarts)),
            ("drains (SIGTERM)", of(&counts.drains, plan.drains)),
            (
                "all processes killed and started at one moment",
                of(&counts.starts_together, plan.starts_together),
            ),
            ("links to the database silent for longer than the lease", of(&counts.silences, plan.silences)),
            ("dumps by `pg_dump` under load", of(&counts.dumps, plan.dumps)),
            ("events written during a dump", counts.events_beside_dumps.load(Relaxed).to_string()),
            ("stream cuts", format!("{} of {}", self.readers.cuts.load(Relaxed), plan.stream_cuts)),
            ("stream resumes", self.readers.resumes.load(Relaxed).to_string()),
        ];
        rows.map(|(what, count)| (what.to_owned(), count)).into()
    }

    fn load_rows(&self) -> Vec<(String, String)> {
        let found = &self.found;
        let verbs = self.load.verbs.each_ref().map(|count| count.load(Relaxed));
        let asleep = self.load.asleep.each_ref().map(|count| count.load(Relaxed));
        let rows = [
            ("sessions in the database, turns", format!("{}, {}", found.sessions, found.turns)),
            ("events in the logs, each read once by a follower", found.events.to_string()),
            (
                "events read from streams, repeated reads included",
                self.readers.events.load(Relaxed).to_string(),
            ),
            (
                "events delivered, requests of the webhook",
                format!("{}, {}", self.delivered.0, self.delivered.1),
            ),
            ("tool calls", found.calls.to_string()),
            ("commands that ran, counted by the commands", found.ran.to_string()),
            ("commands of callers", found.direct.to_string()),
            ("of which in sessions without an agent", found.direct_without_agent.to_string()),
            ("sandboxes frozen, hibernated", format!("{}, {}", found.freezes, found.hibernations)),
            (
                "pauses that ended with a frozen, a hibernated sandbox",
                format!("{}, {}", asleep[0], asleep[1]),
            ),
            ("pauses with resume, stops with start", format!("{}, {}", verbs[0], verbs[1])),
            ("checkpoints with restore, archive reads with write", format!("{}, {}", verbs[2], verbs[3])),
            (
                "actions (custom tools, confirmations, questions) that a caller answered, that expired",
                format!("{}, {}", found.answered, found.expired),
            ),
            (
                "summaries of histories, requests for one that would save too little",
                format!("{}, {}", found.compacted, found.not_compacted),
            ),
            ("outputs for a schema, rejected ones", format!("{}, {}", found.outputs, found.rejected_outputs)),
            (
                "calls that reached an MCP server, with an unknown outcome",
                format!("{}, {}", found.noted, found.unknown_notes),
            ),
            ("turns that waited for a child session", self.load.waits.load(Relaxed).to_string()),
            ("messages that a running turn read", found.steered.to_string()),
            ("calls with an unknown outcome, including canceled calls", found.unknown.to_string()),
            ("turns taken over after a fault", found.recovered.to_string()),
            ("maximum attempts of a turn", found.attempts_max.to_string()),
            ("turns that ended with `recovery_exhausted`", found.exhausted.to_string()),
            ("retries of failed turns", found.retried.to_string()),
            ("503 responses, each with Retry-After", self.load.client.unavailable.load(Relaxed).to_string()),
        ];
        rows.map(|(what, count)| (what.to_owned(), count)).into()
    }

    fn time_rows(&mut self) -> Vec<(String, String)> {
        let mut rows = vec![
            ("leases taken over".to_owned(), self.recoveries.takeovers.to_string()),
            (
                "of which without a fault of the holder or the database".to_owned(),
                self.recoveries.unexplained.to_string(),
            ),
            (
                "of which of a job that its holder gave up, because the database did not answer it"
                    .to_owned(),
                self.recoveries.given_up.to_string(),
            ),
        ];
        distribution(&mut rows, "fault to next attempt", &mut self.recoveries.times);
        let cancels = self.load.cancels.lock().expect("no driver panics");
        let mut all: Vec<_> = cancels.iter().map(|cancel| cancel.took).collect();
        distribution(&mut rows, "cancel to end of a running turn, live worker", &mut self.undisturbed);
        distribution(&mut rows, "cancel to end of a running turn, all", &mut all);
        let counts = &self.faults.counts;
        rows.extend([
            ("longest drain".to_owned(), format!("{} ms", counts.slowest_drain_ms.load(Relaxed))),
            ("longest Postgres outage".to_owned(), format!("{} ms", counts.longest_outage_ms.load(Relaxed))),
            ("last fault until all sessions are at rest".to_owned(), seconds(self.settled)),
        ]);
        rows
    }

    /// Writes the table as the last full run; the rest of the document is kept.
    pub fn write(&mut self) -> anyhow::Result<()> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reliability.md");
        let text = format!(
            "# Reliability\n\nResults of the fault tests. The chaos test (`make chaos`, `tests/chaos`) kills and freezes \
             the processes of a whole deployment\nunder load, cuts its streams, and then checks all guarantees in the \
             database. The last full run:\n\n{}\n{}",
            self.table(),
            self.verdict(),
        );
        let before = fs::read_to_string(&file).unwrap_or_default();
        let rest = before.find("\n## ").map_or("", |at| &before[at..]);
        Ok(fs::write(file, text + rest)?)
    }

    fn verdict(&self) -> String {
        if self.violations.is_empty() {
            let kills = f64::from(self.faults.counts.kills.load(Relaxed).max(1));
            return format!(
                "Zero violations in {kills} kills mean that at most {:.2} % of kills cause one, at 95 % confidence.\n",
                300.0 / kills
            );
        }
        let mut text = "This run found violations:\n\n".to_owned();
        for violation in self.violations.iter().take(VIOLATIONS_SHOWN) {
            let line: String = violation.lines().next().unwrap_or_default().chars().take(300).collect();
            writeln!(text, "- `{}`", line.replace('`', "'")).expect("writing to a string cannot fail");
        }
        if self.violations.len() > VIOLATIONS_SHOWN {
            let more = self.violations.len() - VIOLATIONS_SHOWN;
            writeln!(text, "- and {more} more").expect("writing to a string cannot fail");
        }
        text
    }
}

/// Adds count, median, maximum and, of enough samples, the 99th percentile.
fn distribution(rows: &mut Vec<(String, String)>, what: &str, times: &mut [Duration]) {
    let (middle, longest) = spread(times);
    rows.push((format!("{what}, samples"), times.len().to_string()));
    rows.push((format!("{what}, p50"), seconds(middle)));
    if times.len() >= P99_SAMPLES_MIN {
        rows.push((format!("{what}, p99"), seconds(times[times.len() * 99 / 100])));
    }
    rows.push((format!("{what}, maximum"), seconds(longest)));
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
