//! Environment of a session's sandbox: image, packages, size, network.
//!
//! Validated where it is stored or sent with a session, pinned in `session.created`, read by the
//! worker that creates the sandbox. Pure: rules and their error messages.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    EnvironmentId,
    network::NetworkPolicy,
    problem::Problem,
    rootfs::{Packages, RootFs, is_image_name},
    secret::{self, PinnedSecret, SecretBinding, is_variable},
    source::{self, Repository},
};
use crate::base::json;

/// Configuration of a sandbox: size, variables, network. Absent fields have defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Environment {
    /// The root file system: `host` (the programs of the machine), `debian`, or the name of an
    /// image that the operator registered; the operator's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Packages that are installed over the image before a session's first turn starts; at most 100
    /// in total. They need an image other than `host`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "json::object")]
    pub packages: Packages,
    /// CPUs: 0.1 to 16; 2 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Memory including swap, such as `512Mi` or `2Gi`: `64Mi` to `64Gi`; `2Gi` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Max number of processes and threads: 16 to 4096; 512 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// Disk for the session's files, such as `512Mi` or `20Gi`: `64Mi` to `256Gi`; `10Gi` when
    /// absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// Lifetime of a sandbox before it is replaced by another one with the same files: 30 to
    /// 2592000 seconds; unlimited when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "json::object")]
    pub rotation: Rotation,
    /// Environment variables of every command; at most 128, 64 KiB in total.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Network policy; no network when absent.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "json::object")]
    pub network: NetworkPolicy,
    /// Repositories that are cloned into the workspace before the first command. At most 16
    /// together with those of the agent and the session, which take precedence.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "json::objects")]
    pub sources: Vec<Repository>,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "json::object")]
    pub lifecycle_hooks: LifecycleHooks,
}

/// Replacement of a sandbox before its lifetime ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rotation {
    /// Seconds before the end of the lifetime from which the sandbox may be replaced. A command
    /// that runs then is waited for, at most until the end. At most half of `timeout_seconds`,
    /// which it requires; 60, or that half if less, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_rotate_buffer_seconds: Option<u64>,
}

/// Scripts that prepare a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LifecycleHooks {
    /// Script that bash runs in `/workspace`, once in each sandbox, before its first command. If it
    /// fails, the turn fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_start: Option<String>,
    /// Script that bash runs in `/workspace` once after the session's sources were cloned; not
    /// again in a sandbox whose files come from another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_clone: Option<String>,
}

/// An environment by id or name, or an inline one for this session alone.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EnvironmentChoice {
    /// Id or name of a stored environment.
    Named(String),
    /// An inline environment. It has no secrets; those need a stored environment.
    Inline(Box<Environment>),
}

impl<'de> Deserialize<'de> for EnvironmentChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(name) => Ok(Self::Named(name)),
            inline @ Value::Object(_) => serde_json::from_value(inline)
                .map(|inline| Self::Inline(Box::new(inline)))
                .map_err(D::Error::custom),
            _ => Err(D::Error::custom("must be an environment's id or name, or an object")),
        }
    }
}

/// The environment as it was when the session was created; immutable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentSnapshot {
    /// Null for an inline environment.
    #[schema(value_type = Option<String>, required)]
    pub environment_id: Option<EnvironmentId>,
    #[schema(required)]
    pub name: Option<String>,
    pub config: Environment,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<PinnedSecret>,
}

impl EnvironmentSnapshot {
    /// Returns the same environment for another session, with new placeholders.
    pub fn with_placeholders(mut self, mut placeholder: impl FnMut() -> String) -> Self {
        self.secrets.iter_mut().for_each(|secret| secret.placeholder = placeholder());
        self
    }
}

/// Lifetime of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Time until it should be replaced, once nothing runs in it.
    pub rotates_in: Duration,
    /// Time until it ends, even if something runs in it.
    pub ends_in: Duration,
}

/// Resources of a sandbox, in the units of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub cpu_millis: u32,
    pub memory_bytes: u64,
    pub pids: u32,
    pub disk_bytes: u64,
}

/// Resources that a node reserves for its sandboxes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCapacity {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub pids: u64,
    pub disk_bytes: u64,
}

impl NodeCapacity {
    pub const MAX: Self =
        Self { cpu_millis: u64::MAX, memory_bytes: u64::MAX, pids: u64::MAX, disk_bytes: u64::MAX };
}

/// Min and max size of a sandbox.
const CPUS: (f64, f64) = (0.1, 16.0);
const MEMORY: (u64, u64) = (64 << 20, 64 << 30);
const PIDS: (u32, u32) = (16, 4_096);
const DISK: (u64, u64) = (64 << 20, 256 << 30);
/// Min and max lifetime of a sandbox, in seconds: half a minute is enough for one command, 30 days
/// are more than any known use needs.
const TIMEOUT_SECONDS: (u64, u64) = (30, 2_592_000);
const PRE_ROTATE_BUFFER_SECONDS: u64 = 60;
/// Max number of environment variables, and their total bytes; every command holds a copy in
/// memory.
const VARIABLES_MAX: usize = 128;
const VARIABLES_BYTES_MAX: usize = 64 << 10;
/// Max length of a lifecycle hook script, in bytes.
const LIFECYCLE_HOOK_BYTES_MAX: usize = 32 << 10;
impl RootFs {
    /// Returns the root file system of an environment; `default_image` applies if it names none.
    pub fn of(environment: Option<&Environment>, default_image: &str) -> Self {
        let image = environment.and_then(|environment| environment.image.as_deref());
        let packages = environment.map(|environment| environment.packages.sorted());
        Self { image: image.unwrap_or(default_image).to_owned(), packages: packages.unwrap_or_default() }
    }
}

impl Environment {
    /// Returns the first invalid field.
    pub fn problem(&self) -> Option<Problem> {
        let problem = |field: &str, words: &str| Some((field.to_owned(), words.to_owned()));
        if self.image.as_ref().is_some_and(|image| !is_image_name(image)) {
            return problem("image", "must be the name of an image, such as `debian`");
        }
        if let Some(problem) = self.packages.problem() {
            return Some(problem);
        }
        if self.cpus.is_some_and(|cpus| !(CPUS.0..=CPUS.1).contains(&cpus)) {
            return problem("cpus", "must be 0.1 to 16");
        }
        let is_size = |text: &String, (least, most): (u64, u64)| {
            bytes_of(text).is_some_and(|bytes| (least..=most).contains(&bytes))
        };
        if self.memory.as_ref().is_some_and(|memory| !is_size(memory, MEMORY)) {
            return problem("memory", "must be 64Mi to 64Gi, in Mi or Gi");
        }
        if self.disk.as_ref().is_some_and(|disk| !is_size(disk, DISK)) {
            return problem("disk", "must be 64Mi to 256Gi, in Mi or Gi");
        }
        if self.pids.is_some_and(|pids| !(PIDS.0..=PIDS.1).contains(&pids)) {
            return problem("pids", "must be 16 to 4096");
        }
        let (shortest, longest) = TIMEOUT_SECONDS;
        if self.timeout_seconds.is_some_and(|timeout| !(shortest..=longest).contains(&timeout)) {
            return problem("timeout_seconds", "must be 30 to 2592000");
        }
        match (self.rotation.pre_rotate_buffer_seconds, self.timeout_seconds) {
            (Some(_), None) => {
                return problem("rotation.pre_rotate_buffer_seconds", "requires `timeout_seconds`");
            }
            (Some(buffer), Some(timeout)) if buffer > timeout / 2 => {
                let words = "must be at most half of `timeout_seconds`";
                return problem("rotation.pre_rotate_buffer_seconds", words);
            }
            (Some(_) | None, Some(_) | None) => {}
        }
        let bytes: usize = self.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        if self.env.len() > VARIABLES_MAX || bytes > VARIABLES_BYTES_MAX {
            return problem("env", "must have at most 128 variables of 65536 bytes in total");
        }
        if self.env.iter().any(|(name, value)| !is_variable(name) || value.contains('\0')) {
            return problem("env", "names take letters, digits and underscores; values take no U+0000");
        }
        let is_script = |script: &String| {
            (1..=LIFECYCLE_HOOK_BYTES_MAX).contains(&script.len()) && !script.contains('\0')
        };
        let LifecycleHooks { post_start, post_clone } = &self.lifecycle_hooks;
        for (field, script) in
            [("lifecycle_hooks.post_start", post_start), ("lifecycle_hooks.post_clone", post_clone)]
        {
            if script.as_ref().is_some_and(|script| !is_script(script)) {
                return problem(field, "must be a script of 1 to 32768 bytes without U+0000");
            }
        }
        if let Some(problem) = source::problem(&self.sources) {
            return Some(problem);
        }
        self.network.problem().map(|(field, words)| (format!("network.{field}"), words))
    }

    /// Returns the size with defaults applied; expects a validated environment.
    pub fn size(&self) -> Size {
        let bytes = |text: &Option<String>| text.as_deref().and_then(bytes_of);
        Size {
            cpu_millis: (self.cpus.unwrap_or(2.0) * 1_000.0) as u32,
            memory_bytes: bytes(&self.memory).unwrap_or(2 << 30),
            pids: self.pids.unwrap_or(512),
            disk_bytes: bytes(&self.disk).unwrap_or(10 << 30),
        }
    }

    /// Returns the lifetime of a sandbox; `None` if it is unlimited.
    pub fn life(&self) -> Option<Life> {
        let timeout = self.timeout_seconds?;
        let buffer = self.rotation.pre_rotate_buffer_seconds.unwrap_or(PRE_ROTATE_BUFFER_SECONDS);
        let rotates_in = Duration::from_secs(timeout - buffer.min(timeout / 2));
        Some(Life { rotates_in, ends_in: Duration::from_secs(timeout) })
    }

    /// Returns the first invalid field of the secrets.
    pub fn secrets_problem(&self, secrets: &[SecretBinding]) -> Option<Problem> {
        secret::problem(secrets, &self.env, &self.network.allow)
    }
}

/// Parses `512Mi` or `2Gi` into bytes.
pub(crate) fn bytes_of(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(2)?)?;
    let shift = match unit {
        "Mi" => 20,
        "Gi" => 30,
        _ => return None,
    };
    let whole = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| whole)?.checked_mul(1 << shift)
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::{
        secret::{authorization, is_secret_value},
        *,
    };

    fn environment(json: serde_json::Value) -> Environment {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn an_absent_size_is_the_default_one() {
        let size = Environment::default().size();
        assert_eq!(size, Size { cpu_millis: 2_000, memory_bytes: 2 << 30, pids: 512, disk_bytes: 10 << 30 });
        let small =
            environment(serde_json::json!({ "cpus": 0.5, "memory": "512Mi", "pids": 64, "disk": "64Mi" }));
        assert_eq!(small.problem(), None);
        assert_eq!(
            small.size(),
            Size { cpu_millis: 500, memory_bytes: 512 << 20, pids: 64, disk_bytes: 64 << 20 }
        );
    }

    #[test]
    fn a_part_is_an_object_and_no_array_of_its_fields() {
        for part in ["packages", "rotation", "network", "lifecycle_hooks"] {
            let array = serde_json::json!({ part: [] });
            assert!(serde_json::from_value::<Environment>(array).is_err(), "{part}");
        }
        for parts in [
            serde_json::json!({ "sources": [[]] }),
            serde_json::json!({ "network": { "allow": [["api.example"]] } }),
        ] {
            assert!(serde_json::from_value::<Environment>(parts.clone()).is_err(), "{parts}");
        }
    }

    #[test]
    fn what_no_sandbox_can_be_is_named() {
        for (json, field) in [
            (serde_json::json!({ "cpus": 0 }), "cpus"),
            (serde_json::json!({ "cpus": 17 }), "cpus"),
            (serde_json::json!({ "memory": "1Mi" }), "memory"),
            (serde_json::json!({ "memory": "2G" }), "memory"),
            (serde_json::json!({ "memory": "+2Gi" }), "memory"),
            (serde_json::json!({ "memory": "99999999999999999999Gi" }), "memory"),
            (serde_json::json!({ "pids": 1 }), "pids"),
            (serde_json::json!({ "disk": "1Gi " }), "disk"),
            (serde_json::json!({ "disk": "63Mi" }), "disk"),
            (serde_json::json!({ "disk": "257Gi" }), "disk"),
            (serde_json::json!({ "timeout_seconds": 29 }), "timeout_seconds"),
            (
                serde_json::json!({ "rotation": { "pre_rotate_buffer_seconds": 1 } }),
                "rotation.pre_rotate_buffer_seconds",
            ),
            (
                serde_json::json!({ "timeout_seconds": 30, "rotation": { "pre_rotate_buffer_seconds": 16 } }),
                "rotation.pre_rotate_buffer_seconds",
            ),
            (serde_json::json!({ "env": { "A=B": "x" } }), "env"),
            (serde_json::json!({ "env": { "1A": "x" } }), "env"),
            (serde_json::json!({ "lifecycle_hooks": { "post_start": "" } }), "lifecycle_hooks.post_start"),
            (serde_json::json!({ "env": { "A": "x\0" } }), "env"),
            (
                serde_json::json!({ "network": { "allow": [{ "host": "10.0.0.1" }] } }),
                "network.allow[0].host",
            ),
        ] {
            assert_eq!(
                environment(json.clone()).problem().map(|(field, _)| field).as_deref(),
                Some(field),
                "{json}"
            );
        }
    }

    #[test]
    fn a_sandbox_is_replaced_before_its_time_is_over() {
        let life = |timeout: Option<u64>, buffer: Option<u64>| {
            let rotation = Rotation { pre_rotate_buffer_seconds: buffer };
            let environment = Environment { timeout_seconds: timeout, rotation, ..Environment::default() };
            environment.life().map(|life| (life.ends_in.as_secs(), life.rotates_in.as_secs()))
        };
        assert_eq!(life(None, None), None);
        assert_eq!(life(Some(3_600), None), Some((3_600, 3_540)));
        assert_eq!(life(Some(3_600), Some(600)), Some((3_600, 3_000)));
        assert_eq!(life(Some(60), None), Some((60, 30)));
    }

    #[test]
    fn a_secret_goes_only_where_the_policy_lets_something_through() {
        let environment = environment(serde_json::json!({
            "env": { "TAKEN": "x" }, "network": { "allow": [{ "host": "*.a.example" }] },
        }));
        let secret = |name: &str, host: &str| SecretBinding {
            name: name.to_owned(),
            hosts: vec![host.to_owned()],
            headers: authorization(),
            query_parameters: Vec::new(),
        };
        assert_eq!(environment.secrets_problem(&[secret("TOKEN", "x.a.example")]), None);
        for bad in
            [secret("TOKEN", "b.example"), secret("TAKEN", "x.a.example"), secret("A-B", "x.a.example")]
        {
            assert!(environment.secrets_problem(std::slice::from_ref(&bad)).is_some(), "{bad:?}");
        }
        let places = |headers: &[&str], parameters: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let (headers, query_parameters) = (names(headers), names(parameters));
            let secret = SecretBinding { headers, query_parameters, ..secret("TOKEN", "x.a.example") };
            environment.secrets_problem(&[secret]).map(|(field, _)| field)
        };
        assert_eq!(places(&["X-Api-Key"], &["key"]), None);
        assert_eq!(places(&[], &["key"]), None);
        for (headers, parameters, field) in [
            (&[][..], &[][..], "headers"),
            (&["a b"], &[], "headers"),
            (&["Host"], &[], "headers"),
            (&["a"; 9], &[], "headers"),
            (&[], &["a=b"], "query_parameters"),
            (&[], &[""], "query_parameters"),
        ] {
            let expected = Some(format!("secrets[0].{field}"));
            assert_eq!(places(headers, parameters), expected, "{headers:?} {parameters:?}");
        }
        let twice = [secret("TOKEN", "x.a.example"), secret("TOKEN", "y.a.example")];
        assert!(environment.secrets_problem(&twice).is_some());
        assert!(is_secret_value("12345678") && !is_secret_value("1234567") && !is_secret_value("1234\n5678"));
    }
}
