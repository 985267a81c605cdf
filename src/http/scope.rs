//! Scopes of API keys and client tokens.

use std::collections::BTreeSet;

/// A scope that a key must have.
pub(super) trait Scope: Send + Sync + 'static {
    /// Name of the scope in a key; `*` and a prefix that ends with `*` match too.
    const NAME: &'static str;
    /// Name of the scope in a client token; `None` where client tokens are not accepted.
    const TOKEN: Option<&'static str> = None;

    /// Whether these scopes of a key suffice.
    fn is_in(scopes: &[String]) -> bool {
        allows(scopes, Self::NAME)
    }

    /// Whether these scopes of a client token suffice.
    fn is_in_token(scopes: &[String]) -> bool {
        Self::TOKEN.is_some_and(|wanted| scopes.iter().any(|held| held == wanted))
    }
}

/// Send events of a session or claim its actions; which ones depends on the other scopes. Accepts client tokens.
pub(crate) enum SendEvents {}

impl Scope for SendEvents {
    const NAME: &'static str = AnswerActions::NAME;
    const TOKEN: Option<&'static str> = AnswerActions::TOKEN;

    fn is_in(scopes: &[String]) -> bool {
        AnswerActions::is_in(scopes) || ApproveActions::is_in(scopes)
    }

    fn is_in_token(scopes: &[String]) -> bool {
        AnswerActions::is_in_token(scopes)
            || ApproveActions::is_in_token(scopes)
            || SteerSession::is_in_token(scopes)
    }
}

macro_rules! scopes {
    ($($(#[$doc:meta])* $scope:ident $name:literal $token:expr;)*) => {
        /// Returns every scope that a key can have.
        pub(crate) fn scopes() -> BTreeSet<&'static str> {
            BTreeSet::from([$($name),*])
        }
        $(
            $(#[$doc])*
            pub(crate) enum $scope {}
            impl Scope for $scope {
                const NAME: &'static str = $name;
                const TOKEN: Option<&'static str> = $token;
            }
        )*
    };
}

scopes! {
    /// Read sessions.
    ReadSessions "sessions:read" None;
    /// Create and change sessions.
    WriteSessions "sessions:write" None;
    /// Read the log of a session; accepts client tokens.
    ReadLog "sessions:read" Some("read");
    /// Send messages to a session; accepts client tokens.
    SteerSession "sessions:write" Some("steer");
    /// Claim calls of custom tools and send their results; accepts client tokens.
    AnswerActions "sessions:write" Some("answer");
    /// Confirm and reject calls, and revoke what was granted; accepts client tokens.
    ApproveActions "sessions:approve" Some("approve");
    /// Read agents.
    ReadAgents "agents:read" None;
    /// Create and change agents.
    WriteAgents "agents:write" None;
    /// Read schedules and their runs.
    ReadSchedules "schedules:read" None;
    /// Create, change and fire schedules.
    WriteSchedules "schedules:write" None;
    /// Read inbound triggers, never their secrets.
    ReadTriggers "triggers:read" None;
    /// Create and change inbound triggers.
    WriteTriggers "triggers:write" None;
    /// Read usage, budget and prices.
    ReadUsage "usage:read" None;
    /// Change spend caps.
    WriteBudget "usage:write" None;
    /// Read credentials, never their keys.
    ReadCredentials "credentials:read" None;
    /// Create and change credentials.
    WriteCredentials "credentials:write" None;
    /// Read stored files.
    ReadFiles "files:read" None;
    /// Store and delete files.
    WriteFiles "files:write" None;
    /// Read skills.
    ReadSkills "skills:read" None;
    /// Upload and delete versions of skills.
    WriteSkills "skills:write" None;
    /// Read environments, never the values of their secrets.
    ReadEnvironments "environments:read" None;
    /// Create and change environments.
    WriteEnvironments "environments:write" None;
    /// Read the organization's webhooks and their deliveries.
    ReadWebhooks "webhooks:read" None;
    /// Create and change the organization's webhooks.
    WriteWebhooks "webhooks:write" None;
    /// Read API keys, never their secrets.
    ReadKeys "keys:read" None;
    /// Create, rotate and revoke API keys.
    WriteKeys "keys:write" None;
    /// Read the audit log.
    ReadAudit "audit:read" None;
    /// Read the organization's settings.
    ReadOrganization "organization:read" None;
    /// Change the organization's settings.
    WriteOrganization "organization:write" None;
}

/// Whether a key with the scopes `scopes` has the scope `wanted`.
pub(super) fn allows(scopes: &[String], wanted: &str) -> bool {
    scopes.iter().any(|scope| {
        scope == "*"
            || scope == wanted
            || scope.strip_suffix('*').is_some_and(|prefix| wanted.starts_with(prefix))
    })
}

/// Whether a key with the scopes `held` may grant the scope `wanted` to another key.
pub(super) fn grants(held: &[String], wanted: &str) -> bool {
    let group = |scope: &str| scope.strip_suffix('*').map(str::to_owned);
    held.iter().any(|scope| {
        scope == wanted
            || group(scope).is_some_and(|held| group(wanted).as_deref().unwrap_or(wanted).starts_with(&held))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_away_only_what_it_has() {
        let held = |scopes: &[&str]| scopes.iter().map(|scope| (*scope).to_owned()).collect::<Vec<_>>();
        for (scopes, wanted) in [
            (&["*"][..], "*"),
            (&["*"], "agents:*"),
            (&["*"], "agents:read"),
            (&["agents:*"], "agents:*"),
            (&["agents:*"], "agents:write"),
            (&["keys:write", "agents:read"], "agents:read"),
        ] {
            assert!(grants(&held(scopes), wanted), "{scopes:?} {wanted}");
        }
        for (scopes, wanted) in [
            (&["agents:*"][..], "*"),
            (&["agents:read"], "agents:*"),
            (&["agents:read"], "agents:write"),
            (&["agents:*"], "sessions:read"),
            (&[], "agents:read"),
        ] {
            assert!(!grants(&held(scopes), wanted), "{scopes:?} {wanted}");
        }
    }
}
