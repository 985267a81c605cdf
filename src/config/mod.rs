//! Settings: from the command line or the environment, checked all at once.
//!
//! Every field names its variable, unit and default; `sojourn serve --help` prints
//! these lines. What is wrong is reported together, one line each.

mod capacity;
mod node;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use url::Url;

pub use self::{capacity::Capacity, node::NodeAgent};
use crate::{base::key, node::local::WatcherProgram};

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Serves HTTP and sends webhooks.
    Api,
    /// Runs turns in sandboxes.
    Worker,
    /// Both in one process.
    All,
    /// Makes the sandboxes of this machine for workers: the only role with privileges, and without secrets.
    Node,
}

impl Role {
    /// Whether a process of this role claims jobs.
    pub fn runs_turns(self) -> bool {
        matches!(self, Self::Worker | Self::All)
    }
}

/// Provider of sandbox containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SandboxProvider {
    /// An OCI runtime on this machine.
    Local,
    /// A Docker daemon on this machine.
    Docker,
}

/// Settings of `sojourn serve`.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// Role of this process
    #[arg(long, value_enum, default_value = "all", env = "SOJOURN_ROLE")]
    pub role: Role,

    #[command(flatten)]
    pub database: Database,

    /// Address to serve HTTP on
    #[arg(long, default_value = "127.0.0.1:8080", env = "SOJOURN_LISTEN", value_name = "ADDRESS")]
    pub listen: SocketAddr,

    /// Address to serve /metrics on, separate from the API and without authentication [default: not served]
    #[arg(long, env = "SOJOURN_METRICS_LISTEN", value_name = "ADDRESS")]
    pub metrics_listen: Option<SocketAddr>,

    /// API key of the first organization, at least 16 characters, `sjk_live_` only with its check characters; generated when absent
    #[arg(long, env = "SOJOURN_BOOTSTRAP_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub bootstrap_api_key: Option<String>,

    /// Sustained requests per second of one API key; bursts of four times as many are allowed
    #[arg(long, default_value_t = crate::base::limit::REQUESTS_PER_SECOND, env = "SOJOURN_REQUESTS_PER_SECOND",
        value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests_per_second: u32,

    /// Turns that this process runs concurrently
    #[arg(long, default_value_t = 16, env = "SOJOURN_MAX_CONCURRENT_TURNS", value_name = "COUNT")]
    pub max_concurrent_turns: usize,

    /// Lease duration in milliseconds: how long a worker may be silent before another takes over its session
    #[arg(long, default_value_t = 15_000, env = "SOJOURN_LEASE_MS", value_name = "MS")]
    pub lease_ms: u64,

    /// Base URL of the Anthropic API; the base_url of a credential takes precedence
    #[arg(
        long,
        default_value = "https://api.anthropic.com",
        env = "SOJOURN_ANTHROPIC_BASE_URL",
        value_name = "URL"
    )]
    pub anthropic_base_url: Url,

    /// Version of the Anthropic API: 2023-06-01 or 2026-10-21
    #[arg(long, default_value = "2023-06-01", env = "SOJOURN_ANTHROPIC_VERSION", value_name = "VERSION")]
    pub anthropic_version: String,

    /// Base URL of the OpenAI API; the base_url of a credential takes precedence
    #[arg(
        long,
        default_value = "https://api.openai.com/v1",
        env = "SOJOURN_OPENAI_BASE_URL",
        value_name = "URL"
    )]
    pub openai_base_url: Url,

    /// Allow agents to use the scripted/... models: on or off
    #[arg(long, default_value = "on", env = "SOJOURN_SCRIPTED", value_name = "ON|OFF", value_parser = on_or_off,
        action = clap::ArgAction::Set)]
    pub scripted: bool,

    /// Allow webhooks to private addresses, over plain http too
    #[arg(long, default_value = "off", env = "SOJOURN_ALLOW_PRIVATE_WEBHOOKS", value_name = "ON|OFF",
        value_parser = on_or_off, action = clap::ArgAction::Set)]
    pub allow_private_webhooks: bool,

    /// Allow credentials whose base_url is at a private address
    #[arg(long, default_value = "off", env = "SOJOURN_ALLOW_PRIVATE_MODELS", value_name = "ON|OFF",
        value_parser = on_or_off, action = clap::ArgAction::Set)]
    pub allow_private_models: bool,

    /// Allow MCP servers at private addresses, over plain http too
    #[arg(long, default_value = "off", env = "SOJOURN_ALLOW_PRIVATE_MCP", value_name = "ON|OFF",
        value_parser = on_or_off, action = clap::ArgAction::Set)]
    pub allow_private_mcp: bool,

    /// Allow environments to permit hosts at private addresses; only where every organization is trusted
    #[arg(long, default_value = "off", env = "SOJOURN_ALLOW_PRIVATE_EGRESS", value_name = "ON|OFF",
        value_parser = on_or_off, action = clap::ArgAction::Set)]
    pub allow_private_egress: bool,

    /// Allow sandboxes of several organizations to share the kernel and the programs of this machine, as the runtime runc
    /// with the image host does; only where every organization is trusted
    #[arg(long, default_value = "off", env = "SOJOURN_ALLOW_SHARED_HOST", value_name = "ON|OFF",
        value_parser = on_or_off, action = clap::ArgAction::Set)]
    pub allow_shared_host: bool,

    /// Comma-separated networks, such as 203.0.113.0/24, that no webhook, model URL or sandbox may reach. Public
    /// addresses of this machine are refused without being named; name those that a router translates to it
    #[arg(long, env = "SOJOURN_DENY_CIDRS", value_name = "NETWORKS", value_delimiter = ',')]
    pub deny_cidrs: Vec<IpNet>,

    /// Comma-separated networks of reverse proxies in front of the service. Their `X-Forwarded-For` names the client,
    /// whose requests without a valid key are limited by address
    #[arg(long, env = "SOJOURN_TRUSTED_PROXIES", value_name = "NETWORKS", value_delimiter = ',')]
    pub trusted_proxies: Vec<IpNet>,

    /// PEM file of certificate authorities that sandboxes and the egress proxy trust besides the public ones
    #[arg(long, env = "SOJOURN_EGRESS_CA_FILE", value_name = "FILE")]
    pub egress_ca_file: Option<PathBuf>,

    /// Comma-separated directories below which repositories may be cloned into sandboxes (file:///...). Every
    /// organization can read them. Must be equal in every process
    #[arg(long, env = "SOJOURN_LOCAL_SOURCES", value_name = "DIRECTORIES", value_delimiter = ',')]
    pub local_sources: Vec<PathBuf>,

    /// Sandbox provider: local (an OCI runtime) or docker
    #[arg(long, default_value = "local", env = "SOJOURN_SANDBOX_PROVIDER", value_name = "PROVIDER")]
    pub sandbox_provider: SandboxProvider,

    /// OCI runtime of the provider local, and of package installers with any provider: runc, or gVisor's runsc (2024
    /// or newer) for untrusted code
    #[arg(long, default_value = "runc", env = "SOJOURN_SANDBOX_RUNTIME", value_name = "PROGRAM")]
    pub sandbox_runtime: String,

    /// Socket of the Docker daemon of the provider docker; the daemon must see the files of this process
    #[arg(long, default_value = "/var/run/docker.sock", env = "SOJOURN_DOCKER_SOCKET", value_name = "PATH")]
    pub docker_socket: PathBuf,

    /// Default sandbox image: host (the programs of this machine, read-only), debian (built once by mmdebstrap), or one
    /// of SOJOURN_IMAGES; with the provider docker also an image of the daemon. Must be equal in every process
    #[arg(long, default_value = "host", env = "SOJOURN_SANDBOX_IMAGE", value_name = "IMAGE")]
    pub sandbox_image: String,

    /// Directory of images that environments may name; each entry is an OCI image layout, a root file system, an
    /// archive of one (NAME.tar, .tar.gz, .tar.zst), or a reference to an image of a registry (NAME.ref). Must be equal
    /// in every process
    #[arg(long, env = "SOJOURN_IMAGES", value_name = "DIRECTORY")]
    pub images: Option<PathBuf>,

    /// File with credentials for the registries of SOJOURN_IMAGES, in the format of Docker's config.json. Only node
    /// agents read it [default: anonymous]
    #[arg(long, env = "SOJOURN_REGISTRY_AUTH_FILE", value_name = "FILE")]
    pub registry_auth_file: Option<PathBuf>,

    /// Debian mirror for the image debian and its packages [default: Debian's own]. May be at a private address, which
    /// environments with allow_package_managers then reach too; likewise the next two
    #[arg(long, env = "SOJOURN_APT_MIRROR", value_name = "URL")]
    pub apt_mirror: Option<Url>,

    /// Index of Python packages [default: https://pypi.org/simple]
    #[arg(long, env = "SOJOURN_PIP_INDEX", value_name = "URL")]
    pub pip_index: Option<Url>,

    /// Registry of npm packages [default: https://registry.npmjs.org]
    #[arg(long, env = "SOJOURN_NPM_REGISTRY", value_name = "URL")]
    pub npm_registry: Option<Url>,

    /// A sandbox exits when no worker has contacted it for this many seconds; its files stay. Sessions of a lost
    /// node resume elsewhere after this plus 30 seconds, at least one minute
    #[arg(long, default_value_t = 120, env = "SOJOURN_SANDBOX_ORPHAN_SECONDS", value_name = "SECONDS")]
    pub sandbox_orphan_seconds: u64,

    /// Set by `sojourn serve` itself.
    #[arg(skip)]
    pub watcher: Option<WatcherProgram>,

    /// Blob store for spilled bodies and checkpoints: s3://BUCKET/PREFIX, configured by the AWS_* variables
    /// [default: a directory below the data directory]
    #[arg(long, env = "SOJOURN_BLOB_STORE", value_name = "URL")]
    pub blob_store: Option<String>,

    /// Move the events of a session from the database to the blob store this many days after it was archived; 0 never
    /// moves them. Must be equal in every process
    #[arg(long, default_value_t = 30, env = "SOJOURN_MOVE_EVENTS_AFTER_DAYS", value_name = "DAYS",
        value_parser = clap::value_parser!(u32).range(0..=36_500))]
    pub move_events_after_days: u32,

    /// Freeze an idle sandbox after this many seconds: its processes are stopped in memory
    #[arg(long, default_value = "60", env = "SOJOURN_SANDBOX_FREEZE_AFTER_SECONDS", value_name = "SECONDS",
        value_parser = seconds)]
    pub sandbox_freeze_after_seconds: Duration,

    /// Hibernate an idle sandbox after this many seconds: its files are checkpointed and it is removed
    #[arg(long, default_value = "900", env = "SOJOURN_SANDBOX_HIBERNATE_AFTER_SECONDS", value_name = "SECONDS",
        value_parser = seconds)]
    pub sandbox_hibernate_after_seconds: Duration,

    #[command(flatten)]
    pub capacity: Capacity,

    /// User of the service when it is started as root: it then consists of two processes, and only its node agent,
    /// which makes the sandboxes, stays root [default: everything stays root]
    #[arg(long, env = "SOJOURN_USER", value_name = "USER")]
    pub user: Option<String>,

    #[command(flatten)]
    pub node_agent: NodeAgent,

    /// Key of the operator API (/v3/admin), at least 32 characters; the API is disabled when absent
    #[arg(long, env = "SOJOURN_OPERATOR_KEY", hide_env_values = true, value_name = "KEY")]
    pub operator_key: Option<String>,

    /// Run a demo session when the database is empty: on or off
    #[arg(long, default_value = "on", env = "SOJOURN_FIRST_SESSION", value_name = "ON|OFF", value_parser = on_or_off,
        action = clap::ArgAction::Set)]
    pub first_session: bool,

    #[command(flatten)]
    pub log: Log,

    #[command(flatten)]
    pub traces: Traces,
}

/// Database and data directory.
#[derive(Clone, Debug, Args)]
pub struct Database {
    /// Data directory: keys, blobs, the embedded database, sandbox disks
    #[arg(long, default_value = "./data", env = "SOJOURN_DATA_DIR", value_name = "DIRECTORY")]
    pub data_dir: PathBuf,

    /// Postgres 15 or newer; an embedded server is started when absent. The role must not be a superuser
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,

    /// URL of the role that owns and migrates the schema. The role `all` and `sojourn migrate` need it [default:
    /// DATABASE_URL]
    #[arg(long, env = "SOJOURN_OWNER_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub owner_database_url: Option<String>,

    /// URL of the role for queue, log and outbox, which sees every organization [default: DATABASE_URL]
    #[arg(long, env = "SOJOURN_SYSTEM_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub system_database_url: Option<String>,

    /// URL for LISTEN, of the same role as SOJOURN_SYSTEM_DATABASE_URL; needed if that URL leads to a pooler in
    /// transaction mode [default: SOJOURN_SYSTEM_DATABASE_URL]
    #[arg(long, env = "SOJOURN_LISTEN_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub listen_database_url: Option<String>,

    /// Most connections of this process to the database, at least 5 [default: 9 for the role `api`, 6 for `worker`; for
    /// `all` 41 and one for two turns of SOJOURN_MAX_CONCURRENT_TURNS]
    #[arg(long, env = "SOJOURN_DATABASE_CONNECTIONS", value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(5..=1_000))]
    pub database_connections: Option<u32>,

    /// Seconds that a starting process waits for the database to answer
    #[arg(long, default_value = "60", env = "SOJOURN_DATABASE_WAIT_SECONDS", value_name = "SECONDS",
        value_parser = seconds)]
    pub database_wait_seconds: Duration,

    /// Encrypts every secret: 64 hexadecimal characters, or a passphrase of at least 32 characters; generated in the data
    /// directory when absent
    #[arg(long, env = "SOJOURN_MASTER_KEY", hide_env_values = true, value_name = "KEY")]
    pub master_key: Option<String>,

    /// Previous master key, needed until `sojourn admin rotate-master-key` has run
    #[arg(long, env = "SOJOURN_MASTER_KEY_BEFORE", hide_env_values = true, value_name = "KEY")]
    pub master_key_before: Option<String>,
}

/// Logging.
#[derive(Clone, Debug, Args)]
pub struct Log {
    /// Log filter, such as `info` or `sojourn=debug`
    #[arg(long = "log", default_value = "info", env = "SOJOURN_LOG", value_name = "FILTER")]
    pub filter: String,

    /// Log lines as JSON: on or off
    #[arg(long = "log-json", default_value = "off", env = "SOJOURN_LOG_JSON", value_name = "ON|OFF",
        value_parser = on_or_off, action = clap::ArgAction::Set)]
    pub json: bool,
}

/// Tracing.
#[derive(Clone, Debug, Args)]
pub struct Traces {
    /// OTLP/HTTP collector, such as http://127.0.0.1:4318 [default: no traces]
    #[arg(long, env = "SOJOURN_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<Url>,

    /// Trace sampling ratio (0-1) for requests without a sampling decision
    #[arg(long, default_value_t = 1.0, env = "SOJOURN_TRACE_SAMPLE", value_name = "PART", value_parser = part)]
    pub trace_sample: f64,
}

/// Shortest lease that a worker can renew in time, in milliseconds.
const LEASE_MS_MIN: u64 = 200;
/// Shortest idle time before a freeze: a shorter one would freeze a sandbox between two turns.
const SANDBOX_FREEZE_AFTER_MIN: Duration = Duration::from_millis(100);
/// Most turns of one process.
const CONCURRENT_TURNS_MAX: usize = 1_024;

impl Settings {
    /// Problems with the settings, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.database.problems();
        problems.extend(renamed_settings());
        problems.extend(self.node_agent.problems(self.role == Role::Node));
        if !(1..=CONCURRENT_TURNS_MAX).contains(&self.max_concurrent_turns) {
            problems.push(format!(
                "SOJOURN_MAX_CONCURRENT_TURNS must be 1 to {CONCURRENT_TURNS_MAX}, not {}",
                self.max_concurrent_turns
            ));
        }
        if self.lease_ms < LEASE_MS_MIN {
            problems.push(format!("SOJOURN_LEASE_MS must be at least {LEASE_MS_MIN}, not {}", self.lease_ms));
        }
        let is_bucket = |url: &String| url.strip_prefix("s3://").is_some_and(|place| !place.is_empty());
        if !self.blob_store.iter().all(is_bucket) {
            problems.push("SOJOURN_BLOB_STORE must look like s3://bucket/prefix".to_owned());
        }
        if self.sandbox_freeze_after_seconds < SANDBOX_FREEZE_AFTER_MIN
            || self.sandbox_hibernate_after_seconds < self.sandbox_freeze_after_seconds
        {
            problems.push(format!(
                "SOJOURN_SANDBOX_FREEZE_AFTER_SECONDS must be at least {} and at most \
                 SOJOURN_SANDBOX_HIBERNATE_AFTER_SECONDS",
                SANDBOX_FREEZE_AFTER_MIN.as_secs_f64()
            ));
        }
        let mirrors = [
            ("SOJOURN_APT_MIRROR", &self.apt_mirror),
            ("SOJOURN_PIP_INDEX", &self.pip_index),
            ("SOJOURN_NPM_REGISTRY", &self.npm_registry),
        ];
        let is_plain = |url: &Url| {
            let is_web = matches!(url.scheme(), "http" | "https") && url.domain().is_some();
            is_web && url.username().is_empty() && url.password().is_none() && url.query().is_none()
        };
        for (name, url) in mirrors {
            if !url.iter().all(is_plain) {
                problems.push(format!("{name} must look like https://name/path, without a password"));
            }
        }
        if self.bootstrap_api_key.as_ref().is_some_and(|key| key.len() < 16) {
            problems.push("SOJOURN_BOOTSTRAP_API_KEY must have 16 or more characters".to_owned());
        }
        if self.bootstrap_api_key.as_deref().and_then(key::verify_check) == Some(false) {
            problems.push(
                "SOJOURN_BOOTSTRAP_API_KEY begins with sjk_live_ and its check characters are wrong: copy the whole \
                 key, or choose a key without that prefix"
                    .to_owned(),
            );
        }
        if self.operator_key.as_ref().is_some_and(|key| key.len() < 32) {
            problems.push("SOJOURN_OPERATOR_KEY must have 32 or more characters".to_owned());
        }
        if !["2023-06-01", "2026-10-21"].contains(&self.anthropic_version.as_str()) {
            problems.push("SOJOURN_ANTHROPIC_VERSION must be 2023-06-01 or 2026-10-21".to_owned());
        }
        problems
    }

    /// Days after which the events of an archived session move to the blob store; `None` if they stay.
    pub fn move_events_after_days(&self) -> Option<i32> {
        i32::try_from(self.move_events_after_days).ok().filter(|days| *days > 0)
    }

    /// Lease duration.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

impl Database {
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let alone = [
            ("SOJOURN_OWNER_DATABASE_URL", &self.owner_database_url),
            ("SOJOURN_SYSTEM_DATABASE_URL", &self.system_database_url),
            ("SOJOURN_LISTEN_DATABASE_URL", &self.listen_database_url),
        ];
        for (name, value) in alone {
            if value.is_some() && self.database_url.is_none() {
                problems.push(format!("{name} is set and DATABASE_URL is not"));
            }
        }
        let urls = [("DATABASE_URL", &self.database_url)].into_iter().chain(alone);
        for (name, value) in urls {
            let is_postgres = |url: &Url| matches!(url.scheme(), "postgres" | "postgresql");
            if let Some(text) = value
                && !text.parse::<Url>().is_ok_and(|url| is_postgres(&url))
            {
                problems.push(format!("{name} must look like postgres://user:password@host/database"));
            }
        }
        problems
    }
}

/// Settings of earlier versions with their present names.
const RENAMED: [(&str, &str); 4] = [
    ("SOJOURN_WORKERS", "SOJOURN_MAX_CONCURRENT_TURNS"),
    ("SOJOURN_BOX_FREEZE_MS", "SOJOURN_SANDBOX_FREEZE_AFTER_SECONDS"),
    ("SOJOURN_BOX_HIBERNATE_MS", "SOJOURN_SANDBOX_HIBERNATE_AFTER_SECONDS"),
    ("SOJOURN_BOX_ORPHAN_SECONDS", "SOJOURN_SANDBOX_ORPHAN_SECONDS"),
];

/// Settings of the environment that have another name now: ignoring one would change a deployment silently.
fn renamed_settings() -> impl Iterator<Item = String> {
    let is_set = |(old, _): &&(&str, &str)| std::env::var_os(old).is_some();
    RENAMED
        .iter()
        .filter(is_set)
        .map(|(old, new)| format!("{old} is not a setting any more; set {new} instead"))
}

/// A duration in seconds, which may have a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a number of seconds, such as 60 or 0.5".to_owned();
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

fn part(text: &str) -> Result<f64, String> {
    let part = text.parse().map_err(|_| "must be a number from 0 to 1".to_owned())?;
    if (0.0..=1.0).contains(&part) { Ok(part) } else { Err("must be a number from 0 to 1".to_owned()) }
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "1" | "yes" => Ok(true),
        "off" | "false" | "0" | "no" => Ok(false),
        _ => Err("must be on or off".to_owned()),
    }
}
