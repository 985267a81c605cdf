//! Context that a session's commands start with; it survives the sandbox.
//!
//! Changed by `decide::context`, folded by `apply`; used by callers' commands and by the agent's
//! tools.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Working directory, environment variables and custom state of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Context {
    /// Absolute path; `/workspace` when absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub working_dir: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub env_vars: BTreeMap<String, String>,
    /// Opaque to the service; only callers read it.
    #[serde(skip_serializing_if = "Map::is_empty", default)]
    pub custom_state: Map<String, Value>,
}

/// Change of a context: named keys are set, null removes a key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContextChange {
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    pub working_dir: Option<Option<String>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub env_vars: BTreeMap<String, Option<String>>,
    #[serde(skip_serializing_if = "Map::is_empty", default)]
    pub custom_state: Map<String, Value>,
}

impl Context {
    /// Returns whether the context is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Applies a change.
    pub fn apply(&mut self, change: &ContextChange) {
        if let Some(working_dir) = &change.working_dir {
            self.working_dir.clone_from(working_dir);
        }
        for (name, value) in &change.env_vars {
            match value {
                Some(value) => drop(self.env_vars.insert(name.clone(), value.clone())),
                None => drop(self.env_vars.remove(name)),
            }
        }
        for (name, value) in &change.custom_state {
            match value {
                Value::Null => drop(self.custom_state.remove(name)),
                value => drop(self.custom_state.insert(name.clone(), value.clone())),
            }
        }
    }

    /// Returns the variables for a command; the command's `own` variables take precedence.
    pub fn env_under(&self, own: &[(String, String)]) -> Vec<(String, String)> {
        let mut env = self.env_vars.clone();
        env.extend(own.iter().cloned());
        env.into_iter().collect()
    }
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::<String>::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changed(context: &mut Context, change: Value) {
        context.apply(&serde_json::from_value(change).unwrap());
    }

    #[test]
    fn a_change_is_merged_key_by_key_and_null_removes() {
        let mut context = Context::default();
        changed(
            &mut context,
            json!({ "working_dir": "/a", "env_vars": { "A": "1", "B": "2" }, "custom_state": { "x": { "y": 1 }, "z": 0 } }),
        );
        changed(
            &mut context,
            json!({ "env_vars": { "A": null, "C": "3" }, "custom_state": { "x": { "w": 2 } } }),
        );
        assert_eq!(
            serde_json::to_value(&context).unwrap(),
            json!({ "working_dir": "/a", "env_vars": { "B": "2", "C": "3" }, "custom_state": { "x": { "w": 2 }, "z": 0 } })
        );
        assert_eq!(
            context.env_under(&[("C".to_owned(), "own".to_owned())]),
            [("B".to_owned(), "2".to_owned()), ("C".to_owned(), "own".to_owned())]
        );
        changed(
            &mut context,
            json!({ "working_dir": null, "env_vars": { "B": null, "C": null }, "custom_state": { "x": null, "z": null } }),
        );
        assert!(context.is_empty());
    }
}
