//! `sojourn environment ...`: manage images, resources, network policy and secrets of sandboxes.
//!
//! The value of a secret is read from standard input: other users could see it on a command line.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    client::{Client, Connection},
    input, print, source,
};

/// Environment commands.
#[derive(Debug, Subcommand)]
pub(super) enum Environment {
    /// List environments
    List,
    /// Show an environment, without the values of its secrets
    Get { environment: String },
    /// Create an environment
    Create {
        #[arg(long)]
        name: String,
        #[command(flatten)]
        fields: Box<Fields>,
    },
    /// Update an environment; new sessions use the change, running sessions keep the pinned configuration
    Update {
        environment: String,
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        fields: Box<Fields>,
    },
    /// Build the environment's image and packages, also after a failure; `get` shows the progress
    Build { environment: String },
    /// Store a secret; its value is read from standard input
    SetSecret {
        environment: String,
        /// Environment variable that contains the secret's placeholder
        name: String,
        /// Host that receives the value; the network policy must allow it
        #[arg(long = "host", required = true, value_name = "HOST")]
        hosts: Vec<String>,
        /// Request header in which the placeholder may stand [default: authorization]
        #[arg(long = "header", value_name = "NAME")]
        headers: Vec<String>,
        /// Parameter of the query in which the placeholder may stand
        #[arg(long = "query-parameter", value_name = "NAME")]
        query_parameters: Vec<String>,
    },
    /// Remove a secret
    RemoveSecret { environment: String, name: String },
    /// Delete an environment; sessions that use its secrets can no longer run
    Delete { environment: String },
}

/// Environment fields; omitted ones stay unchanged.
#[derive(Debug, Args)]
pub(super) struct Fields {
    /// JSON file with the complete `config`; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["image", "apt", "pip", "npm",
        "allow_package_managers", "allow_mcp_servers", "cpus", "memory", "pids", "disk", "variables", "allow",
        "post_start", "post_clone", "sources"])]
    config: Option<PathBuf>,
    /// Root file system: host, debian, or an image registered by the operator
    #[arg(long)]
    image: Option<String>,
    /// Debian package to install over the image, e.g. jq or jq=1.6-2.1
    #[arg(long, value_name = "PACKAGE")]
    apt: Vec<String>,
    /// Python package, e.g. requests==2.32.3
    #[arg(long, value_name = "PACKAGE")]
    pip: Vec<String>,
    /// npm package, e.g. typescript@5.4.5
    #[arg(long, value_name = "PACKAGE")]
    npm: Vec<String>,
    /// Allow sandboxes to connect to package registries
    #[arg(long)]
    allow_package_managers: bool,
    /// Whether agents may use MCP servers, which are reached from outside of the sandbox
    #[arg(long, value_name = "BOOL")]
    allow_mcp_servers: Option<bool>,
    /// CPU limit in CPUs, 0.1 to 16
    #[arg(long)]
    cpus: Option<f64>,
    /// Memory limit, e.g. 512Mi or 2Gi
    #[arg(long)]
    memory: Option<String>,
    /// Maximum number of processes and threads
    #[arg(long)]
    pids: Option<u32>,
    /// Maximum size of a session's files, e.g. 512Mi or 20Gi
    #[arg(long)]
    disk: Option<String>,
    /// Environment variable of every command
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    variables: Vec<(String, String)>,
    /// Allowed host; with --config, a rule can also set port, methods and path
    #[arg(long, value_name = "HOST")]
    allow: Vec<String>,
    /// File with a bash script to run once in each new sandbox
    #[arg(long, value_name = "FILE")]
    post_start: Option<PathBuf>,
    /// File with a bash script to run once after the repositories were cloned
    #[arg(long, value_name = "FILE")]
    post_clone: Option<PathBuf>,
    /// Repository to clone into each sandbox; with --config, a source can also set its path and credential
    #[arg(long = "source", value_name = "URL[#REF]", value_parser = source::parse)]
    sources: Vec<Value>,
}

/// Runs a command.
pub(super) async fn run(command: Environment, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    match command {
        Environment::List => list(&client, json).await?,
        Environment::Get { environment } => {
            print::document(&client.get(&format!("/environments/{environment}")).await?);
        }
        Environment::Create { name, fields } => {
            let body = json!({ "name": name, "config": fields.change()? });
            print::field(&client.post("/environments", &body).await?, json, "id");
        }
        Environment::Update { environment, name, fields } => {
            let path = format!("/environments/{environment}");
            let mut body = json!({});
            let change = fields.change()?;
            if fields.config.is_some() {
                body["config"] = change;
            } else if change != json!({}) {
                // PATCH replaces the whole `config`, so start from the current one.
                body["config"] = client.get(&path).await?["config"].take();
                apply(&mut body["config"], change);
            }
            if let Some(name) = name {
                body["name"] = name.into();
            }
            print::field(&client.patch(&path, &body).await?, json, "id");
        }
        Environment::Build { environment } => {
            let path = format!("/environments/{environment}/build");
            let built = client.post(&path, &json!({})).await?;
            print::answer(&built, json, built["build"]["state"].as_str().unwrap_or("nothing to build"));
        }
        Environment::SetSecret { environment, name, hosts, headers, query_parameters } => {
            let mut secret = json!({ "name": name, "hosts": hosts, "value": input::secret("value")? });
            if !headers.is_empty() || !query_parameters.is_empty() {
                secret["headers"] = headers.into();
                secret["query_parameters"] = query_parameters.into();
            }
            print::field(&replace_secret(&client, &environment, &name, Some(secret)).await?, json, "id");
        }
        Environment::RemoveSecret { environment, name } => {
            print::field(&replace_secret(&client, &environment, &name, None).await?, json, "id");
        }
        Environment::Delete { environment } => {
            drop(client.delete(&format!("/environments/{environment}")).await?);
        }
    }
    Ok(())
}

/// Replaces or removes one secret and keeps the others.
async fn replace_secret(
    client: &Client,
    environment: &str,
    name: &str,
    new: Option<Value>,
) -> anyhow::Result<Value> {
    let path = format!("/environments/{environment}");
    let before = client.get(&path).await?;
    let mut secrets = before["secrets"].as_array().cloned().unwrap_or_default();
    let count = secrets.len();
    secrets.retain(|secret| secret["name"] != name);
    if new.is_none() && secrets.len() == count {
        bail!("{environment} has no secret `{name}`");
    }
    secrets.extend(new);
    client.patch(&path, &json!({ "secrets": secrets })).await
}

impl Fields {
    /// Returns the fields of `config` that were given.
    fn change(&self) -> anyhow::Result<Value> {
        let Self { image, apt, pip, npm, cpus, memory, pids, disk, sources, .. } = self;
        if let Some(file) = &self.config {
            return input::json(file);
        }
        let script = |file: &Option<PathBuf>| file.as_deref().map(input::text).transpose();
        let rules: Vec<_> = self.allow.iter().map(|host| json!({ "host": host })).collect();
        let managers = self.allow_package_managers.then_some(true);
        Ok(input::given(json!({
            "image": image, "cpus": cpus, "memory": memory, "pids": pids, "disk": disk, "sources": sources,
            "packages": { "apt": apt, "pip": pip, "npm": npm },
            "env": self.variables.iter().cloned().collect::<BTreeMap<_, _>>(),
            "network": { "allow": rules, "allow_package_managers": managers,
                "allow_mcp_servers": self.allow_mcp_servers },
            "lifecycle_hooks": {
                "post_start": script(&self.post_start)?, "post_clone": script(&self.post_clone)?,
            },
        })))
    }
}

/// Replaces the fields of `config` that `change` names; variables are replaced as a whole.
fn apply(config: &mut Value, change: Value) {
    match change {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "packages" | "network" | "lifecycle_hooks" => apply(&mut config[name], value),
                    _ => config[name] = value,
                }
            }
        }
        value => *config = value,
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

async fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let environments = print::all(client, "/environments").await?;
    if json {
        print::document(&json!({ "data": environments }));
        return Ok(());
    }
    let names = |value: &Value, field: &str| {
        let names = value.as_array().into_iter().flatten().filter_map(|one| one[field].as_str());
        names.collect::<Vec<_>>().join(",")
    };
    let row = |one: &Value| {
        vec![
            print::cell(&one["id"]),
            print::cell(&one["name"]),
            print::cell(&one["config"]["image"]),
            print::cell(&one["build"]["state"]),
            names(&one["config"]["network"]["allow"], "host"),
            names(&one["secrets"], "name"),
        ]
    };
    let rows: Vec<_> = environments.iter().map(row).collect();
    print::table(&["ENVIRONMENT", "NAME", "IMAGE", "BUILD", "ALLOWED HOSTS", "SECRETS"], &rows);
    Ok(())
}
