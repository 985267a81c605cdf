//! The table of a run: printed, and with `--write` stored in docs/performance.md.

use std::{fmt::Write, fs, path::Path};

use anyhow::Context as _;
use sqlx::Connection;

use crate::{
    Bench, GOALS,
    anchor::{Anchor, Way},
    ground::Ground,
    measure::{Measured, Target},
    page,
    plan::Goal,
    plot,
    run::Run,
    stats::Spread,
};

/// Heading of the hand-written part of the page, which a run does not change.
const CAUSES: &str = "\n## Missed goals\n";
/// The results of a run.
pub struct Report {
    run: Run,
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
    /// With the run's description and the raw figures.
    pub async fn new(bench: &Bench) -> anyhow::Result<Self> {
        let run = run(&bench.ground).await?;
        println!("{}\n\nthe database alone", run.cells());
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
        Ok(Self { run, raw, measured, skipped, repeats, is_quick, is_part })
    }

    pub fn add(&mut self, measured: Vec<Measured>) {
        self.measured.extend(measured);
    }

    pub fn skip(&mut self, goal: Goal, reason: String) {
        self.skipped.push((goal, reason));
    }

    /// The table of a run of all goals, as Markdown.
    pub fn table(&self) -> String {
        let mut table = String::from(
            "| # | what | goal | measured | spread | raw anchor | | run |\n|---|---|---|---|---|---|---|---|\n",
        );
        self.measured.iter().for_each(|measured| table.push_str(&page::figures(&row(measured), 1)));
        for (goal, reason) in &self.skipped {
            let reason = reason.replace('|', "/");
            let row = format!("| {goal} | {} | | {reason} | | | not measured |", goal.what());
            table.push_str(&page::figures(&row, 1));
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
        let figures = if self.is_part { self.renewed(figures, &pictures)? } else { self.text(&pictures) };
        fs::write(page, figures + causes)?;
        println!("written: docs/performance.md and docs/performance/");
        Ok(())
    }

    fn goals(&self) -> impl Iterator<Item = Goal> {
        GOALS.into_iter().filter(|goal| self.measured.iter().any(|measured| measured.metric.goal == *goal))
    }

    /// The page of earlier runs with the rows of this run in place of the old ones, and the plots that it lacks.
    fn renewed(&self, before: &str, pictures: &str) -> anyhow::Result<String> {
        let rows = |goal: Goal| {
            let of = self.measured.iter().filter(move |measured| measured.metric.goal == goal);
            (goal.to_string(), of.map(row).collect())
        };
        let rows: Vec<_> = self.goals().map(rows).collect();
        let mut page = page::renewed(before, &self.run.cells(), &rows)
            .map_err(|missing| anyhow::anyhow!("the page lacks {missing}: measure all goals first"))?;
        let is_new = |line: &&str| line.rsplit_once("](").is_some_and(|(_, file)| !before.contains(file));
        for picture in pictures.lines().filter(is_new) {
            let last = page.rfind("\n![").context("the page has no plots")? + 1;
            let end = page[last..].find('\n').context("a line without end")? + last;
            page.insert_str(end, &format!("\n\n{picture}"));
        }
        Ok(page)
    }

    fn text(&self, pictures: &str) -> String {
        let mut raw =
            String::from("| method | events/s | server CPU time per event | run |\n|---|---|---|---|\n");
        for (what, figures) in &self.raw {
            raw.push_str(&page::figures(
                &format!("| {what} | {:.0} | {:.1} us |", figures[0], figures[1]),
                1,
            ));
        }
        let form = if self.is_quick {
            "**This is the quick run: it only shows that every measurement works. Its figures mean nothing.**\n\n"
        } else {
            ""
        };
        format!(
            "# Performance\n\nBenchmark results for each goal. {form}Each row names its run.\n\n{}\n\
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
             ## Goals\n\n{}\nA goal that was not met is marked **missed**.\n\n## Plots\n\nEach dot is a repeat, the bar is the median, grey is the \
             raw anchor,\nand the dashed line is the goal. Hollow dots are noisy repeats that do not count.\n\n{}\n",
            page::runs(&self.run.cells()),
            self.repeats,
            self.table(),
            pictures.trim_end(),
        )
    }
}

/// The row of a figure, without the cell of its run.
fn row(measured: &Measured) -> String {
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
    format!("| {} | {} | {goal} | {said} | {} | {raw} | {met} |", metric.goal, metric.what, apart(score))
}

/// A figure with its significant digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Describes this run: commit, date, command, machine.
pub async fn run(ground: &Ground) -> anyhow::Result<Run> {
    let mut connection = ground.connection().await?;
    let (postgres,): (String,) = sqlx::query_as("show server_version").fetch_one(&mut connection).await?;
    connection.close().await?;
    Run::new("bench", &postgres)
}

/// Replaces a chapter of a page, or adds it at the end. `heading` is its first line, of the second level.
pub fn replace_chapter(page: &str, heading: &str, chapter: &str) -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let page = fs::read_to_string(&path)?;
    let (before, after) = match page.split_once(heading) {
        Some((before, old)) => (before, old.split_once("\n## ").map_or("", |(_, after)| after)),
        None => (page.as_str(), ""),
    };
    let after = if after.is_empty() { String::new() } else { format!("\n## {after}") };
    fs::write(path, format!("{}\n\n{chapter}{after}", before.trim_end()))?;
    Ok(())
}
