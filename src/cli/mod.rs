//! The command line.
//!
//! `serve` and `admin` run in this process. All other commands call the HTTP API, like any other client.

mod admin;
mod agent;
mod bench;
mod billing;
mod client;
mod credential;
mod doctor;
mod environment;
mod first_session;
mod invoke_token;
mod key;
mod print;
mod report;
mod schedule;
mod serve;
mod session;
mod settings;
mod source;
mod trigger;
mod webhook;

use clap::{CommandFactory, Parser, Subcommand};

use crate::{config::Settings, http};

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
    Session {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: session::Session,
    },
    /// Run a load test against a running service
    Bench {
        #[command(flatten)]
        connection: client::Connection,
        #[command(flatten)]
        load: bench::Load,
    },
    /// Manage agents, their revisions and invoke tokens
    Agent {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: agent::Agent,
    },
    /// Manage schedules that start sessions at given times
    Schedule {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: schedule::Schedule,
    },
    /// Manage triggers: inbound webhooks that start sessions of an agent
    Trigger {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: trigger::Trigger,
    },
    /// Manage credentials of model providers and repositories
    Credential {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: credential::Credential,
    },
    /// Manage sandbox environments: image, resources, network policy, secrets
    Environment {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: environment::Environment,
    },
    /// Create, rotate and revoke API keys
    Key {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: key::Key,
    },
    /// Manage webhooks, inspect deliveries, receive them locally
    Webhook {
        #[command(flatten)]
        connection: client::Connection,
        #[command(flatten)]
        command: webhook::Webhook,
    },
    /// Show usage and cost
    Usage {
        #[command(flatten)]
        connection: client::Connection,
        #[command(flatten)]
        wanted: report::Usage,
    },
    /// Show the organization's audit log
    Audit {
        #[command(flatten)]
        connection: client::Connection,
        #[command(flatten)]
        wanted: report::Audit,
    },
    /// Check that this machine meets the requirements
    Doctor {
        #[command(flatten)]
        settings: Box<Settings>,
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
        Command::Session { connection, command } => return session::run(command, &connection).await,
        Command::Bench { connection, load } => return bench::run(load, &connection).await,
        Command::Agent { connection, command } => agent::run(command, &connection).await?,
        Command::Schedule { connection, command } => schedule::run(command, &connection).await?,
        Command::Trigger { connection, command } => trigger::run(command, &connection).await?,
        Command::Credential { connection, command } => credential::run(command, &connection).await?,
        Command::Environment { connection, command } => environment::run(command, &connection).await?,
        Command::Key { connection, command } => key::run(command, &connection).await?,
        Command::Webhook { connection, command } => return webhook::run(command, &connection).await,
        Command::Usage { connection, wanted } => report::usage(wanted, &connection).await?,
        Command::Audit { connection, wanted } => report::audit(wanted, &connection).await?,
        Command::Doctor { settings, as_json } => return doctor::run(&settings, as_json).await,
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
