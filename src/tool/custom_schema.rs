//! Rules of the schemas of custom tools: their form, their size, and the cost of their patterns.

use std::collections::HashMap;

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::{Map, Value, json};

use crate::base::{
    limit::{
        TOOL_ERROR_BYTES_MAX, TOOL_PATTERN_BYTES_MAX, TOOL_PATTERNS_BYTES_MAX, TOOL_SCHEMA_BYTES_MAX,
        TOOL_SCHEMA_DEPTH_MAX, TOOL_SCHEMA_NODES_MAX,
    },
    text,
};

/// The only dialect of a schema.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Keywords that Anthropic and OpenAI refuse at the top level of the schema of a tool.
const NOT_AT_TOP: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Steps in which the compiled size of a pattern is measured, in bytes.
const PATTERN_SIZES: [usize; 5] = [8 << 10, 32 << 10, 128 << 10, 512 << 10, TOOL_PATTERN_BYTES_MAX];
/// Cache of the states of one pattern while it is matched, in bytes.
const PATTERN_CACHE_BYTES_MAX: usize = 64 << 10;

/// Returns the number of parts of a schema with its references.
///
/// # Errors
/// Words for the caller: it has too many, is too deep, or refers to itself.
pub(super) fn parts(schema: &Value) -> Result<usize, String> {
    let mut walk = Walk { root: schema, nodes: 0, checker: None };
    walk.follow(schema, Place::Schema, 0)?;
    Ok(walk.nodes)
}

/// Compiles a checked schema. Patterns are matched in linear time.
///
/// # Errors
/// Words for the caller: the schema is not valid.
pub(super) fn compile(schema: &Value) -> Result<Validator, String> {
    build(schema, TOOL_PATTERN_BYTES_MAX)
        .map_err(|error| text::truncate(&error.to_string(), TOOL_ERROR_BYTES_MAX).to_owned())
}

fn build(
    schema: &Value,
    pattern_bytes_max: usize,
) -> Result<Validator, Box<jsonschema::ValidationError<'static>>> {
    let patterns =
        PatternOptions::regex().size_limit(pattern_bytes_max).dfa_size_limit(PATTERN_CACHE_BYTES_MAX);
    let options = jsonschema::options().with_draft(Draft::Draft202012).with_pattern_options(patterns);
    options.build(schema).map_err(Box::new)
}

/// Checks the schemas of the tools of one agent, whose patterns share one bound.
#[derive(Default)]
pub(super) struct Checker {
    /// Compiled size of each pattern.
    patterns: HashMap<String, usize>,
    patterns_bytes: usize,
}

impl Checker {
    /// Checks a schema.
    ///
    /// # Errors
    /// Words for the caller: it is no JSON Schema of 2020-12, refers to another document or to itself, is too large,
    /// or its patterns are.
    pub(super) fn check(&mut self, schema: &Map<String, Value>) -> Result<(), String> {
        let root = Value::Object(schema.clone());
        let bytes = root.to_string().len();
        if bytes > TOOL_SCHEMA_BYTES_MAX {
            return Err(format!("has {bytes} bytes of JSON; at most {TOOL_SCHEMA_BYTES_MAX} are accepted"));
        }
        if schema.get("$schema").is_some_and(|dialect| dialect.as_str() != Some(DIALECT)) {
            return Err(format!("`$schema` must be {DIALECT}"));
        }
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            return Err("must have `type`: `object`, because a model gives an object".to_owned());
        }
        if let Some(keyword) = NOT_AT_TOP.iter().find(|keyword| schema.contains_key(**keyword)) {
            return Err(format!(
                "has `{keyword}` at its top level, which model providers refuse; put it into a property"
            ));
        }
        Walk { root: &root, nodes: 0, checker: Some(self) }.follow(&root, Place::Schema, 0)?;
        jsonschema::draft202012::meta::validate(&root)
            .map_err(|error| format!("is not a JSON Schema of 2020-12: {error}"))?;
        compile(&root).map(drop).map_err(|words| format!("cannot be used: {words}"))
    }

    /// Adds the compiled size of a pattern.
    fn add_pattern(&mut self, pattern: &str) -> Result<(), String> {
        let bytes = match self.patterns.get(pattern) {
            Some(bytes) => *bytes,
            None => *self.patterns.entry(pattern.to_owned()).or_insert(compiled_size(pattern)?),
        };
        self.patterns_bytes += bytes;
        if self.patterns_bytes > TOOL_PATTERNS_BYTES_MAX {
            return Err(format!(
                "has too large patterns: those of all tools may have {TOOL_PATTERNS_BYTES_MAX} bytes when compiled. \
                 Replace repetitions such as `.{{1,255}}` by `maxLength`"
            ));
        }
        Ok(())
    }
}

/// Returns an upper bound of the size of a compiled pattern, in bytes.
fn compiled_size(pattern: &str) -> Result<usize, String> {
    let schema = json!({ "pattern": pattern });
    PATTERN_SIZES.into_iter().find(|bytes| build(&schema, *bytes).is_ok()).ok_or_else(|| {
        let begin = text::truncate(pattern, TOOL_ERROR_BYTES_MAX);
        format!(
            "has a pattern that cannot be used: `{begin}` is no regular expression, looks around or back, or has more \
             than {TOOL_PATTERN_BYTES_MAX} bytes when compiled"
        )
    })
}

/// Meaning of a value in a schema.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// A schema, or a list of them: its fields are keywords.
    Schema,
    /// Names with their schemas.
    Names,
    /// Data, without keywords.
    Data,
}

/// Follows a schema with its references, which makes it finite and small, or refuses it.
struct Walk<'a> {
    root: &'a Value,
    nodes: usize,
    /// Checks the patterns, if it is there.
    checker: Option<&'a mut Checker>,
}

impl Walk<'_> {
    fn follow(&mut self, at: &Value, place: Place, depth: usize) -> Result<(), String> {
        self.nodes += 1;
        if depth > TOOL_SCHEMA_DEPTH_MAX {
            return Err(format!("is deeper than {TOOL_SCHEMA_DEPTH_MAX} levels, or refers to itself"));
        }
        if self.nodes > TOOL_SCHEMA_NODES_MAX {
            return Err(format!("has more than {TOOL_SCHEMA_NODES_MAX} parts with its references"));
        }
        match at {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let place = match place {
                        Place::Schema => self.keyword(name, value, depth)?,
                        Place::Names => Place::Schema,
                        Place::Data => Place::Data,
                    };
                    self.follow(value, place, depth + 1)?;
                }
                Ok(())
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.follow(item, place, depth + 1)),
            _ => Ok(()),
        }
    }

    fn add_pattern(&mut self, pattern: &str) -> Result<(), String> {
        self.checker.as_mut().map_or(Ok(()), |checker| checker.add_pattern(pattern))
    }

    /// Checks a keyword; returns the meaning of its value.
    fn keyword(&mut self, name: &str, value: &Value, depth: usize) -> Result<Place, String> {
        match (name, value) {
            ("$dynamicRef" | "$dynamicAnchor" | "$anchor" | "$id", _) => {
                return Err(format!("`{name}` is not accepted"));
            }
            ("$ref", Value::String(reference)) => {
                let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
                let target = target.ok_or_else(|| {
                    format!("`$ref` {reference} is not in the schema; others are not followed")
                })?;
                self.follow(target, Place::Schema, depth + 1)?;
            }
            ("pattern", Value::String(pattern)) => self.add_pattern(pattern)?,
            ("patternProperties", Value::Object(patterns)) => {
                patterns.keys().try_for_each(|pattern| self.add_pattern(pattern))?;
            }
            _ => {}
        }
        Ok(match name {
            "properties" | "patternProperties" | "dependentSchemas" | "$defs" | "definitions" => Place::Names,
            "const" | "enum" | "default" | "examples" => Place::Data,
            _ => Place::Schema,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schemas: &[Value]) -> Result<(), String> {
        let mut checker = Checker::default();
        schemas.iter().try_for_each(|schema| checker.check(schema.as_object().expect("an object")))
    }

    fn with_patterns(patterns: impl Iterator<Item = String>) -> Value {
        let properties: Map<_, _> = patterns
            .enumerate()
            .map(|(at, pattern)| (format!("p{at}"), json!({"type": "string", "pattern": pattern})))
            .collect();
        json!({"type": "object", "properties": properties})
    }

    #[test]
    fn patterns_of_all_tools_share_a_bound() {
        let usual = with_patterns(
            [
                "^[a-z0-9]{1,64}$",
                r"^[^\s@]+@[^\s@]+\.[^\s@]+$",
                r"^\p{L}{1,20}$",
                "^.{1,255}$",
                r"^\d{4}-\d\d-\d\d$",
            ]
            .into_iter()
            .map(str::to_owned),
        );
        assert_eq!(check(&[usual]), Ok(()));
        // Each compiles to about 60 KiB.
        let many = |from: usize, number: usize| {
            with_patterns((from..from + number).map(|at| format!(r"^\p{{L}}{at}$")))
        };
        assert_eq!(check(&[many(0, 20)]), Ok(()));
        assert!(check(&[many(0, 100)]).expect_err("too many").contains("too large patterns"));
        assert!(check(&[many(0, 20), many(20, 20)]).expect_err("too many").contains("too large patterns"));
        let keys = json!({"type": "object", "patternProperties": {r"^\p{L}{200}$": {}}});
        assert!(check(&[keys]).expect_err("too large").contains("when compiled"));
        // A definition counts each time it is used.
        let used = |times: usize| {
            let uses: Vec<_> = (0..times).map(|_| json!({"$ref": "#/$defs/word"})).collect();
            let all = json!({"all": {"allOf": uses}});
            json!({"type": "object", "$defs": {"word": {"pattern": r"^\p{L}{1,10}$"}}, "properties": all})
        };
        assert_eq!(check(&[used(2)]), Ok(()));
        assert!(check(&[used(20)]).expect_err("too large").contains("too large patterns"));
    }

    #[test]
    fn what_providers_refuse_is_refused() {
        for keyword in NOT_AT_TOP {
            let words = check(&[json!({"type": "object", keyword: [{}]})]).expect_err(keyword);
            assert!(words.starts_with(&format!("has `{keyword}` at its top level")), "{words}");
        }
    }

    #[test]
    fn keywords_count_only_where_they_are_keywords() {
        for data in ["const", "default"] {
            assert_eq!(
                check(&[json!({"type": "object", data: {"$ref": "x", "$id": "y", "pattern": "("}})]),
                Ok(())
            );
        }
        let named =
            json!({"type": "object", "properties": {"$id": {"type": "string"}, "pattern": {"const": 1}}});
        assert_eq!(check(&[named]), Ok(()));
        for keyword in ["$id", "$anchor", "$dynamicAnchor"] {
            for definitions in [json!({"a": {keyword: "x"}}), json!({"a": {"$defs": {"b": {keyword: "x"}}}})]
            {
                let words = check(&[json!({"type": "object", "$defs": definitions})]).expect_err(keyword);
                assert_eq!(words, format!("`{keyword}` is not accepted"));
            }
        }
    }
}
