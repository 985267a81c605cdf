//! The table of a run: printed, and with an option written to docs/reliability.md.

use std::{fmt::Write, fs, path::Path, sync::Arc, sync::atomic::Ordering::Relaxed};

use crate::{judge::Counts, load::Load, run::Run};

/// Results of one scenario.
pub struct Row {
    pub title: String,
    pub load: Arc<Load>,
    pub counts: Counts,
    /// Further measures.
    pub more: Vec<(String, String)>,
}

impl Row {
    /// Measures of the scenario, in the order of the table.
    fn measures(&self) -> Vec<(String, String)> {
        let (ledger, counts) = (&self.load.ledger, &self.counts);
        let mut rows = self.more.clone();
        let fixed = [
            ("sessions, turns, events", format!("{}, {}, {}", counts.sessions, counts.turns, counts.events)),
            ("attempts of turns beyond the first", counts.takeovers.to_string()),
            ("commands that ran", counts.commands.to_string()),
            ("accepted inputs, all in the log once", counts.inputs.to_string()),
            ("frames read from streams", ledger.frames.load(Relaxed).to_string()),
            ("streams opened again", ledger.resumes.load(Relaxed).to_string()),
            (
                "deliveries, attempts that arrived",
                format!("{}, {}", counts.deliveries, ledger.delivery_attempts.load(Relaxed)),
            ),
            ("answers, of which 503 with Retry-After", {
                format!("{}, {}", ledger.requests.load(Relaxed), ledger.unavailable.load(Relaxed))
            }),
            ("slowest answer", format!("{:.1} s", ledger.slowest().as_secs_f64())),
        ];
        rows.extend(fixed.map(|(what, value)| (what.to_owned(), value)));
        if self.load.shape.may_lose {
            let lost = [
                ("accepted sessions that are lost", ledger.lost_sessions.load(Relaxed).to_string()),
                ("accepted inputs that are lost", counts.lost_inputs.to_string()),
                ("frames that are lost, of readers that were not told", counts.lost_frames.to_string()),
                ("frames that are lost, of readers that had ended", counts.lost_frames_of_ended.to_string()),
                ("readers that were told that events are lost", ledger.told_lost.load(Relaxed).to_string()),
            ];
            rows.extend(lost.map(|(what, value)| (what.to_owned(), value)));
        }
        rows.push(("violations".to_owned(), ledger.violations().len().to_string()));
        rows
    }
}

/// The table of a run, as Markdown: one column for each scenario.
pub fn table(run: &Run, rows: &[Row]) -> String {
    let mut table = format!(
        "| commit | date | command | machine |\n|---|---|---|---|\n| {} |\n\n| measure |",
        run.cells()
    );
    for row in rows {
        write!(table, " {} |", row.title).expect("writing to a string cannot fail");
    }
    write!(table, "\n|---|{}", "---|".repeat(rows.len())).expect("writing to a string cannot fail");
    let columns: Vec<_> = rows.iter().map(Row::measures).collect();
    let mut names: Vec<String> = Vec::new();
    for (name, _) in columns.iter().flatten() {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    // The violations are the last row.
    names.sort_by_key(|name| name == "violations");
    for name in names {
        write!(table, "\n| {name} |").expect("writing to a string cannot fail");
        for column in &columns {
            let value = column.iter().find(|(other, _)| *other == name).map_or("-", |(_, value)| value);
            write!(table, " {value} |").expect("writing to a string cannot fail");
        }
    }
    table + "\n"
}

/// Replaces the table below `heading` in docs/reliability.md: everything between the two marks of `name`.
pub fn publish(name: &str, table: &str) -> anyhow::Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reliability.md");
    let text = fs::read_to_string(&file)?;
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let cut = || {
        let (before, rest) = text.split_once(&begin)?;
        let (_, after) = rest.split_once(&end)?;
        Some(format!("{before}{begin}\n{table}\n{end}{after}"))
    };
    let changed = cut().ok_or_else(|| anyhow::anyhow!("docs/reliability.md has no marks of {name}"))?;
    Ok(fs::write(file, changed)?)
}
