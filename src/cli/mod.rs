//! The command line: what a person types, and what it does.
//!
//! `serve` and `admin` are the process itself; everything that concerns a session
//! talks HTTP, like any other client.

mod admin;
mod agent;
mod bench;
mod billing;
mod client;
mod credential;
mod doctor;
mod environment;
mod first_session;
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

/// Durable agent sessions: a service on which agents work for minutes or months.
///
/// `sojourn serve` is the whole service in one process. On an empty machine it
/// starts a database of its own, makes a first organization with an API key, and
/// prints a curl line to begin with.
#[derive(Debug, Parser)]
#[command(name = "sojourn", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service, or one of its parts
    Serve(Box<Settings>),
    /// Create, follow, steer and end sessions
    Session {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: session::Session,
    },
    /// Put load on a running service and say how it does
    Bench {
        #[command(flatten)]
        connection: client::Connection,
        #[command(flatten)]
        load: bench::Load,
    },
    /// Create, change and compare agents
    Agent {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: agent::Agent,
    },
    /// Say what an agent does at stated times
    Schedule {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: schedule::Schedule,
    },
    /// Say who else starts sessions of an agent: GitHub, or whoever signs
    Trigger {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: trigger::Trigger,
    },
    /// Store and rotate keys of model providers
    Credential {
        #[command(flatten)]
        connection: client::Connection,
        #[command(subcommand)]
        command: credential::Credential,
    },
    /// Say what sandboxes are and may reach
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
    /// Say who is told of events, see what was sent, and receive it here
    Webhook {
        #[command(flatten)]
        connection: client::Connection,
        #[command(flatten)]
        command: webhook::Webhook,
    },
    /// Sum up what was used and what it costs
    Usage {
        #[command(flatten)]
        connection: client::Connection,
        #[command(flatten)]
        wanted: report::Usage,
    },
    /// Show what was done to the organization, and by whom
    Audit {
        #[command(flatten)]
        connection: client::Connection,
        #[command(flatten)]
        wanted: report::Audit,
    },
    /// Look whether this machine has what the service needs, and say what to do
    Doctor {
        #[command(flatten)]
        settings: Box<Settings>,
        /// Print JSON
        #[arg(long = "json")]
        as_json: bool,
    },
    /// Print completions for a shell, to be sourced
    Completions { shell: clap_complete::Shell },
    /// Look after organizations
    #[command(subcommand)]
    Admin(Admin),
    /// Print the description of the API (openapi.yaml)
    Openapi,
}

#[derive(Debug, Subcommand)]
enum Admin {
    #[command(flatten)]
    Organization(admin::Admin),
    #[command(flatten)]
    Billing(billing::Billing),
}

/// Does what the command line says; the exit code is the command's.
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
            // A reader that has had enough is no fault.
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
