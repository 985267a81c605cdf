//! GitHub webhook payloads of a trigger. Pure.
//!
//! The shapes follow GitHub's documentation, "Webhook events and payloads". Only the fields that a
//! session needs are read; every text is untrusted and is truncated to a bound.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::base::{
    limit::{GITHUB_FIELD_BYTES_MAX, GITHUB_TEXT_BYTES_MAX},
    text,
};

/// A GitHub event that can start a session, as in `X-GitHub-Event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = GithubEvent)]
pub enum Event {
    /// A comment on an issue, or on a pull request as a whole.
    #[default]
    IssueComment,
    /// A comment on a line of a pull request.
    PullRequestReviewComment,
    Issues,
    PullRequest,
}

/// One event in a GitHub repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GithubActivity {
    pub event: Event,
    /// Such as `created`.
    pub action: String,
    /// `owner/name`.
    pub repository: String,
    /// URL to clone the repository from.
    pub clone_url: String,
    /// Number of the issue or pull request.
    pub number: Option<u64>,
    pub title: String,
    pub url: String,
    /// Login of the user who caused the event.
    pub sender: String,
    /// Association of the author of `words` with the repository, such as `MEMBER`.
    pub association: String,
    /// Text of the comment, issue or pull request.
    pub words: String,
    /// The file and line of a comment.
    pub place: Option<String>,
    pub pull_request: Option<PullRequest>,
}

/// The pull request that an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullRequest {
    /// The branch, its newest commit and its repository. Payloads of comments on the whole pull
    /// request do not include them.
    pub head: Option<Head>,
}

/// Location of a pull request's commits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub branch: String,
    pub sha: String,
    /// Differs from the pull request's own repository if it comes from a fork.
    pub repository: String,
}

impl Event {
    /// Parses the event name of a header; `None` if triggers do not support it.
    pub fn named(name: &str) -> Option<Self> {
        serde_json::from_value(Value::String(name.to_owned())).ok()
    }

    /// Returns whether the event is about a comment.
    pub fn is_comment(self) -> bool {
        matches!(self, Self::IssueComment | Self::PullRequestReviewComment)
    }

    fn name(self) -> &'static str {
        match self {
            Self::IssueComment => "issue_comment",
            Self::PullRequestReviewComment => "pull_request_review_comment",
            Self::Issues => "issues",
            Self::PullRequest => "pull_request",
        }
    }
}

impl GithubActivity {
    /// Parses a payload; `None` if it does not have the event's shape.
    pub fn read(event: Event, payload: &Value) -> Option<Self> {
        let (subject, written) = match event {
            Event::IssueComment => ("/issue", "/comment"),
            Event::PullRequestReviewComment => ("/pull_request", "/comment"),
            Event::Issues => ("/issue", "/issue"),
            Event::PullRequest => ("/pull_request", "/pull_request"),
        };
        let (subject, written) = (payload.pointer(subject)?, payload.pointer(written)?);
        let head = subject.get("head").map(|head| Head {
            branch: field(head, "/ref"),
            sha: field(head, "/sha"),
            repository: field(head, "/repo/full_name"),
        });
        let is_pull_request = head.is_some() || subject.get("pull_request").is_some_and(Value::is_object);
        let line = written.pointer("/line").and_then(Value::as_u64);
        let place = Some(field(written, "/path")).filter(|path| !path.is_empty());
        Some(Self {
            event,
            action: required(payload, "/action")?,
            clone_url: clone_url(payload)?,
            repository: required(payload, "/repository/full_name")?,
            number: subject.get("number").and_then(Value::as_u64),
            title: field(subject, "/title"),
            url: field(written, "/html_url"),
            sender: required(payload, "/sender/login")?,
            association: field(written, "/author_association"),
            words: cut(
                written.get("body").and_then(Value::as_str).unwrap_or_default(),
                GITHUB_TEXT_BYTES_MAX,
            ),
            place: place.map(|path| line.map_or(path.clone(), |line| format!("{path}:{line}"))),
            pull_request: is_pull_request.then_some(PullRequest { head }),
        })
    }

    /// Returns the git ref of a pull request's commits.
    ///
    /// GitHub serves the ref in the target repository, also for forks.
    pub fn reference(&self) -> Option<String> {
        self.pull_request.as_ref().and(self.number).map(pull_ref)
    }

    /// Returns the newest commit of the pull request, if the payload includes it.
    pub fn head_sha(&self) -> Option<String> {
        let sha = &self.pull_request.as_ref()?.head.as_ref()?.sha;
        let is_whole = [40, 64].contains(&sha.len()) && sha.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_whole.then(|| sha.to_ascii_lowercase())
    }

    /// Returns the routing facts: a session's `metadata.github`, and `github` of its input.
    pub fn facts(&self) -> Value {
        let mut facts = Map::new();
        let mut put = |name: &str, value: Value| facts.insert(name.to_owned(), value);
        put("event", json!(self.event.name()));
        put("action", json!(self.action));
        put("repository", json!(self.repository));
        put("sender", json!(self.sender));
        put("url", json!(self.url));
        if let Some(number) = self.number {
            put("number", json!(number));
        }
        if let Some(pull_request) = &self.pull_request {
            if let Some(reference) = self.reference() {
                put("ref", json!(reference));
            }
            if let Some(Head { branch, sha, repository }) = &pull_request.head {
                put("head_branch", json!(branch));
                put("head_sha", json!(sha));
                put("head_repository", json!(repository));
            }
        }
        Value::Object(facts)
    }

    /// Returns the message for the agent.
    pub fn text(&self) -> String {
        let what = if self.pull_request.is_some() { "pull request" } else { "issue" };
        let number = self.number.map(|number| format!(" #{number}")).unwrap_or_default();
        let (repository, title, sender, url) = (&self.repository, &self.title, &self.sender, &self.url);
        let mut text = format!(
            "GitHub: {} {} on {what}{number} of {repository}, by {sender}.\n{url}\n",
            self.event.name(),
            self.action
        );
        if let Some(pull_request) = &self.pull_request {
            if let Some(number) = self.number {
                text += &format!("Fetch its commits from {repository} as {}.\n", pull_ref(number));
            }
            if let Some(Head { branch, sha, repository }) = &pull_request.head {
                text += &format!("Its head is branch {branch} of {repository}, at {sha}.\n");
            }
        }
        if let Some(place) = &self.place {
            text += &format!("The comment is on {place}.\n");
        }
        // The text is untrusted; the agent must see where it begins.
        text + &format!("\nUntrusted text, written on GitHub:\n\nTitle: {title}\n\n{}\n", self.words)
    }
}

/// The ref under which GitHub stores a pull request's commits, fork or not.
fn pull_ref(number: u64) -> String {
    format!("refs/pull/{number}/head")
}

/// GitHub Enterprise payloads contain the clone URL; the fallback is github.com.
fn clone_url(payload: &Value) -> Option<String> {
    let told = required(payload, "/repository/clone_url");
    told.or_else(|| Some(format!("https://github.com/{}", required(payload, "/repository/full_name")?)))
}

fn required(value: &Value, pointer: &str) -> Option<String> {
    Some(field(value, pointer)).filter(|text| !text.is_empty())
}

fn field(value: &Value, pointer: &str) -> String {
    cut(value.pointer(pointer).and_then(Value::as_str).unwrap_or_default(), GITHUB_FIELD_BYTES_MAX)
}

/// Truncates, and replaces U+0000, which metadata cannot store.
fn cut(text: &str, bytes_max: usize) -> String {
    text::truncate(&text.replace('\0', "\u{fffd}"), bytes_max).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_on_a_pull_request_tells_where_its_commits_are() {
        let payload = json!({
            "action": "created",
            "issue": { "number": 12, "title": "Fix it", "pull_request": { "url": "x" }, "author_association": "NONE" },
            "comment": { "body": "@bot look", "html_url": "https://github.com/a/b/pull/12#c", "author_association": "MEMBER" },
            "repository": { "full_name": "a/b" }, "sender": { "login": "octocat" },
        });
        let happening = GithubActivity::read(Event::IssueComment, &payload).expect("a happening");
        assert_eq!((happening.association.as_str(), happening.words.as_str()), ("MEMBER", "@bot look"));
        assert_eq!(happening.facts()["ref"], "refs/pull/12/head");
        assert_eq!(happening.facts().get("head_sha"), None);
        let text = happening.text();
        assert!(
            text.contains("pull request #12 of a/b, by octocat") && text.ends_with("@bot look\n"),
            "{text}"
        );
    }

    #[test]
    fn a_pull_request_of_a_fork_names_both_repositories() {
        let payload = json!({
            "action": "opened",
            "pull_request": {
                "number": 3, "title": "New", "body": null, "html_url": "u", "author_association": "NONE",
                "head": { "ref": "next", "sha": "abc", "repo": { "full_name": "fork/b" } },
            },
            "repository": { "full_name": "a/b" }, "sender": { "login": "octocat" },
        });
        let facts = GithubActivity::read(Event::PullRequest, &payload).expect("a happening").facts();
        assert_eq!((&facts["repository"], &facts["head_repository"]), (&json!("a/b"), &json!("fork/b")));
        assert_eq!(
            (&facts["head_branch"], &facts["head_sha"], &facts["number"]),
            (&json!("next"), &json!("abc"), &json!(3))
        );
        // A fork that was deleted later has no repository.
        let mut gone = payload.clone();
        gone["pull_request"]["head"]["repo"] = Value::Null;
        assert_eq!(
            GithubActivity::read(Event::PullRequest, &gone).expect("one").facts()["head_repository"],
            ""
        );
    }

    #[test]
    fn what_has_another_shape_is_nothing() {
        assert_eq!(GithubActivity::read(Event::Issues, &json!({ "action": "opened" })), None);
        assert_eq!(GithubActivity::read(Event::Issues, &json!([])), None);
        assert_eq!(Event::named("push"), None);
        assert_eq!(Event::named("pull_request_review_comment"), Some(Event::PullRequestReviewComment));
    }

    #[test]
    fn no_text_is_longer_than_its_bound() {
        let long = "é\0".repeat(GITHUB_TEXT_BYTES_MAX);
        let payload = json!({
            "action": "opened", "issue": { "number": 1, "title": long, "body": long, "author_association": long },
            "repository": { "full_name": "a/b" }, "sender": { "login": "octocat" },
        });
        let happening = GithubActivity::read(Event::Issues, &payload).expect("a happening");
        assert!(happening.title.len() <= GITHUB_FIELD_BYTES_MAX && !happening.title.contains('\0'));
        assert!(happening.words.len() <= GITHUB_TEXT_BYTES_MAX);
    }
}
