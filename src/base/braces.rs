//! Brace expansion of patterns, as in the Bash Reference Manual, 3.5.1, without sequences.

use super::limit::GLOB_PATTERNS_MAX;

/// Expands the braces of a pattern; `None` if there are too many results.
pub fn expand_braces(pattern: &str) -> Option<Vec<String>> {
    let (mut open, mut whole) = (vec![pattern.to_owned()], Vec::new());
    while let Some(next) = open.pop() {
        match first_braces(&next) {
            None => whole.push(next),
            Some((before, choices, after)) => {
                // Pushed in reverse, so that they are popped in order.
                open.extend(choices.iter().rev().map(|choice| format!("{before}{choice}{after}")));
            }
        }
        if open.len() + whole.len() > GLOB_PATTERNS_MAX {
            return None;
        }
    }
    Some(whole)
}

/// Returns the text before, the choices within, and the text after the first braces.
fn first_braces(pattern: &str) -> Option<(&str, Vec<&str>, &str)> {
    for (start, _) in pattern.match_indices('{') {
        let (mut depth, mut choice, mut choices) = (0, start + 1, Vec::new());
        for (at, character) in pattern.char_indices().skip_while(|(at, _)| *at < start) {
            match character {
                '{' => depth += 1,
                ',' if depth == 1 => {
                    choices.push(&pattern[choice..at]);
                    choice = at + 1;
                }
                '}' if depth == 1 => {
                    choices.push(&pattern[choice..at]);
                    if choices.len() > 1 {
                        return Some((&pattern[..start], choices, &pattern[at + 1..]));
                    }
                    break;
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_unfolded_as_bash_does() {
        let all = |pattern: &str| expand_braces(pattern).expect("few patterns").join(" ");
        assert_eq!(all("src/**/*.{ts,tsx}"), "src/**/*.ts src/**/*.tsx");
        assert_eq!(all("{a,b{c,d}}.x"), "a.x bc.x bd.x");
        assert_eq!(all("{a,b}/{1,2}"), "a/1 a/2 b/1 b/2");
        for plain in ["*.rs", "{a}", "{", "a{b", "}", "ä{"] {
            assert_eq!(all(plain), plain);
        }
        assert_eq!(expand_braces(&"{a,b}".repeat(12)), None);
    }
}
