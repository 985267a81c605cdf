//! Context windows of known models.

/// Prefix of a model's name, and its context window in tokens, or its limit of input tokens if that is smaller. A longer
/// prefix comes first.
/// Taken from the model pages of Anthropic and OpenAI; `model_options.context_tokens` of an agent overrides it.
const WINDOWS: [(&str, u64); 14] = [
    ("claude-", 200_000),
    ("gpt-5", 272_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-4-turbo", 128_000),
    ("gpt-4-0125", 128_000),
    ("gpt-4-1106", 128_000),
    ("gpt-4-vision", 128_000),
    ("gpt-4", 8_192),
    ("gpt-3.5-turbo", 16_385),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
    ("deepseek-", 128_000),
];

/// Returns the context window of a model, without its provider; `None` for an unknown one.
pub fn context_tokens(model: &str) -> Option<u64> {
    let name = model.rsplit('/').next().unwrap_or(model);
    WINDOWS.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, tokens)| *tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_of_a_name_counts() {
        assert_eq!(context_tokens("gpt-4.1-mini"), Some(1_047_576));
        assert_eq!(context_tokens("gpt-4-0613"), Some(8_192));
        assert_eq!(context_tokens("vendor/claude-sonnet-4-5"), Some(200_000));
        assert_eq!(context_tokens("inline"), None);
        for (at, (begin, _)) in WINDOWS.iter().enumerate() {
            let hidden = WINDOWS[..at].iter().find(|(earlier, _)| begin.starts_with(earlier));
            assert_eq!(hidden, None, "{begin} is never reached");
        }
    }
}
