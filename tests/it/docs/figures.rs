//! The pages of figures: each figure names the commit, the date and the command of its run.

#[path = "../../bench/page.rs"]
mod page;

use std::collections::BTreeSet;

use crate::support::pages::text;

const CELLS: &str = "`aaa` | 2026-01-01 | `cargo test` | 2 cores";

/// A page of a run of three goals.
fn first() -> String {
    let row = |row: &str| page::figures(row, 1);
    let rows = [
        row("| P1 | appends | at least 1 /s | 2 /s | met |"),
        row("| P1 | appends of ten |  | 4 /s |  |"),
        row("| P2 | time |  | 3 us |  |"),
    ];
    let (runs, rows) = (page::runs(CELLS), rows.concat());
    format!("# Performance\n\n{runs}\n## Goals\n\n| # | what | run |\n|---|---|---|\n{rows}\nThe end.\n")
}

#[test]
fn a_run_of_some_goals_replaces_their_rows_and_adds_itself() {
    let new = "`bbb` | 2026-02-02 | `cargo test -- p1` | 4 cores";
    let rows = [("P1".to_owned(), vec!["| P1 | appends |  | 9 /s |  |".to_owned()])];
    let page = page::renewed(&first(), new, &rows).expect("a page");
    assert!(page.contains("| P1 | appends |  | 9 /s |  | 2 |\n| P2 | time |  | 3 us |  | 1 |\n"), "{page}");
    assert!(!page.contains("appends of ten") && page.ends_with("\nThe end.\n"), "{page}");
    assert!(page.contains(&format!("| 1 | {CELLS} |\n| 2 | {new} |\n\n## Goals")), "{page}");
    // The first run is removed with its last row.
    let rows = [("P2".to_owned(), vec!["| P2 | time |  | 5 us |  |".to_owned()])];
    let page =
        page::renewed(&page, "`ccc` | 2026-03-03 | `cargo test -- p2` | 4 cores", &rows).expect("a page");
    assert_eq!(page::numbers(&page).into_iter().collect::<Vec<_>>(), [2, 3], "{page}");
    // A goal that was never measured follows the others.
    let rows = [("P9".to_owned(), vec!["| P9 | memory |  | 7 MB |  |".to_owned()])];
    let page = page::renewed(&page, new, &rows).expect("a page");
    assert!(page.contains("| P2 | time |  | 5 us |  | 3 |\n| P9 | memory |  | 7 MB |  | 4 |\n"), "{page}");
    assert_eq!(page::renewed("# Performance\n", new, &rows).expect_err("no rows"), "a row of a goal");
}

#[test]
fn every_row_of_the_performance_page_names_its_run() {
    let page = text("docs/performance.md");
    let runs = page::numbers(&page);
    assert!(!runs.is_empty(), "docs/performance.md has no table of runs");
    let mut used = BTreeSet::new();
    for heading in ["## Raw database throughput\n", "## Goals\n"] {
        let section =
            page.split_once(heading).expect("a section").1.split("\n## ").next().unwrap_or_default();
        for row in section.lines().filter(|line| line.starts_with("| ")).skip(1) {
            let run = page::run_of(row).filter(|run| runs.contains(run));
            used.insert(run.unwrap_or_else(|| panic!("docs/performance.md: a row without its run: {row}")));
        }
    }
    assert_eq!(used, runs, "runs without a row");
}

/// Figures that were recorded before commits were written down name the commit that published them.
#[test]
fn every_table_of_figures_names_commit_date_and_command() {
    let pages = [
        ("docs/reliability.md", ""),
        ("docs/sandboxes.md", "Resource use"),
        ("docs/isolation.md", "Conformance suite"),
    ];
    for (file, heading) in pages {
        let page = text(file);
        let sections = page.split("\n## ").filter(|section| section.starts_with(heading));
        // The table of the failure matrix has no figures.
        let sections = sections.filter(|section| !section.starts_with("Failure matrix"));
        let measured: Vec<_> = sections.filter(|section| section.contains("\n| ")).collect();
        assert!(!measured.is_empty(), "{file}");
        for section in measured {
            let title = section.lines().next().unwrap_or_default();
            let dates = section.split(|one: char| !one.is_ascii_digit() && one != '-');
            let is_dated = dates.into_iter().any(|word| word.len() == 10 && word.starts_with("20"));
            let is_told = section.contains("commit") && section.contains('`') && is_dated;
            assert!(is_told, "{file}: {title} names no commit, date and command");
        }
    }
}
