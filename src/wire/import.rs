//! Bounds of the events of an imported session: those of the requests and servers that such events come from.
//!
//! Called by `http` with the events that `domain::transcript` has read. What one response has as a whole (the tools
//! of a session, its granted rules, the output and the error of a turn) is as bounded as in a session that ran here.

use std::collections::BTreeSet;

use garde::Validate;
use serde_json::Value;

use super::{context::ToolInput, metadata::small_object};
use crate::{
    base::limit::{
        EVENT_BODY_BYTES_MAX, GITHUB_FIELD_BYTES_MAX, GRANTS_MAX, MCP_DESCRIPTION_BYTES_MAX,
        MCP_LIST_BYTES_MAX, MCP_NAME_BYTES_MAX, MCP_TOOLS_MAX, NAME_BYTES_MAX, OUTPUT_BYTES_MAX,
        RULE_TEXT_BYTES_MAX, TOOLS_MAX,
    },
    domain::{
        Event, EventId,
        event::{Body, Draft, TurnCompleted},
        mcp::{McpListed, McpTool},
        permission::Rule,
        registry::Tool,
        transcript::ImportError,
    },
};

/// Words for the caller, if an event is beyond a bound.
type Checked = Result<(), String>;

/// Checks each event of a log, and what all of them leave in the session.
///
/// # Errors
/// The line of the first event that no session of this service has.
pub(crate) fn check_log(log: &[Event]) -> Result<(), ImportError> {
    let mut state = State::default();
    // The first event is in the second line.
    (2..).zip(log).try_for_each(|(line, event)| {
        let checked = check_event(&event.draft).and_then(|()| state.take(event));
        checked.map_err(|reason| ImportError { line, reason })
    })
}

/// State of a session after the events so far, as far as it is bounded here.
#[derive(Default)]
struct State<'a> {
    /// Names of the registered tools. None is ever removed.
    tools: BTreeSet<&'a str>,
    /// Events of the rules that are granted.
    grants: BTreeSet<EventId>,
}

impl<'a> State<'a> {
    fn take(&mut self, event: &'a Event) -> Checked {
        match &event.draft.body {
            Body::ToolRegistered(tool) => {
                self.tools.insert(&tool.name);
                at_most("registered tools", self.tools.len(), TOOLS_MAX)
            }
            Body::PermissionGranted(_) => {
                self.grants.insert(event.draft.id);
                at_most("granted rules", self.grants.len(), GRANTS_MAX)
            }
            Body::PermissionRevoked { grant_event_id } => {
                self.grants.remove(grant_event_id);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn check_event(draft: &Draft) -> Checked {
    // The longest is the name of a GitHub user.
    check_text("actor.id", draft.actor.id.as_deref(), GITHUB_FIELD_BYTES_MAX)?;
    check_text("actor.display", draft.actor.display.as_deref(), GITHUB_FIELD_BYTES_MAX)?;
    small_object(&draft.refs, &()).map_err(|error| format!("`refs` {error}"))?;
    match &draft.body {
        Body::ToolRegistered(tool) => check_tool(tool),
        Body::McpListed(listed) => check_list(listed),
        Body::McpFailed(failed) => check_text("server", Some(&failed.server), MCP_NAME_BYTES_MAX),
        Body::PermissionGranted(grant) => check_rule(&grant.rule),
        Body::AgentMessage { output, .. } => check_output(output.as_ref()),
        Body::TurnCompleted(completed) => check_end(completed),
        Body::SessionStopped { reason } => check_text("reason", reason.as_deref(), NAME_BYTES_MAX),
        _ => Ok(()),
    }
}

/// Checks a registered tool as the request that registers one.
fn check_tool(tool: &Tool) -> Checked {
    ToolInput::from(tool.clone()).validate().map_err(|report| {
        let problem = report.into_inner().into_iter().next();
        problem.map_or_else(|| "is no tool".to_owned(), |(path, error)| format!("`{path}` {error}"))
    })
}

/// Checks a list of tools as one that an MCP server sends.
fn check_list(listed: &McpListed) -> Checked {
    check_text("server", Some(&listed.server), MCP_NAME_BYTES_MAX)?;
    check_text("protocol_version", Some(&listed.protocol_version), NAME_BYTES_MAX)?;
    check_text("hash", Some(&listed.hash), NAME_BYTES_MAX)?;
    at_most("tools of a server", listed.tools.len(), MCP_TOOLS_MAX)?;
    for tool in &listed.tools {
        check_text("tools.name", Some(&tool.name), NAME_BYTES_MAX)?;
        check_text("tools.tool", Some(&tool.tool), NAME_BYTES_MAX)?;
        check_text("tools.description", Some(&tool.description), MCP_DESCRIPTION_BYTES_MAX)?;
    }
    at_most("bytes of the tools of a server", listed.tools.iter().map(sent_bytes).sum(), MCP_LIST_BYTES_MAX)
}

/// Bytes that a server sends for a tool, at least: the name for the model is not among them.
fn sent_bytes(tool: &McpTool) -> usize {
    json_bytes(&(&tool.tool, &tool.description, &tool.input_schema))
}

/// Checks the size of a granted rule. Its tool may be one that this version does not have: it allows nothing then.
fn check_rule(rule: &Rule) -> Checked {
    check_text("rule.tool", Some(&rule.tool), NAME_BYTES_MAX)?;
    check_text("rule.prefix", rule.prefix.as_deref(), RULE_TEXT_BYTES_MAX)?;
    check_text("rule.path", rule.path.as_deref(), RULE_TEXT_BYTES_MAX)?;
    check_text("rule.host", rule.host.as_deref(), RULE_TEXT_BYTES_MAX)
}

fn check_end(completed: &TurnCompleted) -> Checked {
    let error = completed.error.as_ref();
    check_text("error.code", error.map(|error| error.code.as_str()), NAME_BYTES_MAX)?;
    // A message is never so long that its event would be truncated.
    check_text("error.message", error.map(|error| error.message.as_str()), EVENT_BODY_BYTES_MAX)?;
    check_output(completed.output.as_ref())
}

fn check_output(output: Option<&Value>) -> Checked {
    at_most("bytes of an output", output.map_or(0, json_bytes), OUTPUT_BYTES_MAX)
}

fn json_bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
}

fn check_text(field: &str, text: Option<&str>, bytes_max: usize) -> Checked {
    match text.map_or(0, str::len) {
        bytes if bytes <= bytes_max => Ok(()),
        bytes => Err(format!("`{field}` has {bytes} bytes; at most {bytes_max} are allowed")),
    }
}

fn at_most(what: &str, count: usize, max: usize) -> Checked {
    match count <= max {
        true => Ok(()),
        false => Err(format!("there are {count} {what}; at most {max} are allowed")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn id(seq: usize) -> EventId {
        EventId::from_uuid(Uuid::from_u128(seq as u128))
    }

    /// A log with these events, the first of which is in line 2.
    fn log(events: impl IntoIterator<Item = (&'static str, Value)>) -> Vec<Event> {
        let event = |(seq, (kind, body)): (usize, (&str, Value))| {
            let event = json!({
                "seq": seq, "ts": "2026-11-29T00:00:00Z", "id": id(seq), "actor": { "type": "system" },
                "level": "internal", "type": kind, "body": body,
            });
            serde_json::from_value::<Event>(event).expect("an event")
        };
        (1..).zip(events).map(event).collect()
    }

    /// The line of the first event that is refused.
    fn refused(events: impl IntoIterator<Item = (&'static str, Value)>) -> Option<usize> {
        check_log(&log(events)).err().map(|error| error.line)
    }

    fn tool(name: &str, description: &str, schema_bytes: usize) -> (&'static str, Value) {
        // The JSON around the text has 10 bytes.
        let schema = json!({ "$id": "s".repeat(schema_bytes - 10) });
        let tool = json!({
            "name": name, "tool_type": "custom", "description": description, "input_schema": schema,
        });
        ("tool.registered", tool)
    }

    #[test]
    fn registered_tools_are_as_bounded_as_in_a_request() {
        let of = |count: usize| (0..count).map(|at| tool(&format!("t{at}"), "", 20));
        assert_eq!(refused(of(TOOLS_MAX)), None);
        assert_eq!(refused(of(TOOLS_MAX).chain(of(TOOLS_MAX))), None, "a name replaces itself");
        assert_eq!(refused(of(1_000)), Some(TOOLS_MAX + 2));
        assert_eq!(refused([tool("t", &"d".repeat(8 << 10), 16 << 10)]), None);
        assert_eq!(refused([tool("t", "", 20), tool("t", &"d".repeat((8 << 10) + 1), 20)]), Some(3));
        assert_eq!(refused([tool("t", "", (16 << 10) + 1)]), Some(2));
        assert_eq!(refused([tool(&"n".repeat(65), "", 20)]), Some(2));
    }

    #[test]
    fn tools_of_servers_are_as_bounded_as_in_a_list() {
        let listed = |tools: Vec<Value>| {
            let listed = json!({
                "server": "s", "server_hash": "", "protocol_version": "2026-07-28", "hash": "h", "tools": tools,
                "ttl_seconds": 60,
            });
            refused([("mcp.listed", listed)])
        };
        let tool = |name: usize, description: usize, schema: usize| {
            let schema = json!({ "$comment": "s".repeat(schema) });
            json!({
                "name": "n".repeat(name), "tool": "t", "description": "d".repeat(description), "input_schema": schema,
            })
        };
        assert_eq!(listed(vec![tool(64, 8 << 10, 0); 100]), None);
        assert_eq!(listed(vec![tool(1, 0, 0); MCP_TOOLS_MAX + 1]), Some(2));
        assert_eq!(listed(vec![tool(201, 0, 0)]), Some(2));
        assert_eq!(listed(vec![tool(1, (8 << 10) + 1, 0)]), Some(2));
        assert_eq!(listed(vec![tool(1, 0, 16 << 10); 60]), None);
        assert_eq!(listed(vec![tool(1, 0, 16 << 10); 64]), Some(2), "more than 1 MiB");
    }

    fn grant(prefix_bytes: usize) -> (&'static str, Value) {
        let rule = json!({ "tool": "bash", "prefix": "p".repeat(prefix_bytes), "policy": "allow" });
        ("permission.granted", json!({ "rule": rule, "schema_hash": "", "confirmation_event_id": id(1) }))
    }

    #[test]
    fn granted_rules_are_bounded_and_revoked_ones_do_not_count() {
        let revoke = |seq| ("permission.revoked", json!({ "grant_event_id": id(seq) }));
        let many = || (0..GRANTS_MAX).map(|_| grant(1));
        assert_eq!(refused(many()), None);
        assert_eq!(refused(many().chain([grant(1)])), Some(GRANTS_MAX + 2));
        assert_eq!(refused(many().chain([revoke(3), grant(1)])), None);
        assert_eq!(refused([grant(1 << 10)]), None);
        assert_eq!(refused([grant((1 << 10) + 1)]), Some(2));
    }

    #[test]
    fn other_parts_of_single_responses_are_bounded() {
        let end = |error: usize, output: usize| {
            let turn = "trn_01jd0000000000000000000000";
            let usage = json!({
                "input_tokens": 0, "output_tokens": 0, "cache_write_tokens": 0, "cache_read_tokens": 0, "steps": 0,
                "tool_calls": 0,
            });
            let body = json!({
                "turn_id": turn, "yield_reason": "error", "usage": usage, "active_seconds": 0,
                "error": { "code": "c", "message": "m".repeat(error) }, "output": "o".repeat(output),
            });
            ("turn.completed", body)
        };
        assert_eq!(refused([end(32 << 10, 200 << 10)]), None);
        assert_eq!(refused([end((32 << 10) + 1, 0)]), Some(2));
        assert_eq!(refused([end(0, 256 << 10)]), Some(2), "with its quotes");
        let stopped = |bytes: usize| ("session.stopped", json!({ "reason": "r".repeat(bytes) }));
        assert_eq!((refused([stopped(200)]), refused([stopped(201)])), (None, Some(2)));
        let mut events = log([stopped(1), stopped(1)]);
        events[1].draft.actor.display = Some("d".repeat(301));
        assert_eq!(check_log(&events).map_err(|error| error.line), Err(3));
        events[0].draft.refs = [("r".to_owned(), json!("r".repeat(16 << 10)))].into_iter().collect();
        assert_eq!(check_log(&events).map_err(|error| error.line), Err(2));
    }
}
