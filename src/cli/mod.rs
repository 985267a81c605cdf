//! The command line.
//!
//! `serve`, `migrate` and `admin` run in this process. All other commands call the HTTP API, like any other client.

mod admin;
mod agent;
mod bench;
mod billing;
mod client;
mod credential;
mod doctor;
mod environment;
mod file;
mod first_session;
mod input;
mod invoke_token;
mod key;
mod limits;
mod print;
mod production;
mod report;
mod schedule;
mod serve;
mod session;
mod settings;
mod skill;
mod source;
mod trigger;
mod turn_settings;
mod webhook;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::{
    app,
    config::{Database, Settings},
    http,
};

/// Durable agent sessions: a service that runs agents for minutes or months.
///
/// `sojourn serve` runs the whole service in one process. On a machine without a configuration it starts its
/// own database, creates a first organization with an API key, and prints a curl command to try.
#[derive(Debug, Parser)]
#[command(name = "sojourn", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service, or one of its roles
    Serve(Box<Settings>),
    /// Create, follow, steer and end sessions
    Session(Remote<session::Session>),
    /// Run a load test against a running service
    Bench(RemoteArgs<bench::Load>),
    /// Manage agents, their revisions and invoke tokens
    Agent(Remote<agent::Agent>),
    /// Manage schedules that start sessions at given times
    Schedule(Remote<schedule::Schedule>),
    /// Manage triggers: inbound webhooks that start sessions of an agent
    Trigger(Remote<trigger::Trigger>),
    /// Manage credentials of model providers and repositories
    Credential(Remote<credential::Credential>),
    /// Manage sandbox environments: image, resources, network policy, secrets
    Environment(Remote<environment::Environment>),
    /// Upload, list, read and delete files for messages
    File(Remote<file::File>),
    /// Upload, list, read and delete skills: folders with instructions that agents read
    Skill(Remote<skill::Skill>),
    /// Create, rotate and revoke API keys
    Key(Remote<key::Key>),
    /// Manage webhooks, inspect deliveries, receive them locally
    Webhook(RemoteArgs<webhook::Webhook>),
    /// Show usage and cost
    Usage(RemoteArgs<report::Usage>),
    /// Show the organization's audit log
    Audit(RemoteArgs<report::Audit>),
    /// Create or upgrade the schema of the database, as its owner
    Migrate {
        #[command(flatten)]
        database: Box<Database>,
    },
    /// Use the configured blob store from now on, after the blobs were moved to it
    AdoptBlobStore {
        #[command(flatten)]
        settings: Box<Settings>,
    },
    /// End the sandboxes of a service on this machine once it is gone; started by the service
    #[command(name = serve::WATCH_SANDBOXES, hide = true)]
    WatchSandboxes {
        /// Process id of the service; its parent
        #[arg(long = serve::SERVICE_PID)]
        service_pid: u32,
        #[command(flatten)]
        settings: Box<Settings>,
    },
    /// Check that this machine meets the requirements
    Doctor {
        #[command(flatten)]
        settings: Box<Settings>,
        /// Check also what a deployment for untrusted organizations needs
        #[arg(long)]
        production: bool,
        /// Print JSON
        #[arg(long = "json")]
        as_json: bool,
    },
    /// Print a shell completion script
    Completions { shell: clap_complete::Shell },
    /// Manage organizations directly on the database
    #[command(subcommand)]
    Admin(Admin),
    /// Print the OpenAPI description (openapi.yaml)
    Openapi,
}

/// A group of commands that call a service.
#[derive(Debug, Args)]
#[group(skip)]
struct Remote<C: Subcommand> {
    #[command(flatten)]
    connection: client::Connection,
    #[command(subcommand)]
    command: C,
}

/// A single command that calls a service.
#[derive(Debug, Args)]
#[group(skip)]
struct RemoteArgs<C: Args> {
    #[command(flatten)]
    connection: client::Connection,
    #[command(flatten)]
    command: C,
}

#[derive(Debug, Subcommand)]
enum Admin {
    #[command(flatten)]
    Organization(admin::Admin),
    #[command(flatten)]
    Billing(billing::Billing),
}

/// Runs the parsed command; returns the exit code.
pub async fn run(cli: Cli) -> anyhow::Result<u8> {
    match cli.command {
        Command::Serve(settings) => serve::run(*settings).await?,
        Command::Session(of) => return session::run(of.command, &of.connection).await,
        Command::Bench(of) => return bench::run(of.command, &of.connection).await,
        Command::Agent(of) => agent::run(of.command, &of.connection).await?,
        Command::Schedule(of) => schedule::run(of.command, &of.connection).await?,
        Command::Trigger(of) => trigger::run(of.command, &of.connection).await?,
        Command::Credential(of) => credential::run(of.command, &of.connection).await?,
        Command::Environment(of) => environment::run(of.command, &of.connection).await?,
        Command::File(of) => file::run(of.command, &of.connection).await?,
        Command::Skill(of) => skill::run(of.command, &of.connection).await?,
        Command::Key(of) => key::run(of.command, &of.connection).await?,
        Command::Webhook(of) => return webhook::run(of.command, &of.connection).await,
        Command::Usage(of) => report::usage(of.command, &of.connection).await?,
        Command::Audit(of) => report::audit(of.command, &of.connection).await?,
        Command::Migrate { database } => {
            app::migrate(&database, &|line| eprintln!("{line}")).await?;
            eprintln!("the schema is up to date");
        }
        Command::AdoptBlobStore { settings } => {
            let is_new = app::adopt_blob_store(&settings, &|line| eprintln!("{line}")).await?;
            let outcome = if is_new { "is" } else { "was already" };
            eprintln!("the configured blob store {outcome} the deployment's");
        }
        Command::WatchSandboxes { service_pid, settings } => {
            app::watch_sandboxes(&settings, service_pid).await?;
        }
        Command::Doctor { settings, production, as_json } => {
            return doctor::run(&settings, production, as_json).await;
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sojourn", &mut script);
            // `line` handles a reader that closes the pipe.
            print::line(String::from_utf8_lossy(&script).trim_end());
        }
        Command::Admin(Admin::Organization(command)) => admin::run(command).await?,
        Command::Admin(Admin::Billing(command)) => billing::run(command).await?,
        Command::Openapi => print!("{}", http::document()),
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_can_be_parsed() {
        Cli::command().debug_assert();
    }
}
