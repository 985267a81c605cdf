//! The table of a run: printed, and with an option written to docs/reliability.md.

use std::{fmt::Write, fs, path::Path, sync::atomic::Ordering::Relaxed, time::Duration};

use crate::{
    check::{Found, spread},
    faults::Faults,
    load::Load,
    readers::Readers,
    run::Run,
    witness::Recoveries,
};

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
    pub violations: Vec<String>,
}

impl Outcome<'_> {
    /// The table, as Markdown.
    pub fn table(&mut self) -> String {
        let plan = &self.faults.plan;
        let counts = &self.faults.counts;
        let (middle, longest) = spread(&mut self.recoveries.times);
        let ms = |value: u32| format!("{value} ms");
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        let cancels = self.load.cancels.lock().expect("no driver panics");
        let (_, slowest_cancel) = spread(&mut cancels.iter().map(|cancel| cancel.took).collect::<Vec<_>>());
        let (_, slowest_undisturbed) = spread(&mut self.undisturbed);
        let late_cancel =
            self.undisturbed.get(self.undisturbed.len() * 99 / 100).copied().unwrap_or_default();
        let of = |done: u32, wanted: u32| format!("{done} of {wanted}");
        let at_seam = |done: u32, seam: u32| format!("{done} ({seam} between two writes of a call)");
        let verbs = self.load.verbs.each_ref().map(|count| count.load(Relaxed));
        let rows = [
            ("kills", of(counts.kills.load(Relaxed), plan.kills)),
            ("of which between two writes of a call", counts.kills_at_seam.load(Relaxed).to_string()),
            (
                "freezes longer than the lease",
                at_seam(counts.freezes.load(Relaxed), counts.freezes_at_seam.load(Relaxed)),
            ),
            ("Postgres restarts (immediate)", of(counts.restarts.load(Relaxed), plan.postgres_restarts)),
            ("drains (SIGTERM)", of(counts.drains.load(Relaxed), plan.drains)),
            ("stream cuts", format!("{} of {}", self.readers.cuts.load(Relaxed), plan.stream_cuts)),
            ("stream resumes", self.readers.resumes.load(Relaxed).to_string()),
            ("sessions, turns", format!("{}, {}", self.found.sessions, self.found.turns)),
            ("events in the logs", self.found.events.to_string()),
            ("events read from streams", self.readers.events.load(Relaxed).to_string()),
            ("tool calls", self.found.calls.to_string()),
            ("commands that ran, counted by the commands", self.found.ran.to_string()),
            ("commands of callers", self.found.direct.to_string()),
            ("pauses with resume, stops with start", format!("{}, {}", verbs[0], verbs[1])),
            ("checkpoints with restore, archive reads with write", format!("{}, {}", verbs[2], verbs[3])),
            ("calls with an unknown outcome, including canceled calls", self.found.unknown.to_string()),
            ("turns taken over after a fault", self.found.recovered.to_string()),
            ("maximum attempts of a turn", self.found.attempts_max.to_string()),
            ("turns that ended with `recovery_exhausted`", self.found.exhausted.to_string()),
            ("takeovers without a fault in the same period", self.recoveries.unexplained.to_string()),
            ("fault to next attempt, p50", seconds(middle)),
            ("fault to next attempt, maximum", seconds(longest)),
            ("turns canceled while running", cancels.len().to_string()),
            ("of which with a live worker", self.undisturbed.len().to_string()),
            ("cancel to end of the turn, live worker, p99", seconds(late_cancel)),
            ("cancel to end of the turn, live worker, maximum", seconds(slowest_undisturbed)),
            ("cancel to end of the turn, all turns, maximum", seconds(slowest_cancel)),
            ("longest drain", ms(counts.slowest_drain_ms.load(Relaxed))),
            ("longest Postgres outage", ms(counts.longest_outage_ms.load(Relaxed))),
            ("503 responses, each with Retry-After", self.load.client.unavailable.load(Relaxed).to_string()),
            ("last fault until all sessions are at rest", seconds(self.settled)),
            ("violations", self.violations.len().to_string()),
        ];
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

    /// Writes the table as the last full run; the rest of the document is kept.
    pub fn write(&mut self) -> anyhow::Result<()> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reliability.md");
        let kills = f64::from(self.faults.counts.kills.load(Relaxed).max(1));
        let text = format!(
            "# Reliability\n\nResults of the fault tests. The chaos test (`make chaos`, `tests/chaos`) kills and freezes \
             the processes of a\nwhole deployment under load, cuts its streams, and then checks all guarantees in the \
             database. The last full run:\n\n{}\n\
             Zero violations in {kills} kills mean that at most {:.2} % of kills cause one, at 95 % confidence.\n",
            self.table(),
            300.0 / kills,
        );
        let before = fs::read_to_string(&file).unwrap_or_default();
        let rest = before.find("\n## ").map_or("", |at| &before[at..]);
        Ok(fs::write(file, text + rest)?)
    }
}
