//! A repository on the command line: `URL[#REF]` or `OWNER/NAME[#REF]`.

use serde_json::{Value, json};

/// Parses a source into its API form.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let (place, reference) = match text.split_once('#') {
        Some((place, reference)) => (place, Some(reference)),
        None => (text, None),
    };
    if place.is_empty() || reference == Some("") {
        return Err("expected URL[#REF] or OWNER/NAME[#REF]".to_owned());
    }
    let field = if place.contains("://") { "url" } else { "repo" };
    let mut source = json!({ field: place });
    if let Some(reference) = reference {
        source["ref"] = reference.into();
    }
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_a_repository_and_perhaps_a_branch() {
        assert_eq!(parse("https://a.example/b/c").unwrap(), json!({ "url": "https://a.example/b/c" }));
        assert_eq!(parse("acme/app#next").unwrap(), json!({ "repo": "acme/app", "ref": "next" }));
        assert_eq!(
            parse("file:///srv/app#refs/pull/7/head").unwrap(),
            json!({ "url": "file:///srv/app", "ref": "refs/pull/7/head" })
        );
        assert!(parse("#next").is_err() && parse("acme/app#").is_err());
    }
}
