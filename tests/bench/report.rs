//! The table of a run: printed, and with `--write` stored in docs/performance.md.

use std::{fmt::Write, fs, path::Path};

use sqlx::Connection;

use crate::{
    Bench, GOALS,
    anchor::{Anchor, Way},
    ground::Ground,
    measure::{Measured, Target},
    plan::Goal,
    plot,
    stats::Spread,
};

/// Heading of the hand-written part of the page, which a run does not change.
const CAUSES: &str = "\n## Missed goals\n";
/// The line below the table; the goals that were measured separately follow it.
const MISSED: &str = "A goal that was not met is marked **missed**.";
const SINCE: &str = " Measured again later, without the other goals: ";

/// The results of a run.
pub struct Report {
    machine: String,
    /// Raw database throughput: the method, events a second, microseconds per event.
    raw: Vec<(&'static str, Vec<f64>)>,
    measured: Vec<Measured>,
    skipped: Vec<(Goal, String)>,
    repeats: usize,
    is_quick: bool,
    /// Whether the run covers some goals only.
    is_part: bool,
}

impl Report {
    /// With the machine's description and the raw figures.
    pub async fn new(bench: &Bench) -> anyhow::Result<Self> {
        let machine = machine(&bench.ground).await?;
        println!("{machine}\n\nthe database alone");
        let anchor = Anchor::open(bench).await?;
        let ways = [
            ("one event, four round trips", Way::FourTrips),
            ("one event, one statement", Way::One),
            ("one event each of 10 sessions, one commit", Way::TenSessions),
            ("10 events of one session, one statement", Way::Several(10)),
            ("100 events of one session, one statement", Way::Several(100)),
        ];
        let mut raw = Vec::new();
        for (what, way) in ways {
            let figures = anchor.throughput(way, bench.plan.span()).await?;
            println!("  {what}: {:.0} events/s, {:.1} us per event", figures[0], figures[1]);
            raw.push((what, figures));
        }
        anchor.close().await;
        let (measured, skipped) = (Vec::new(), Vec::new());
        let (repeats, is_quick) = (bench.plan.accepted(), bench.plan.quick);
        let is_part = !bench.plan.named.is_empty();
        Ok(Self { machine, raw, measured, skipped, repeats, is_quick, is_part })
    }

    pub fn add(&mut self, measured: Vec<Measured>) {
        self.measured.extend(measured);
    }

    pub fn skip(&mut self, goal: Goal, reason: String) {
        self.skipped.push((goal, reason));
    }

    /// The table, as Markdown.
    pub fn table(&self) -> String {
        let mut table = String::from(
            "| # | what | goal | measured | spread | raw anchor | |\n|---|---|---|---|---|---|---|\n",
        );
        for measured in &self.measured {
            row(&mut table, measured).expect("writing to a string cannot fail");
        }
        for (goal, reason) in &self.skipped {
            let reason = reason.replace('|', "/");
            writeln!(table, "| {goal} | {} | | {reason} | | | not measured |", goal.what())
                .expect("writing to a string cannot fail");
        }
        table
    }

    /// Writes the page and a plot for each goal. A run of some goals replaces only their
    /// rows in the existing page.
    pub fn write(&self) -> anyhow::Result<()> {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        let plots = docs.join("performance");
        fs::create_dir_all(&plots)?;
        let mut pictures = String::new();
        for goal in self.goals() {
            let of: Vec<_> = self.measured.iter().filter(|measured| measured.metric.goal == goal).collect();
            let name = format!("{}.svg", goal.to_string().to_lowercase());
            fs::write(plots.join(&name), plot::svg(goal, &of))?;
            writeln!(pictures, "![{goal}: {}](performance/{name})\n", goal.what())?;
        }
        let page = docs.join("performance.md");
        let before = fs::read_to_string(&page).unwrap_or_default();
        // The explanations are written by hand and stay.
        let causes = before.find(CAUSES).unwrap_or(before.len());
        let (figures, causes) = before.split_at(causes);
        let figures = if self.is_part { self.renewed(figures)? } else { self.text(&pictures) };
        fs::write(page, figures + causes)?;
        println!("written: docs/performance.md and docs/performance/");
        Ok(())
    }

    fn goals(&self) -> impl Iterator<Item = Goal> {
        GOALS.into_iter().filter(|goal| self.measured.iter().any(|measured| measured.metric.goal == *goal))
    }

    /// The page of a run of all goals, with the rows of this run in place of the old ones.
    fn renewed(&self, before: &str) -> anyhow::Result<String> {
        let of = |goal: Goal| format!("| {goal} | ");
        let mut page = String::new();
        for line in before.lines() {
            match self.goals().find(|goal| line.starts_with(&of(*goal))) {
                None if line.starts_with(MISSED) => writeln!(page, "{MISSED}{SINCE}{}.", self.since(line))?,
                None => writeln!(page, "{line}")?,
                // The first old row of a goal is replaced by all of its new rows.
                Some(goal) if !page.contains(&of(goal)) => {
                    let rows = self.measured.iter().filter(|measured| measured.metric.goal == goal);
                    rows.for_each(|measured| row(&mut page, measured).expect("a string accepts all"));
                }
                Some(_) => {}
            }
        }
        for goal in self.goals() {
            anyhow::ensure!(page.contains(&of(goal)), "no row of {goal} to replace: measure all goals first");
        }
        Ok(page)
    }

    /// Goals that were measured without the others, by this run or an earlier one.
    fn since(&self, line: &str) -> String {
        let before = line.split_once(SINCE).map_or("", |(_, goals)| goals.trim_end_matches('.'));
        let before: Vec<_> = before.split(", ").collect();
        let now: Vec<_> = self.goals().collect();
        let all = GOALS.into_iter().filter(|goal| now.contains(goal) || before.contains(&&*goal.to_string()));
        all.map(|goal| goal.to_string()).collect::<Vec<_>>().join(", ")
    }

    fn text(&self, pictures: &str) -> String {
        let mut raw = String::from("| method | events/s | server CPU time per event |\n|---|---|---|\n");
        for (what, figures) in &self.raw {
            writeln!(raw, "| {what} | {:.0} | {:.1} us |", figures[0], figures[1])
                .expect("writing to a string cannot fail");
        }
        let form = if self.is_quick {
            "**This is the quick run: it only shows that every measurement works. Its figures mean nothing.**\n\n"
        } else {
            ""
        };
        format!(
            "# Performance\n\nBenchmark results for each goal. {form}Machine: {}\n\n\
             ## Method\n\n`make bench` (`tests/bench`) writes this page. Client, service and database share the \
             machine's cores.\n\n\
             - Every measurement runs between two runs of a raw anchor on the same server. The anchor does the same \
             database\n  work without the service.\n\
             - A ratio (`x`) is relative to the mean of its own two anchors.\n\
             - A repeat whose anchors differ by more than 25 % is rejected. {} accepted repeats give median and \
             spread.\n\
             - P9 is measured once. The memory of an idle stream (P8) and the copied sessions (P11) are measured \
             once and\n  shown with each repeat.\n\
             - CPU time is as counted by the operating system.\n\
             - `vacuum analyze` and `checkpoint` run before each goal, so that no goal pays for the work of \
             another.\n\n\
             ## Raw database throughput\n\nSQL statements without the service, 393 bytes of JSON in each event, \
             8 writers:\n\n{raw}\n\
             ## Goals\n\n{}\n{MISSED}\n\n## Plots\n\nEach dot is a repeat, the bar is the median, grey is the \
             raw anchor,\nand the dashed line is the goal. Hollow dots are noisy repeats that do not count.\n\n{}\n",
            self.machine,
            self.repeats,
            self.table(),
            pictures.trim_end(),
        )
    }
}

fn row(table: &mut String, measured: &Measured) -> std::fmt::Result {
    let metric = &measured.metric;
    let (value, score, anchor) = (measured.value(), measured.score(), measured.anchor());
    let is_ratio = matches!(metric.target, Target::RatioAtLeast(_) | Target::RatioAtMost(_));
    let goal = match metric.target {
        Target::RatioAtLeast(bound) => format!("at least {bound} x raw"),
        Target::RatioAtMost(bound) => format!("at most {bound} x raw"),
        Target::AtLeast(bound) => format!("at least {} {}", figure(bound), metric.unit),
        Target::AtMost(bound) => format!("at most {} {}", figure(bound), metric.unit),
        Target::Told => String::new(),
    };
    let said = format!("{} {}", figure(value.median), metric.unit);
    let said = if is_ratio { format!("{said} = {} x", figure(score.median)) } else { said };
    let apart = |spread: Spread| format!("{} to {}", figure(spread.least), figure(spread.most));
    let raw = if is_ratio { format!("{} {}", figure(anchor.median), metric.unit) } else { String::new() };
    let met = measured.holds().map_or("", |holds| if holds { "met" } else { "**missed**" });
    writeln!(
        table,
        "| {} | {} | {goal} | {said} | {} | {raw} | {met} |",
        metric.goal,
        metric.what,
        apart(score)
    )
}

/// A figure with its significant digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The machine, in one line.
pub async fn machine(ground: &Ground) -> anyhow::Result<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let cpu =
        after(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "an unnamed processor".to_owned());
    let memory = after(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
    let memory: u64 = memory.trim_end_matches(" kB").parse().unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let mut connection = ground.connection().await?;
    let (postgres,): (String,) = sqlx::query_as("show server_version").fetch_one(&mut connection).await?;
    connection.close().await?;
    let build = if cfg!(debug_assertions) { "a debug build, whose figures mean nothing" } else { "release" };
    Ok(format!(
        "{} cores of {cpu}, {} GB of memory, Linux {}, Postgres {postgres}, {build}.",
        std::thread::available_parallelism()?,
        memory / 1_000_000,
        kernel.trim()
    ))
}
