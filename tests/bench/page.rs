//! Tables of docs/performance.md as text: which run measured each row, and how a run of some goals replaces rows.
//!
//! The last cell of each row of figures is the number of a row in the table of runs. Also part of `tests/it`,
//! which checks these rules and the published page.

use std::collections::BTreeSet;

/// The heading of the table of runs, and the table's first lines.
pub const RUNS: &str = "## Runs\n\n";
const RUNS_HEAD: &str = "| run | commit | date | command | machine |\n|---|---|---|---|---|\n";

/// The table of runs after a run of all goals: its cells are commit, date, command and machine.
pub fn runs(cells: &str) -> String {
    format!("{RUNS}{RUNS_HEAD}{}", run(1, cells))
}

fn run(number: u32, cells: &str) -> String {
    format!("| {number} | {cells} |\n")
}

/// Replaces the rows of some goals by those of a new run.
///
/// `rows` has the new rows of each goal, without the cell of the run. Rows of a goal that the page does not have
/// yet follow the last row of the others. The new run is added to the table of runs; a run of which no row is
/// left is removed.
///
/// # Errors
/// The part that the page lacks: a row of any goal, or the table of runs.
pub fn renewed(page: &str, cells: &str, rows: &[(String, Vec<String>)]) -> Result<String, String> {
    let number = numbers(page).last().map_or(1, |last| last + 1);
    let mut text = String::new();
    let mut replaced = BTreeSet::new();
    for line in page.lines() {
        match rows.iter().find(|(goal, _)| line.starts_with(&format!("| {goal} | "))) {
            None => text.push_str(&format!("{line}\n")),
            // The first old row of a goal is replaced by all of its new rows.
            Some((goal, rows)) if replaced.insert(goal) => {
                rows.iter().for_each(|row| text.push_str(&figures(row, number)));
            }
            Some(_) => {}
        }
    }
    let added: String = rows
        .iter()
        .filter(|(goal, _)| !replaced.contains(goal))
        .flat_map(|(_, rows)| rows)
        .map(|row| figures(row, number))
        .collect();
    let last = text.rfind("\n| P").ok_or("a row of a goal")? + 1;
    let end = text[last..].find('\n').map_or(text.len(), |length| last + length + 1);
    text.insert_str(end, &added);
    let (before, table, after) = parts(&text).ok_or("the table of runs")?;
    let used: BTreeSet<_> = before.lines().chain(after.lines()).filter_map(run_of).collect();
    let mut kept: String = table
        .lines()
        .filter(|line| number_of(line).is_none_or(|number| used.contains(&number)))
        .map(|line| format!("{line}\n"))
        .collect();
    kept.push_str(&run(number, cells));
    Ok(format!("{before}{kept}{after}"))
}

/// A row of figures with the number of its run.
pub fn figures(row: &str, run: u32) -> String {
    format!("{row} {run} |\n")
}

/// Numbers of the runs of a page.
pub fn numbers(page: &str) -> BTreeSet<u32> {
    let table = parts(page).map_or("", |(_, table, _)| table);
    table.lines().filter_map(number_of).collect()
}

/// The run of a row of figures: its last cell.
pub fn run_of(line: &str) -> Option<u32> {
    line.strip_prefix("| ")?.strip_suffix(" |")?.rsplit(" | ").next()?.parse().ok()
}

/// The number of a row of the table of runs: its first cell.
fn number_of(line: &str) -> Option<u32> {
    line.strip_prefix("| ")?.split(" | ").next()?.parse().ok()
}

/// A page before its table of runs, that table, and what follows.
pub fn parts(page: &str) -> Option<(&str, &str, &str)> {
    let start = page.find(RUNS)? + RUNS.len();
    let length = page[start..].find("\n\n").map_or(page.len() - start, |end| end + 1);
    let (before, rest) = page.split_at(start);
    let (table, after) = rest.split_at(length);
    Some((before, table, after))
}
