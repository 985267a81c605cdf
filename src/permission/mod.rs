//! Evaluates the calls of an agent by the rules of its session.
//!
//! Called by `turn` for each call of a model, and by `http` for rules that a caller sends. Of a command line,
//! each simple command is evaluated. This keeps an agent from what it should not do unasked; it is no wall: a command may do
//! what its words do not say, and only the sandbox bounds it.

mod command_line;
mod read_only;
mod target;

use serde_json::{Value, json};

use crate::{
    base::{limit::ACTION_EXPIRES_SECONDS, seal::sha256, text::hex},
    domain::{
        mcp::MCP_PREFIX,
        permission::{Grant, Permissions, Policy, PolicyDecision, Rule},
        tool::{Replay, ToolCall, ToolSpec},
    },
};
use target::{Match, Target};

/// The rules of a session, with what was granted in it.
pub struct Evaluator<'a> {
    pub permissions: &'a Permissions,
    pub grants: &'a [Grant],
    /// Directory that paths are relative to.
    pub cwd: &'a str,
}

impl Evaluator<'_> {
    /// Evaluates a call whose arguments fit its tool.
    pub fn evaluate(&self, call: &ToolCall, tool: impl Into<RuledTool>) -> PolicyDecision {
        let (name, tool) = (call.tool.as_str(), tool.into());
        let targets = Target::of(call, self.cwd);
        let mut strictest = PolicyDecision::default();
        let (mut asked, mut can_grant) = (Vec::new(), true);
        for target in &targets {
            let Decided { mut policy, rule, may_be_denied } = self.by_lists(target, name, tool.replay);
            let is_granted = |grant: &&Grant| {
                grant.schema_hash == tool.schema_hash
                    && grant.rule.is_of(name)
                    && target.matches(&grant.rule) == Match::Yes
            };
            if policy == Policy::Ask && !may_be_denied && self.grants.iter().any(|grant| is_granted(&grant)) {
                policy = Policy::Allow;
            }
            if policy == Policy::Ask {
                can_grant &= !may_be_denied;
                asked.push(target);
            }
            if policy > strictest.policy || strictest.rule.is_none() {
                let expires = rule.and_then(|rule| rule.expires_seconds).unwrap_or(ACTION_EXPIRES_SECONDS.1);
                strictest = PolicyDecision {
                    policy,
                    rule: rule.cloned(),
                    expires_seconds: expires,
                    ..PolicyDecision::default()
                };
            }
        }
        if strictest.policy == Policy::Ask && can_grant {
            strictest.always = target::grantable(&asked, name);
        }
        strictest
    }

    /// Returns the strictest decision of all lists, and the rule that made it.
    fn by_lists(&self, target: &Target, name: &str, replay: Replay) -> Decided<'_> {
        // What a server does is not known here, unlike what a tool of the service does.
        let unruled = if name.starts_with(MCP_PREFIX) { Policy::Ask } else { Policy::Allow };
        let mut strictest = Decided { policy: unruled, rule: None, may_be_denied: false };
        for rules in self.permissions.lists() {
            let Some(decided) = rules.iter().rev().find_map(|rule| decision(rule, target, name, replay))
            else {
                continue;
            };
            strictest.may_be_denied |= decided.may_be_denied;
            if decided.policy > strictest.policy || strictest.rule.is_none() {
                strictest = Decided { may_be_denied: strictest.may_be_denied, ..decided };
            }
        }
        strictest
    }
}

/// What rules and grants depend on of a tool, beside its name.
pub struct RuledTool {
    pub replay: Replay,
    /// Hash of its schema, which a grant is bound to.
    pub schema_hash: String,
}

impl From<&ToolSpec> for RuledTool {
    fn from(spec: &ToolSpec) -> Self {
        Self { replay: spec.replay, schema_hash: schema_hash(spec) }
    }
}

impl RuledTool {
    /// A tool of an MCP server: what is granted for one server does not hold for another.
    pub fn of_server(spec: &ToolSpec, server_hash: &str) -> Self {
        let schema_hash = hash(&json!({ "schema": spec.input_schema, "server": server_hash }));
        Self { replay: spec.replay, schema_hash }
    }
}

/// Decision of rules on a target.
struct Decided<'a> {
    policy: Policy,
    rule: Option<&'a Rule>,
    /// Whether it asks because the target may be one that is denied: no grant allows that.
    may_be_denied: bool,
}

/// Returns what a rule says of a target; `None` if it does not match.
fn decision<'a>(rule: &'a Rule, target: &Target, name: &str, replay: Replay) -> Option<Decided<'a>> {
    if !rule.is_of(name) {
        return None;
    }
    let matched = target.matches(rule);
    let policy = match (matched, rule.policy) {
        (Match::No, _) | (Match::Maybe, Policy::Allow) => return None,
        (Match::Yes, Policy::Auto) if read_only::is_read_only(target, replay) => Policy::Allow,
        // Somebody must look at what may be forbidden.
        (Match::Yes, Policy::Auto) | (Match::Maybe, Policy::Auto | Policy::Ask | Policy::Deny) => Policy::Ask,
        (Match::Yes, policy) => policy,
    };
    let may_be_denied = (matched, rule.policy) == (Match::Maybe, Policy::Deny);
    Some(Decided { policy, rule: Some(rule), may_be_denied })
}

/// Returns the first problem of a list of rules: its index, the field, and words for the caller. `tools` are those of
/// the service.
pub fn problem(rules: &[Rule], tools: &[String]) -> Option<(usize, &'static str, String)> {
    rules.iter().enumerate().find_map(|(index, rule)| {
        let (field, words) = rule.problem(tools).or_else(|| target::text_problem(rule))?;
        Some((index, field, words))
    })
}

/// Returns the hash that binds a confirmation to a call: SHA-256 of the canonical JSON (RFC 8785) of tool, schema,
/// arguments, and the directory that paths in them are relative to.
pub fn args_hash(call: &ToolCall, spec: &ToolSpec, cwd: &str) -> String {
    hash(&json!({ "cwd": cwd, "input": call.input, "schema": schema_hash(spec), "tool": call.tool }))
}

/// Returns the SHA-256 of the canonical JSON (RFC 8785) of a tool's schema.
pub fn schema_hash(spec: &ToolSpec) -> String {
    hash(&spec.input_schema)
}

fn hash(value: &Value) -> String {
    // What cannot be canonical, such as a number beyond a double, is hashed as it is.
    let canonical =
        serde_json_canonicalizer::to_vec(value).unwrap_or_else(|_| value.to_string().into_bytes());
    format!("sha256:{}", hex(&sha256(&canonical)))
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::domain::ids::EventId;

    fn rules(value: Value) -> Vec<Rule> {
        serde_json::from_value(value).expect("rules")
    }

    fn spec(tool: &str) -> ToolSpec {
        let replay = if ["read", "grep"].contains(&tool) { Replay::ReadOnly } else { Replay::Unsafe };
        ToolSpec { name: tool.to_owned(), description: String::new(), input_schema: json!({}), replay }
    }

    fn call(tool: &str, argument: &str) -> ToolCall {
        let name = match tool {
            "bash" => "command",
            "web_fetch" => "url",
            "glob" => "pattern",
            _ => "path",
        };
        let input = Value::Object(Map::from_iter([(name.to_owned(), json!(argument))]));
        ToolCall { call_id: "c".to_owned(), tool: tool.to_owned(), input }
    }

    fn policy(permissions: &Permissions, grants: &[Grant], tool: &str, argument: &str) -> Policy {
        let evaluator = Evaluator { permissions, grants, cwd: "/workspace" };
        evaluator.evaluate(&call(tool, argument), &spec(tool)).policy
    }

    #[test]
    fn the_last_rule_of_a_list_and_the_strictest_list_decide() {
        use Policy::{Allow, Ask, Deny};
        let agent = rules(json!([
            { "tool": "bash", "policy": "ask" },
            { "tool": "bash", "prefix": "git", "policy": "allow" },
            { "tool": "bash", "prefix": "git push", "policy": "deny" },
            { "tool": "write", "policy": "deny" },
            { "tool": "write", "path": "/workspace/**", "policy": "allow" },
            { "tool": "web_fetch", "policy": "auto" },
            { "tool": "web_fetch", "host": "*.example.com", "policy": "deny" },
            { "tool": "gr*", "policy": "auto" },
            { "tool": "glob", "policy": "ask" },
            { "tool": "glob", "path": "/workspace/**", "policy": "allow" },
        ]));
        let permissions = Permissions { agent, ..Permissions::default() };
        for (tool, argument, expected) in [
            ("bash", "git status", Allow),
            ("bash", "git push", Deny),
            ("bash", "git status; git push", Deny),
            ("bash", "git status && ls", Ask),
            ("bash", "git status > x", Ask),
            ("bash", "X=1 git status", Ask),
            ("bash", "/usr/bin/git push", Deny),
            ("bash", "git $X", Ask),
            ("bash", "sh -c 'git push'", Ask),
            ("bash", "case x in x) git push;; esac", Ask),
            ("write", "a/../b.txt", Allow),
            ("write", "../etc/passwd", Deny),
            ("write", "/workspace/../etc/passwd", Deny),
            ("web_fetch", "https://a.example.com/", Deny),
            ("web_fetch", "https://example.org/", Ask),
            ("web_fetch", "nonsense", Ask),
            ("read", "/etc/passwd", Allow),
            ("grep", "/", Allow),
            ("glob", "*.rs", Allow),
            ("glob", "{src,tests}/**/*.{rs,md}", Allow),
            ("glob", "/etc/*", Ask),
            ("glob", "../*", Ask),
            ("glob", "{.,}./*", Ask),
            ("glob", ".*/x", Ask),
            ("glob", "a/.\\./x", Ask),
        ] {
            assert_eq!(policy(&permissions, &[], tool, argument), expected, "{tool} {argument}");
        }
        let session =
            rules(json!([{ "tool": "bash", "policy": "allow" }, { "tool": "read", "policy": "ask" }]));
        let stricter = Permissions { session, ..permissions.clone() };
        assert_eq!(policy(&stricter, &[], "bash", "ls"), Ask, "a session cannot widen");
        assert_eq!(policy(&stricter, &[], "read", "x"), Ask);
        let child = Permissions { parents: permissions.for_children(), ..Permissions::default() };
        assert_eq!(policy(&child, &[], "bash", "git push"), Deny);
    }

    #[test]
    fn a_search_is_for_all_that_is_below_its_directory() {
        let of = |rules: Value, path: &str| {
            let agent = serde_json::from_value(rules).expect("rules");
            policy(&Permissions { agent, ..Permissions::default() }, &[], "grep", path)
        };
        let denied = || json!([{ "tool": "grep", "path": "/etc/**", "policy": "deny" }]);
        for (path, expected) in [
            ("/etc", Policy::Deny),
            ("/etc/ssl", Policy::Deny),
            ("/", Policy::Ask),
            ("/workspace", Policy::Allow),
            ("/etcetera", Policy::Allow),
            ("/workspace/../etc", Policy::Deny),
        ] {
            assert_eq!(of(denied(), path), expected, "{path}");
        }
        let allowed = || {
            json!([
                { "tool": "grep", "policy": "ask" }, { "tool": "grep", "path": "/workspace/src/**", "policy": "allow" },
                { "tool": "grep", "path": "/workspace/*.md", "policy": "allow" },
            ])
        };
        for (path, expected) in [
            ("src", Policy::Allow),
            ("src/a", Policy::Allow),
            (".", Policy::Ask),
            ("x.md", Policy::Ask),
            ("srcs", Policy::Ask),
        ] {
            assert_eq!(of(allowed(), path), expected, "{path}");
        }
    }

    #[test]
    fn auto_lets_pass_what_only_reads() {
        let agent = rules(json!([{ "tool": "*", "policy": "auto" }]));
        let permissions = Permissions { agent, ..Permissions::default() };
        for line in ["ls -la | head -3 && git status", "find . -name '*.rs'", "grep -C 3 x y", "cat a b"] {
            assert_eq!(policy(&permissions, &[], "bash", line), Policy::Allow, "{line}");
        }
        for line in [
            "rm x",
            "ls > x",
            "find . -delete",
            "git log --output=x",
            "git push",
            "rg --pre sh x",
            "cat $X",
            "env",
            "X=1 ls",
            "git -c a=b status",
            "ls; rm x",
            "((1))",
            "",
        ] {
            assert_eq!(policy(&permissions, &[], "bash", line), Policy::Ask, "{line}");
        }
    }

    #[test]
    fn auto_with_a_prefix_asks_for_what_may_be_the_command() {
        let agent = rules(json!([{ "tool": "bash", "prefix": "git", "policy": "auto" }]));
        let permissions = Permissions { agent, ..Permissions::default() };
        for (line, expected) in [
            ("git status", Policy::Allow),
            ("git push", Policy::Ask),
            ("git push > /dev/null", Policy::Ask),
            ("git push 2>&1", Policy::Ask),
            ("X=1 git push", Policy::Ask),
            ("/usr/bin/git push", Policy::Ask),
            ("$X push", Policy::Ask),
            ("command git push", Policy::Ask),
            ("case x in x) git push;; esac", Policy::Ask),
            ("ls", Policy::Allow),
        ] {
            assert_eq!(policy(&permissions, &[], "bash", line), expected, "{line}");
        }
    }

    #[test]
    fn rules_that_match_nothing_are_refused() {
        let of = |rule: Value| {
            problem(&rules(json!([rule])), &["bash".to_owned(), "write".to_owned()]).map(|found| found.1)
        };
        let path = |path: &str| of(json!({ "tool": "write", "path": path, "policy": "deny" }));
        let prefix = |prefix: &str| of(json!({ "tool": "bash", "prefix": prefix, "policy": "deny" }));
        for bad in [
            "/a//b",
            "/a/./b",
            "/a/../b",
            "/a/",
            "a",
            "/a\u{0}",
            &format!("/{}b{}", "{a,".repeat(200), "}".repeat(200)),
        ] {
            assert_eq!(path(bad), Some("path"), "{bad:.20}");
        }
        for good in ["/", "/a/**", "/**", "/a/{b,c{d,e}}/*.md", "/a/..b/.c"] {
            assert_eq!(path(good), None, "{good}");
        }
        for bad in ["git push; rm", "\"git push\"", "git *", "$X", "git\npush"] {
            assert_eq!(prefix(bad), Some("prefix"), "{bad}");
        }
        for good in ["git push --force", "./deploy.sh", "npm run build:all", "["] {
            assert_eq!(prefix(good), None, "{good}");
        }
    }

    #[test]
    fn a_strict_prefix_is_for_the_program_by_any_path() {
        let agent = rules(json!([{ "tool": "bash", "prefix": "./deploy.sh", "policy": "deny" }]));
        let permissions = Permissions { agent, ..Permissions::default() };
        for line in ["./deploy.sh", ".//deploy.sh", "/workspace/deploy.sh", "deploy.sh"] {
            assert_eq!(policy(&permissions, &[], "bash", line), Policy::Deny, "{line}");
        }
    }

    #[test]
    fn a_grant_allows_what_asks_and_nothing_that_is_denied() {
        let agent = rules(json!([
            { "tool": "bash", "policy": "ask" }, { "tool": "bash", "prefix": "git push --force", "policy": "deny" },
        ]));
        let permissions = Permissions { agent, ..Permissions::default() };
        let grant = |rule: &Rule, schema_hash: String| Grant {
            rule: rule.clone(),
            schema_hash,
            confirmation_event_id: EventId::from_uuid(uuid::Uuid::nil()),
        };
        let evaluator = Evaluator { permissions: &permissions, grants: &[], cwd: "/" };
        let decision = evaluator.evaluate(&call("bash", "git push origin; npm run x"), &spec("bash"));
        let prefixes: Vec<_> =
            decision.always.iter().map(|rule| rule.prefix.clone().expect("a prefix")).collect();
        assert_eq!(
            (decision.policy, prefixes),
            (Policy::Ask, vec!["git push".to_owned(), "npm run".to_owned()])
        );
        for unknown in
            ["git push > x", "$X", "sudo ls", "((", "bash build.sh", "python3 -c x", "git -C x push"]
        {
            assert!(evaluator.evaluate(&call("bash", unknown), &spec("bash")).always.is_empty(), "{unknown}");
        }
        let granted = grant(&decision.always[0], schema_hash(&spec("bash")));
        let granted_policy =
            |grant: &Grant, line: &str| policy(&permissions, std::slice::from_ref(grant), "bash", line);
        assert_eq!(granted_policy(&granted, "git push origin"), Policy::Allow);
        assert_eq!(granted_policy(&granted, "git push --force"), Policy::Deny);
        assert_eq!(granted_policy(&granted, "git push; rm x"), Policy::Ask);
        // What may be denied asks each time, and offers nothing.
        for line in ["git push $X", "git {push,--force}", "git $X push --force", "/bin/git push \"$@\""] {
            assert_eq!(granted_policy(&granted, line), Policy::Ask, "{line}");
            assert!(evaluator.evaluate(&call("bash", line), &spec("bash")).always.is_empty(), "{line}");
        }
        let old = Grant { schema_hash: "sha256:0".to_owned(), ..granted };
        assert_eq!(granted_policy(&old, "git push origin"), Policy::Ask);
    }

    #[test]
    fn a_hash_binds_tool_schema_and_arguments() {
        let hash = |input: &str, schema: &str| {
            let input = serde_json::from_str(input).expect("JSON");
            let call = ToolCall { input, ..call("bash", "") };
            let input_schema = serde_json::from_str(schema).expect("JSON");
            args_hash(&call, &ToolSpec { input_schema, ..spec("bash") }, "/")
        };
        assert_eq!(hash(r#"{"a": 1, "b": 1.0}"#, "{}"), hash(r#"{"b": 1, "a": 1}"#, "{}"));
        assert_ne!(hash(r#"{"a": 1}"#, "{}"), hash(r#"{"a": 2}"#, "{}"));
        assert_ne!(hash(r#"{"a": 1}"#, "{}"), hash(r#"{"a": 1}"#, r#"{"type": "object"}"#));
    }
}
