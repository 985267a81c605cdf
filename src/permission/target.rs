//! Targets of a call: what its rules are compared with.

use globset::{GlobBuilder, GlobMatcher};
use url::Url;

use super::command_line::{self, NotUnderstood, SimpleCommand};
use crate::{
    base::{braces::expand_braces, limit::GRANTABLE_MAX},
    domain::{
        network::{HostPattern, canonical},
        permission::{Policy, Rule},
        tool::ToolCall,
    },
};

/// What a call acts on. A call has one, a command line one for each command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    Command(SimpleCommand),
    /// A command line that is not understood: it may run anything.
    AnyCommand,
    /// An absolute path without `.` and `..`. Links are not resolved.
    Path(String),
    /// Such a path with all that is below it.
    Tree(String),
    /// Paths that are known only when the call runs.
    AnyPath,
    /// A host; `None` if the URL has none.
    Host(Option<String>),
    /// Nothing that a rule can name.
    Call,
}

/// Whether a rule is for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    No,
    /// It cannot be told before the call runs.
    Maybe,
    Yes,
}

impl Target {
    /// Returns the targets of a call.
    pub(super) fn of(call: &ToolCall, cwd: &str) -> Vec<Self> {
        let text = |name: &str| call.input.get(name).and_then(|value| value.as_str());
        match call.tool.as_str() {
            "bash" => match command_line::cut(text("command").unwrap_or_default()) {
                Ok(commands) if commands.is_empty() => vec![Self::Command(SimpleCommand::default())],
                Ok(commands) => commands.into_iter().map(Self::Command).collect(),
                Err(NotUnderstood) => vec![Self::AnyCommand],
            },
            "read" | "write" | "edit" => vec![Self::Path(absolute(cwd, text("path").unwrap_or_default()))],
            "grep" => vec![Self::Tree(absolute(cwd, text("path").unwrap_or_default()))],
            "glob" if leaves(text("pattern").unwrap_or_default()) => vec![Self::AnyPath],
            "glob" => vec![Self::Tree(absolute(cwd, text("path").unwrap_or_default()))],
            "web_fetch" => {
                let url = text("url").and_then(|url| Url::parse(url).ok());
                let host = url.and_then(|url| canonical(url.host_str()?).ok());
                vec![Self::Host(host)]
            }
            _ => vec![Self::Call],
        }
    }

    /// Compares with a rule of the tool.
    pub(super) fn matches(&self, rule: &Rule) -> Match {
        match self {
            Self::Command(command) => match &rule.prefix {
                None => Match::Yes,
                Some(prefix) => of_prefix(command, prefix, rule.policy),
            },
            Self::AnyCommand => {
                if rule.prefix.is_none() {
                    Match::Yes
                } else {
                    Match::Maybe
                }
            }
            Self::Path(path) => match rule.path.as_deref().map(glob) {
                None => Match::Yes,
                Some(Ok(glob)) if glob.is_match(path) => Match::Yes,
                Some(_) => Match::No,
            },
            Self::Tree(path) => {
                rule.path.as_deref().map_or(Match::Yes, |pattern| of_tree(path, pattern, rule.policy))
            }
            Self::AnyPath if rule.path.is_none() => Match::Yes,
            Self::AnyPath => Match::Maybe,
            Self::Host(host) => match (rule.host.as_deref().map(HostPattern::parse), host) {
                (None, _) => Match::Yes,
                (Some(_), None) => Match::Maybe,
                (Some(Ok(pattern)), Some(host)) if pattern.matches(host) => Match::Yes,
                (Some(_), Some(_)) => Match::No,
            },
            Self::Call => Match::Yes,
        }
    }
}

/// Compares the first words of a command. A rule that allows needs all of them as they are, in a command that does
/// nothing else. One that asks or denies is for whatever may be this command.
fn of_prefix(command: &SimpleCommand, prefix: &str, policy: Policy) -> Match {
    let base = |path: &str| path.rsplit('/').next().map(str::to_owned);
    let mut words = command.words.iter();
    for (index, wanted) in prefix.split_whitespace().enumerate() {
        match words.next() {
            Some(Some(word)) if word == wanted => {}
            // The same program by another path is only the same for a rule that is strict.
            Some(Some(word)) if index == 0 && policy != Policy::Allow && base(word) == base(wanted) => {}
            // It may be no word, or several.
            Some(None) => return Match::Maybe,
            Some(Some(_)) | None => return if command.is_wrapper() { Match::Maybe } else { Match::No },
        }
    }
    if policy == Policy::Allow && !command.is_plain() { Match::Maybe } else { Match::Yes }
}

/// A name of a file that no rule has.
const ANY_NAME: &str = "\u{1}any file\u{1}";

/// Compares all that is below a directory. A rule that allows needs to allow all of it; one that asks or denies is for
/// whatever may be below it.
fn of_tree(path: &str, pattern: &str, policy: Policy) -> Match {
    let Ok(matcher) = glob(pattern) else { return Match::No };
    let below = format!("{}/", path.trim_end_matches('/'));
    if matcher.is_match(path) || matcher.is_match(format!("{below}{ANY_NAME}")) {
        // Else it may match one file of a directory.
        let is_whole = pattern.ends_with("/**") || policy >= Policy::Ask;
        return if is_whole { Match::Yes } else { Match::Maybe };
    }
    let literal = pattern.split(['*', '?', '[', '{', '\\']).next().unwrap_or_default();
    let directory = literal.rsplit_once('/').map_or("", |(directory, _)| directory);
    let directory = format!("{directory}/");
    if directory.starts_with(&below) || below.starts_with(&directory) { Match::Maybe } else { Match::No }
}

/// Returns whether a pattern may match outside of the directory that it is applied to, as bash expands it.
fn leaves(pattern: &str) -> bool {
    let is_up = |part: &str| part == ".." || (part.starts_with('.') && part.contains(['*', '?', '[']));
    let Some(patterns) = expand_braces(pattern) else { return true };
    patterns.iter().any(|one| one.starts_with('/') || one.contains('\\') || one.split('/').any(is_up))
}

/// Returns the rules that allow these targets, each one of them; none if one cannot be allowed by a rule.
pub(super) fn grantable(targets: &[&Target], tool: &str) -> Vec<Rule> {
    let rule = |prefix, path, host| Rule {
        tool: tool.to_owned(),
        prefix,
        path,
        host,
        policy: Policy::Allow,
        expires_seconds: None,
    };
    let mut rules = Vec::new();
    for target in targets {
        let allowing = match target {
            Target::Command(command) => {
                let Some(prefix) = prefix_of(command) else { return Vec::new() };
                vec![rule(Some(prefix), None, None)]
            }
            Target::Path(path) => {
                let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
                let below = format!("{}/**", globset::escape(directory));
                vec![rule(None, Some(globset::escape(path)), None), rule(None, Some(below), None)]
            }
            Target::Tree(path) => {
                let below = format!("{}/**", globset::escape(path.trim_end_matches('/')));
                vec![rule(None, Some(below), None)]
            }
            Target::Host(Some(host)) => vec![rule(None, None, Some(host.clone()))],
            Target::AnyCommand | Target::AnyPath | Target::Host(None) => return Vec::new(),
            Target::Call => vec![rule(None, None, None)],
        };
        let allowing: Vec<_> = allowing.into_iter().filter(|rule| text_problem(rule).is_none()).collect();
        if allowing.is_empty() {
            return Vec::new();
        }
        for rule in allowing {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    if rules.len() > GRANTABLE_MAX { Vec::new() } else { rules }
}

/// Programs that run what their arguments say.
const INTERPRETERS: [&str; 13] =
    ["awk", "bash", "bun", "deno", "gawk", "lua", "node", "perl", "php", "python", "python3", "ruby", "sh"];
/// Programs whose subcommands differ in what they do.
const WITH_SUBCOMMANDS: [&str; 12] =
    ["aws", "cargo", "docker", "gcloud", "gh", "git", "go", "kubectl", "npm", "pip", "pnpm", "systemctl"];

/// Returns why the text of a rule cannot match as its writer expects, if it cannot: the field, and words for the caller.
pub(super) fn text_problem(rule: &Rule) -> Option<(&'static str, String)> {
    if let Some(path) = &rule.path {
        return path_problem(path).map(|words| ("path", words));
    }
    let prefix = rule.prefix.as_deref()?;
    let is_syntax = |next: char| ";&|<>()$`\"'\\*?{}".contains(next) || (next.is_control() && next != '\t');
    let has_syntax = prefix.contains(is_syntax);
    has_syntax
        .then(|| ("prefix", "is words of one command, without quotes and other syntax of a shell".to_owned()))
}

/// Returns why a pattern of paths matches none, if it does.
fn path_problem(pattern: &str) -> Option<String> {
    let is_normal = |part: &str| !["", ".", ".."].contains(&part);
    if pattern.chars().any(char::is_control) {
        return Some("must not have control characters".to_owned());
    }
    if pattern != "/" && pattern.starts_with('/') && !pattern[1..].split('/').all(is_normal) {
        return Some(
            "must not have empty parts, `.` and `..`, and not end with `/`: no path has them".to_owned(),
        );
    }
    glob(pattern).err()
}

/// Returns the name of a command with its subcommand, such as `git push`, if a rule can allow it.
fn prefix_of(command: &SimpleCommand) -> Option<String> {
    if !command.is_plain() {
        return None;
    }
    let is_word = |word: &&str| !word.is_empty() && !word.contains(char::is_whitespace);
    let name = command.words.first()?.as_deref().filter(is_word)?;
    let is_subcommand = |word: &&str| {
        let mut bytes = word.bytes();
        bytes.next().is_some_and(|first| first.is_ascii_lowercase())
            && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    let subcommand = command.words.get(1).and_then(|word| word.as_deref()).filter(is_subcommand);
    // Their name alone would allow everything.
    let base = name.rsplit('/').next().unwrap_or_default();
    if INTERPRETERS.contains(&base) || (subcommand.is_none() && WITH_SUBCOMMANDS.contains(&base)) {
        return None;
    }
    Some(subcommand.map_or_else(|| name.to_owned(), |subcommand| format!("{name} {subcommand}")))
}

/// Max depth of braces in a pattern of paths.
const GLOB_BRACES_DEPTH_MAX: usize = 8;

/// Compiles a pattern of paths. `*` does not match `/`, `**` does.
pub(super) fn glob(pattern: &str) -> Result<GlobMatcher, String> {
    if !pattern.starts_with('/') {
        return Err("must be absolute".to_owned());
    }
    let deepest = pattern.chars().scan(0_usize, |depth, next| {
        *depth = match next {
            '{' => *depth + 1,
            '}' => depth.saturating_sub(1),
            _ => *depth,
        };
        Some(*depth)
    });
    // Deeper ones are beyond the library.
    if deepest.max().unwrap_or_default() > GLOB_BRACES_DEPTH_MAX {
        return Err(format!("has braces within more than {GLOB_BRACES_DEPTH_MAX} others"));
    }
    let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| error.kind().to_string())
}

/// Returns an absolute path without `.`, `..` and empty parts.
fn absolute(cwd: &str, path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{cwd}/{path}") };
    let mut parts = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}
