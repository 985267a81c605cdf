//! Input of commands: files, secrets, and the bodies of requests.

use std::{
    fs,
    io::{IsTerminal, Read, stdin},
    path::Path,
};

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::{Map, Value};

/// Reads a text file; `-` is standard input.
pub(super) fn text(file: &Path) -> anyhow::Result<String> {
    if file != Path::new("-") {
        return fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()));
    }
    let mut text = String::new();
    stdin().read_to_string(&mut text).context("standard input cannot be read")?;
    Ok(text)
}

/// Reads a JSON file; `-` is standard input.
pub(super) fn json(file: &Path) -> anyhow::Result<Value> {
    serde_json::from_str(&text(file)?).with_context(|| format!("{} is not JSON", file.display()))
}

/// Reads a secret from standard input, because other users could see it on a command line.
pub(super) fn secret(what: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    if stdin().is_terminal() {
        eprintln!("Enter the {what} (it is echoed; use a pipe to hide it):");
        stdin().read_line(&mut text).context("standard input cannot be read")?;
    } else {
        text = self::text(Path::new("-"))?;
    }
    match text.trim() {
        "" => bail!("standard input contains no {what}"),
        secret => Ok(secret.to_owned()),
    }
}

/// Builds a request body of `named` and `fields`, without those that were not given.
pub(super) fn body(named: Value, fields: &impl Serialize) -> anyhow::Result<Value> {
    let mut body = serde_json::to_value(fields)?;
    if let (Value::Object(body), Value::Object(named)) = (&mut body, named) {
        body.extend(named);
    }
    Ok(given(body))
}

/// Removes the fields of an object that were not given: null and empty ones.
pub(super) fn given(body: Value) -> Value {
    filled(body).unwrap_or_else(|| Map::new().into())
}

fn filled(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) => (!items.is_empty()).then_some(Value::Array(items)),
        Value::Object(fields) => {
            let fields = fields.into_iter().filter_map(|(name, value)| Some((name, filled(value)?)));
            let fields: Map<_, _> = fields.collect();
            (!fields.is_empty()).then(|| fields.into())
        }
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_has_only_the_fields_that_were_given() {
        let fields = json!({ "title": null, "limits": { "turns": null }, "tools": [], "enabled": false });
        assert_eq!(body(json!({ "name": "a" }), &fields).unwrap(), json!({ "name": "a", "enabled": false }));
        assert_eq!(given(json!({ "title": null })), json!({}));
    }
}
