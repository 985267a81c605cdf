//! The house held in order: invariants that are about the sources themselves.
//!
//! Each test reads the tree and names every place that breaks its rule, with its
//! line. A rule with exceptions lists them as data, each with its reason.

mod rooms;
mod shape;
mod source;
mod words;

use source::Source;

/// Fails with every place that breaks a rule.
fn hold(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

/// The sources whose path begins with one of `places`.
fn within<'a>(sources: &'a [Source], places: &'a [&str]) -> impl Iterator<Item = &'a Source> {
    sources.iter().filter(|source| places.iter().any(|place| source.path.starts_with(place)))
}

/// The sources whose path begins with none of `places`.
fn outside<'a>(sources: &'a [Source], places: &'a [&str]) -> impl Iterator<Item = &'a Source> {
    sources.iter().filter(|source| !places.iter().any(|place| source.path.starts_with(place)))
}
