//! Settings: from the command line or the environment, checked all at once.
//!
//! Every field names its variable, unit and default; `sojourn serve --help` prints
//! these lines. What is wrong is reported together, one line each.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use url::Url;

/// Which part of the service a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Serves HTTP and sends webhooks.
    Api,
    /// Runs turns in sandboxes.
    Worker,
    /// Both, in one process.
    All,
}

/// Who makes the containers of sandboxes.
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
    /// Which part of the service this process is
    #[arg(long, value_enum, default_value = "all", env = "SOJOURN_ROLE")]
    pub role: Role,

    #[command(flatten)]
    pub database: Database,

    /// Address to serve HTTP on
    #[arg(long, default_value = "127.0.0.1:8080", env = "SOJOURN_LISTEN", value_name = "ADDRESS")]
    pub listen: SocketAddr,

    /// Address to serve /metrics on, apart from the API and without a key [default: not served]
    #[arg(long, env = "SOJOURN_METRICS_LISTEN", value_name = "ADDRESS")]
    pub metrics_listen: Option<SocketAddr>,

    /// A key of the first organization, 16 or more characters; made when absent
    #[arg(long, env = "SOJOURN_BOOTSTRAP_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub bootstrap_api_key: Option<String>,

    /// Requests that one API key may make in a second, sustained; four times as many at once
    #[arg(long, default_value_t = crate::base::limit::REQUESTS_PER_SECOND, env = "SOJOURN_REQUESTS_PER_SECOND",
        value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests_per_second: u32,

    /// Turns that this process runs at the same time
    #[arg(long, default_value_t = 16, env = "SOJOURN_WORKERS", value_name = "COUNT")]
    pub workers: usize,

    /// How long a worker may be silent before another takes its session, in milliseconds
    #[arg(long, default_value_t = 15_000, env = "SOJOURN_LEASE_MS", value_name = "MS")]
    pub lease_ms: u64,

    /// Where Anthropic's API is; a credential's base_url wins
    #[arg(
        long,
        default_value = "https://api.anthropic.com",
        env = "SOJOURN_ANTHROPIC_BASE_URL",
        value_name = "URL"
    )]
    pub anthropic_base_url: Url,

    /// Version of Anthropic's API: 2023-06-01 or 2026-10-21
    #[arg(long, default_value = "2023-06-01", env = "SOJOURN_ANTHROPIC_VERSION", value_name = "VERSION")]
    pub anthropic_version: String,

    /// Where OpenAI's API is; a credential's base_url wins
    #[arg(
        long,
        default_value = "https://api.openai.com/v1",
        env = "SOJOURN_OPENAI_BASE_URL",
        value_name = "URL"
    )]
    pub openai_base_url: Url,

    /// Whether agents may use the models scripted/...: on or off
    #[arg(long, default_value = "on", env = "SOJOURN_SCRIPTED", value_name = "ON|OFF", value_parser = on_or_off,
        action = clap::ArgAction::Set)]
    pub scripted: bool,

    /// Let webhooks go to private addresses, and to those over plain http
    #[arg(long, default_value = "off", env = "SOJOURN_ALLOW_PRIVATE_WEBHOOKS", value_name = "ON|OFF",
        value_parser = on_or_off, action = clap::ArgAction::Set)]
    pub allow_private_webhooks: bool,

    /// Let credentials name model endpoints at private addresses
    #[arg(long, default_value = "off", env = "SOJOURN_ALLOW_PRIVATE_MODELS", value_name = "ON|OFF",
        value_parser = on_or_off, action = clap::ArgAction::Set)]
    pub allow_private_models: bool,

    /// Let environments allow hosts at private addresses: only where every organization is trusted
    #[arg(long, default_value = "off", env = "SOJOURN_ALLOW_PRIVATE_EGRESS", value_name = "ON|OFF",
        value_parser = on_or_off, action = clap::ArgAction::Set)]
    pub allow_private_egress: bool,

    /// File of certificates (PEM) that sandboxes and their proxy trust beside the public ones
    #[arg(long, env = "SOJOURN_EGRESS_CA_FILE", value_name = "FILE")]
    pub egress_ca_file: Option<PathBuf>,

    /// Directories below which repositories may be cloned into sandboxes (file:///...), apart by commas: every
    /// organization may read them. The same for every process
    #[arg(long, env = "SOJOURN_LOCAL_SOURCES", value_name = "DIRECTORIES", value_delimiter = ',')]
    pub local_sources: Vec<PathBuf>,

    /// Who makes the containers of sandboxes: local (an OCI runtime) or docker
    #[arg(long, default_value = "local", env = "SOJOURN_SANDBOX_PROVIDER", value_name = "PROVIDER")]
    pub sandbox_provider: SandboxProvider,

    /// Program that runs sandboxes of the provider local, and installers of packages with any: an OCI runtime such as
    /// runc, or gVisor's runsc (2024 or newer) for code that nobody trusts
    #[arg(long, default_value = "runc", env = "SOJOURN_SANDBOX_RUNTIME", value_name = "PROGRAM")]
    pub sandbox_runtime: String,

    /// Socket of the daemon of the provider docker, which must see the files of this process
    #[arg(long, default_value = "/var/run/docker.sock", env = "SOJOURN_DOCKER_SOCKET", value_name = "PATH")]
    pub docker_socket: PathBuf,

    /// Image of sandboxes whose environment names none: host (the programs of this machine, read-only), debian (made
    /// once by mmdebstrap), or one of SOJOURN_IMAGES; with the provider docker also one that the daemon has. The same
    /// for every process
    #[arg(long, default_value = "host", env = "SOJOURN_SANDBOX_IMAGE", value_name = "IMAGE")]
    pub sandbox_image: String,

    /// Directory of images that environments may name: each entry an OCI image layout, a root file system, or an
    /// archive of one (NAME.tar, .tar.gz, .tar.zst). The same for every process
    #[arg(long, env = "SOJOURN_IMAGES", value_name = "DIRECTORY")]
    pub images: Option<PathBuf>,

    /// Mirror of Debian for the image debian and its packages [default: Debian's own]. It may be at any address, which
    /// environments that allow package managers reach too; so may the next two
    #[arg(long, env = "SOJOURN_APT_MIRROR", value_name = "URL")]
    pub apt_mirror: Option<Url>,

    /// Index of Python packages [default: https://pypi.org/simple]
    #[arg(long, env = "SOJOURN_PIP_INDEX", value_name = "URL")]
    pub pip_index: Option<Url>,

    /// Registry of npm packages [default: https://registry.npmjs.org]
    #[arg(long, env = "SOJOURN_NPM_REGISTRY", value_name = "URL")]
    pub npm_registry: Option<Url>,

    /// A sandbox ends itself when its node has not called it for this long, in seconds; its files stay. What is lost
    /// with a node goes on elsewhere after this and 30 seconds, at least a minute
    #[arg(long, default_value_t = 120, env = "SOJOURN_SANDBOX_ORPHAN_SECONDS", value_name = "SECONDS")]
    pub sandbox_orphan_seconds: u64,

    /// Where blobs are, checkpoints among them: s3://BUCKET/PREFIX, with the AWS_ variables of the AWS tools
    /// [default: below the data directory]
    #[arg(long, env = "SOJOURN_BLOB_STORE", value_name = "URL")]
    pub blob_store: Option<String>,

    /// A sandbox that nobody needed for this long is frozen: its processes stand still, in milliseconds
    #[arg(long, default_value_t = 60_000, env = "SOJOURN_SANDBOX_FREEZE_MS", value_name = "MILLISECONDS")]
    pub sandbox_freeze_ms: u64,

    /// A sandbox that nobody needed for this long is removed, its files kept as a checkpoint, in milliseconds
    #[arg(
        long,
        default_value_t = 900_000,
        env = "SOJOURN_SANDBOX_HIBERNATE_MS",
        value_name = "MILLISECONDS"
    )]
    pub sandbox_hibernate_ms: u64,

    /// Key of the API for operators (/v3/admin), 32 characters or more; nobody may use it when absent
    #[arg(long, env = "SOJOURN_OPERATOR_KEY", hide_env_values = true, value_name = "KEY")]
    pub operator_key: Option<String>,

    /// Play a first session when the database is empty: on or off
    #[arg(long, default_value = "on", env = "SOJOURN_FIRST_SESSION", value_name = "ON|OFF", value_parser = on_or_off,
        action = clap::ArgAction::Set)]
    pub first_session: bool,

    #[command(flatten)]
    pub log: Log,

    #[command(flatten)]
    pub traces: Traces,
}

/// Where the record is.
#[derive(Clone, Debug, Args)]
pub struct Database {
    /// Directory for what this process keeps: keys, blobs, the embedded database, disks of sandboxes
    #[arg(long, default_value = "./data", env = "SOJOURN_DATA_DIR", value_name = "DIRECTORY")]
    pub data_dir: PathBuf,

    /// Postgres 15 or newer; an embedded one is started when absent. The role must be no superuser
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,

    /// The role that owns the schema and migrates it [default: that of DATABASE_URL]
    #[arg(long, env = "SOJOURN_OWNER_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub owner_database_url: Option<String>,

    /// The role of the service's own work, which sees every organization [default: that of DATABASE_URL]
    #[arg(long, env = "SOJOURN_SYSTEM_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub system_database_url: Option<String>,

    /// Seals every secret: 64 hexadecimal characters or a phrase of 32 or more; made in the data directory when absent
    #[arg(long, env = "SOJOURN_MASTER_KEY", hide_env_values = true, value_name = "KEY")]
    pub master_key: Option<String>,

    /// The master key that SOJOURN_MASTER_KEY replaces, until `sojourn admin rotate-master-key` has run
    #[arg(long, env = "SOJOURN_MASTER_KEY_BEFORE", hide_env_values = true, value_name = "KEY")]
    pub master_key_before: Option<String>,
}

/// What is logged, and how.
#[derive(Clone, Debug, Args)]
pub struct Log {
    /// What is logged, as in `info` or `sojourn=debug`
    #[arg(long = "log", default_value = "info", env = "SOJOURN_LOG", value_name = "FILTER")]
    pub filter: String,

    /// Log lines as JSON: on or off
    #[arg(long = "log-json", default_value = "off", env = "SOJOURN_LOG_JSON", value_name = "ON|OFF",
        value_parser = on_or_off, action = clap::ArgAction::Set)]
    pub json: bool,
}

/// Where spans are sent, and how many.
#[derive(Clone, Debug, Args)]
pub struct Traces {
    /// An OTLP collector that speaks HTTP, as in http://127.0.0.1:4318 [default: no traces]
    #[arg(long, env = "SOJOURN_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<Url>,

    /// Which part of the traces is sent, 0 to 1, where a caller did not decide it
    #[arg(long, default_value_t = 1.0, env = "SOJOURN_TRACE_SAMPLE", value_name = "PART", value_parser = part)]
    pub trace_sample: f64,
}

/// Shortest lease that a worker can keep alive.
const LEASE_MS_MIN: u64 = 200;
/// Shortest rest after which a sandbox is frozen: sooner would freeze it between two turns.
const SANDBOX_FREEZE_MS_MIN: u64 = 100;
/// Turns that one process may run at the same time.
const WORKERS_MAX: usize = 1_024;

impl Settings {
    /// Everything that is wrong with the settings, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.database.problems();
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            problems.push(format!("SOJOURN_WORKERS must be 1 to {WORKERS_MAX}, not {}", self.workers));
        }
        if self.lease_ms < LEASE_MS_MIN {
            problems.push(format!("SOJOURN_LEASE_MS must be at least {LEASE_MS_MIN}, not {}", self.lease_ms));
        }
        let is_bucket = |url: &String| url.strip_prefix("s3://").is_some_and(|place| !place.is_empty());
        if !self.blob_store.iter().all(is_bucket) {
            problems.push("SOJOURN_BLOB_STORE must look like s3://bucket/prefix".to_owned());
        }
        if self.sandbox_freeze_ms < SANDBOX_FREEZE_MS_MIN
            || self.sandbox_hibernate_ms < self.sandbox_freeze_ms
        {
            problems.push(format!(
                "SOJOURN_SANDBOX_FREEZE_MS must be at least {SANDBOX_FREEZE_MS_MIN} and at most SOJOURN_SANDBOX_HIBERNATE_MS"
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
        if self.operator_key.as_ref().is_some_and(|key| key.len() < 32) {
            problems.push("SOJOURN_OPERATOR_KEY must have 32 or more characters".to_owned());
        }
        if !["2023-06-01", "2026-10-21"].contains(&self.anthropic_version.as_str()) {
            problems.push("SOJOURN_ANTHROPIC_VERSION must be 2023-06-01 or 2026-10-21".to_owned());
        }
        problems
    }

    /// Length of a lease.
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
