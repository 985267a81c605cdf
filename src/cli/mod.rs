//! The command line: what a person types, and what it does.
//!
//! `serve` and `admin` are the process itself; everything that concerns a session
//! talks HTTP, like any other client.

mod account;
mod client;
mod first_session;
mod print;
mod serve;
mod session;

use clap::{Parser, Subcommand};

use crate::{
    app::Record,
    base::ExposeSecret,
    config::{Database, Settings},
    http,
    store::pool::PoolSizes,
};

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
    /// Look after organizations
    #[command(subcommand)]
    Admin(Admin),
    /// Print the description of the API (openapi.yaml)
    Openapi,
}

#[derive(Debug, Subcommand)]
enum Admin {
    /// Make an organization and print its API key, once
    CreateOrg {
        /// What people call it
        name: String,
        #[command(flatten)]
        database: Database,
    },
    #[command(flatten)]
    Account(account::Account),
}

/// Does what the command line says; the exit code is the command's.
pub async fn run(cli: Cli) -> anyhow::Result<u8> {
    match cli.command {
        Command::Serve(settings) => serve::run(*settings).await?,
        Command::Session { connection, command } => return session::run(command, &connection).await,
        Command::Admin(Admin::CreateOrg { name, database }) => create_org(&name, &database).await?,
        Command::Admin(Admin::Account(command)) => account::run(command).await?,
        Command::Openapi => print!("{}", http::document()),
    }
    Ok(0)
}

async fn create_org(name: &str, database: &Database) -> anyhow::Result<()> {
    let record = Record::open(database, PoolSizes { app: 1, system: 1 }, &|line| eprintln!("{line}")).await?;
    let created = record.create_org(name).await;
    record.close().await?;
    let (tenant, key) = created?;
    eprintln!("organization {tenant} ({name}); its key is shown once:");
    println!("{}", key.expose_secret());
    Ok(())
}
