//! Inbound triggers: rules for which messages start a session. Pure.
//!
//! Called by `http`, which has verified the signature. The content of a message is untrusted: the
//! session's actor and origin are derived from the trigger and its kind.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    github::{Event, GithubActivity},
    session::Source,
    source::Repository,
};

/// Sender of a trigger's messages, and its authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TriggerKind)]
pub enum Kind {
    /// Any sender, with a Standard Webhooks signature.
    Generic,
    /// GitHub, with `X-Hub-Signature-256`.
    Github,
}

/// GitHub events that start a session: a mention, or one of `react`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// A user name without `@`; a new comment that mentions it starts a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mention: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub react: Vec<React>,
    pub authors: Authors,
    /// Checkout of the event's repository for the session; the repository is not cloned when
    /// absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Checkout>,
}

/// Checkout of the repository that an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = TriggerSource)]
pub struct Checkout {
    /// Name of the source; the repository's name when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Id or name of a credential. The organization's default credential for this repository, or none,
    /// when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
}

impl Checkout {
    /// Returns the source of a session that an event starts: the head of a pull request, else the
    /// default branch of the repository.
    pub fn source(&self, happening: &GithubActivity) -> Repository {
        Repository {
            url: Some(happening.clone_url.clone()),
            repo: None,
            reference: happening.reference(),
            sha: happening.head_sha(),
            name: self.name.clone(),
            path: self.path.clone(),
            depth: self.depth,
            credential: self.credential.clone(),
        }
    }
}

/// A GitHub event, with the actions that start a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TriggerReact)]
pub struct React {
    pub event: Event,
    /// Such as `opened`.
    pub actions: Vec<String>,
}

/// Authors whose events start a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TriggerAuthors)]
pub enum Authors {
    /// Owners, members and collaborators of the repository.
    #[default]
    Members,
    /// Everyone; on a public repository, anyone with a GitHub account.
    Anyone,
}

/// Reason why an authentic message starts no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TriggerIgnored)]
pub enum Ignored {
    /// GitHub's ping after the webhook was configured.
    Ping,
    /// An event that triggers do not support.
    Event,
    /// Neither a mention nor one of `react`.
    Filter,
    /// The author is not a member, and `authors` requires one.
    Author,
    /// The mentioned user is the sender; ignored so that an agent cannot wake itself in a loop.
    Own,
}

impl Filter {
    /// Returns the invalid field of a filter and a message for the caller.
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        let is_name = |name: &str| {
            (1..=39).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let is_action = |action: &String| {
            (1..=64).contains(&action.len())
                && action.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        if self.mention.as_deref().is_some_and(|name| !is_name(name)) {
            return Some(("mention", "must be a GitHub user name without `@`"));
        }
        if !self.react.iter().all(|react| !react.actions.is_empty() && react.actions.iter().all(is_action)) {
            return Some(("react", "must list at least one action per event, such as `opened`"));
        }
        if self.mention.is_none() && self.react.is_empty() {
            return Some(("mention", "set `mention` or `react`; otherwise the trigger starts no session"));
        }
        None
    }

    /// Returns the origin of the session that an event starts, or why it starts none.
    pub fn check(&self, happening: &GithubActivity) -> Result<Source, Ignored> {
        if self.mention.as_deref().is_some_and(|name| is_by(name, &happening.sender)) {
            return Err(Ignored::Own);
        }
        let is_new_comment = happening.event.is_comment() && happening.action == "created";
        let mentions = self.mention.as_deref().filter(|_| is_new_comment);
        let source = if mentions.is_some_and(|name| names(&happening.words, name)) {
            Source::Mention
        } else if self
            .react
            .iter()
            .any(|react| react.event == happening.event && react.actions.contains(&happening.action))
        {
            Source::React
        } else {
            return Err(Ignored::Filter);
        };
        let is_member = matches!(happening.association.as_str(), "OWNER" | "MEMBER" | "COLLABORATOR");
        if self.authors == Authors::Members && !is_member {
            return Err(Ignored::Author);
        }
        Ok(source)
    }
}

/// Returns whether the sender is the user, or the app of that name.
fn is_by(name: &str, sender: &str) -> bool {
    sender.strip_suffix("[bot]").unwrap_or(sender).eq_ignore_ascii_case(name)
}

/// Returns whether a text mentions `@name`, not a longer name that begins with it.
fn names(text: &str, name: &str) -> bool {
    let (text, wanted) = (text.to_ascii_lowercase(), format!("@{}", name.to_ascii_lowercase()));
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.match_indices(&wanted).any(|(at, _)| {
        let bytes = text.as_bytes();
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        let after = bytes.get(at + wanted.len());
        // `a@name` is an email address, `@name/team` a team.
        !before.is_some_and(|byte| is_of_name(byte) || *byte == b'.')
            && !after.is_some_and(|byte| is_of_name(byte) || *byte == b'/')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happening(event: Event, action: &str, words: &str) -> GithubActivity {
        GithubActivity {
            event,
            action: action.to_owned(),
            words: words.to_owned(),
            sender: "octocat".to_owned(),
            association: "MEMBER".to_owned(),
            ..GithubActivity::default()
        }
    }

    #[test]
    fn a_name_is_mentioned_whole_or_not_at_all() {
        for text in ["@bot", "Please, @Bot!", "(@bot)", "a\n@bot: look", "@bot's turn", "@bots @bot."] {
            assert!(names(text, "bot"), "{text}");
        }
        for text in ["bot", "@bots", "@bot-2", "me@bot", "x.@bot", "@bot/team", "@robot", ""] {
            assert!(!names(text, "bot"), "{text}");
        }
    }

    #[test]
    fn only_what_the_filter_names_starts_a_session() {
        let filter = Filter {
            mention: Some("bot".to_owned()),
            react: vec![React { event: Event::Issues, actions: vec!["opened".to_owned()] }],
            authors: Authors::Members,
            source: None,
        };
        assert_eq!(filter.problem(), None);
        let check = |event, action, words| filter.check(&happening(event, action, words));
        assert_eq!(check(Event::IssueComment, "created", "@bot look"), Ok(Source::Mention));
        assert_eq!(check(Event::PullRequestReviewComment, "created", "@bot look"), Ok(Source::Mention));
        assert_eq!(check(Event::IssueComment, "edited", "@bot look"), Err(Ignored::Filter));
        assert_eq!(check(Event::IssueComment, "created", "look"), Err(Ignored::Filter));
        assert_eq!(check(Event::Issues, "opened", "words"), Ok(Source::React));
        assert_eq!(check(Event::Issues, "closed", "@bot"), Err(Ignored::Filter));
        assert_eq!(check(Event::PullRequest, "opened", "words"), Err(Ignored::Filter));
        for sender in ["bot", "BOT", "bot[bot]"] {
            let own = GithubActivity { sender: sender.to_owned(), ..happening(Event::Issues, "opened", "") };
            assert_eq!(filter.check(&own), Err(Ignored::Own), "{sender}");
        }
        for association in ["NONE", "CONTRIBUTOR", "FIRST_TIME_CONTRIBUTOR", ""] {
            let stranger = GithubActivity {
                association: association.to_owned(),
                ..happening(Event::IssueComment, "created", "@bot look")
            };
            assert_eq!(filter.check(&stranger), Err(Ignored::Author), "{association}");
            let open = Filter { authors: Authors::Anyone, ..filter.clone() };
            assert_eq!(open.check(&stranger), Ok(Source::Mention), "{association}");
        }
    }

    #[test]
    fn a_filter_that_starts_nothing_is_refused() {
        let mention = |name: &str| Filter { mention: Some(name.to_owned()), ..Filter::default() };
        for name in ["@bot", "", "a b", &"a".repeat(40), "a/b"] {
            assert_eq!(mention(name).problem().map(|(field, _)| field), Some("mention"), "{name}");
        }
        assert_eq!(Filter::default().problem().map(|(field, _)| field), Some("mention"));
        for actions in [vec![], vec!["Opened".to_owned()], vec![String::new()]] {
            let react = vec![React { event: Event::Issues, actions }];
            let filter = Filter { react, ..Filter::default() };
            assert_eq!(filter.problem().map(|(field, _)| field), Some("react"));
        }
    }
}
