//! Output formatting: events as lines, lists as tables.

use std::io::{Write, stdout};

use serde_json::Value;

use super::client::Client;
use crate::base::text;

/// Maximum length of an event's text in bytes.
const LINE_BYTES: usize = 160;

/// Prints a line to standard output; exits with 0 when the reader has closed the pipe.
pub(super) fn line(line: &str) {
    if writeln!(stdout(), "{line}").is_err() {
        std::process::exit(0);
    }
}

/// Prints a response as indented JSON.
pub(super) fn document(value: &Value) {
    line(&serde_json::to_string_pretty(value).unwrap_or_default());
}

/// Formats an event as one line.
pub(super) fn event(event: &Value) -> String {
    let body = &event["body"];
    let word = |name: &str| body[name].as_str().unwrap_or_default();
    let said = match event["type"].as_str().unwrap_or_default() {
        "user.message" | "agent.message" | "agent.thinking" => word("text").to_owned(),
        "tool.call" => format!("{} {}", word("tool"), word("args_summary")),
        "exec.completed" => format!("exit {} in {} ms", body["exit_code"], body["duration_ms"]),
        "tool.result" if body["is_error"] == true => format!("failed: {}", word("output")),
        "turn.completed" => match body["error"]["message"].as_str() {
            Some(message) => format!("{}: {message}", word("yield_reason")),
            None => word("yield_reason").to_owned(),
        },
        "sandbox.created" => format!("in {} ms", body["duration_ms"]),
        "limit.exceeded" => format!("{}: {} of {}", word("limit"), body["used"], body["allowed"]),
        _ => String::new(),
    };
    let said = plain(&said);
    let kind = event["type"].as_str().unwrap_or_default();
    format!("{:>4}  {kind:<18} {}", event["seq"].to_string(), text::truncate(&said, LINE_BYTES))
        .trim_end()
        .to_owned()
}

/// A table column: its heading and the field of a row that it shows.
pub(super) type Column = (&'static str, &'static str);

/// Formats a value as a cell: text unchanged, lists comma-separated.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Formats micro-USD as dollars with 4 decimals.
pub(super) fn dollars(micros: &Value) -> String {
    match micros.as_i64() {
        Some(micros) => format!(
            "{}${}.{:04}",
            if micros < 0 { "-" } else { "" },
            micros.abs() / 1_000_000,
            micros.abs() % 1_000_000 / 100
        ),
        None => "unknown".to_owned(),
    }
}

/// Prints the response as JSON, or only its most relevant value.
pub(super) fn answer(answer: &Value, json: bool, short: &str) {
    if json { document(answer) } else { line(short) }
}

/// Prints the response as JSON, or only one of its fields.
pub(super) fn field(response: &Value, json: bool, name: &str) {
    answer(response, json, &cell(&response[name]));
}

/// Reads a whole list, page by page.
pub(super) async fn all(client: &Client, path: &str) -> anyhow::Result<Vec<Value>> {
    let mut data = Vec::new();
    let (mark, mut cursor) = (if path.contains('?') { '&' } else { '?' }, String::new());
    loop {
        let page = client.get(&format!("{path}{mark}limit=500{cursor}")).await?;
        data.extend(page["data"].as_array().cloned().unwrap_or_default());
        match page["next_cursor"].as_str() {
            // Cursors contain only characters that need no escaping in a query.
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(data),
        }
    }
}

/// Reads and prints a whole list: as one document, or one table.
pub(super) async fn page(client: &Client, path: &str, columns: &[Column], json: bool) -> anyhow::Result<()> {
    rows(all(client, path).await?, columns, json);
    Ok(())
}

/// Prints a list: as one document, or one table.
pub(super) fn rows(data: Vec<Value>, columns: &[Column], json: bool) {
    if json {
        return document(&serde_json::json!({ "data": data }));
    }
    let heading: Vec<_> = columns.iter().map(|(heading, _)| *heading).collect();
    let cells = |row: &Value| columns.iter().map(|(_, field)| cell(&row[*field])).collect();
    table(&heading, &data.iter().map(cells).collect::<Vec<_>>());
}

/// Replaces control characters: text from an organization or an agent must not control the terminal.
pub(super) fn plain(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Prints rows under a heading, with columns as wide as their widest cell.
pub(super) fn table(heading: &[&str], rows: &[Vec<String>]) {
    let widths: Vec<usize> = (0..heading.len())
        .map(|column| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .chain([heading[column].len()])
                .max()
                .unwrap_or(0)
        })
        .collect();
    let print = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<_> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        line(plain(&padded.join("  ")).trim_end());
    };
    print(&mut heading.iter().copied());
    for row in rows {
        print(&mut row.iter().map(String::as_str));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn money_has_its_sign_and_four_places() {
        for (micros, text) in
            [(json!(1_234_567), "$1.2345"), (json!(-500), "-$0.0005"), (json!(null), "unknown")]
        {
            assert_eq!(dollars(&micros), text);
        }
    }

    #[test]
    fn foreign_text_cannot_control_the_terminal() {
        let hostile =
            json!({ "type": "agent.message", "seq": 1, "body": { "text": "\u{1b}[2Jgone\rx\u{9b}1m\n" } });
        assert!(!event(&hostile).contains(char::is_control), "{:?}", event(&hostile));
        assert_eq!(cell(&json!(["a", 1, null])), "a,1,");
    }
}
