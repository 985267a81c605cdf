//! `sojourn admin`: operator commands, executed directly on the database.

use anyhow::bail;
use clap::{Args, Subcommand};

use crate::{
    app::{Migration, Record, Startup},
    base::{ExposeSecret, limit::HOUSEKEEPING_BATCH},
    config::Database,
    domain::OrgId,
    store::{capacity::NodeUse, org::Share, pool::PoolSizes},
};

/// Operator commands.
#[derive(Debug, Subcommand)]
pub(super) enum Admin {
    /// Create an organization and print its API key once
    CreateOrg {
        /// Display name
        name: String,
        #[command(flatten)]
        database: Database,
    },
    /// List organizations, newest first
    ListOrgs {
        #[command(flatten)]
        database: Database,
    },
    /// List nodes with the resources that are reserved for sandboxes
    ListNodes {
        #[command(flatten)]
        database: Database,
    },
    /// Suspend an organization: its API calls are refused and no turn starts
    SuspendOrg(Named),
    /// Resume a suspended organization
    ResumeOrg(Named),
    /// Set the concurrency limit and scheduling weight of an organization
    SetLimits {
        #[command(flatten)]
        named: Named,
        /// Maximum concurrent turns; 0 uses the deployment's default
        #[arg(long, value_name = "TURNS")]
        concurrency: Option<u16>,
        /// Share of turns relative to an organization of weight 1, while both have queued work
        #[arg(long, value_name = "1-100", value_parser = clap::value_parser!(i32).range(1..=100))]
        weight: Option<i32>,
    },
    /// Delete an organization and all its data; only its audit log is retained
    DeleteOrg {
        #[command(flatten)]
        named: Named,
        /// The same id again, because this cannot be undone
        #[arg(long, value_name = "ID")]
        confirm: OrgId,
    },
    /// Re-encrypt all organization keys with SOJOURN_MASTER_KEY, replacing SOJOURN_MASTER_KEY_BEFORE
    RotateMasterKey {
        #[command(flatten)]
        database: Database,
    },
}

/// Selects one organization.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Organization ID
    #[arg(value_name = "ID")]
    organization: OrgId,
    #[command(flatten)]
    database: Database,
}

impl Admin {
    fn database(&self) -> &Database {
        match self {
            Self::CreateOrg { database, .. }
            | Self::ListOrgs { database }
            | Self::ListNodes { database }
            | Self::RotateMasterKey { database } => database,
            Self::SuspendOrg(named)
            | Self::ResumeOrg(named)
            | Self::SetLimits { named, .. }
            | Self::DeleteOrg { named, .. } => &named.database,
        }
    }
}

/// Runs a command and prints its result.
pub(super) async fn run(command: Admin) -> anyhow::Result<()> {
    let pools = PoolSizes { app: 1, system: 1 };
    let record = Record::open(
        command.database(),
        pools,
        Migration::IfOwner,
        Startup::system(&|line| eprintln!("{line}")),
    )
    .await?;
    let done = act(&record, &command).await;
    record.close().await?;
    done
}

async fn act(record: &Record, command: &Admin) -> anyhow::Result<()> {
    match command {
        Admin::CreateOrg { name, .. } => {
            let (org, key) = record.create_org(name).await?;
            eprintln!("organization {org} ({name}); its key is shown once:");
            println!("{}", key.expose_secret());
        }
        Admin::ListOrgs { .. } => {
            for organization in record.store.organizations().await? {
                println!("{} {} {}", organization.id, organization.state(), organization.name);
            }
        }
        Admin::ListNodes { .. } => {
            for node in record.store.nodes().await? {
                println!("{}", line_of(&node));
            }
        }
        Admin::SuspendOrg(named) => {
            record.operator().suspend(named.organization, true).await?;
            eprintln!("{} is suspended", named.organization);
        }
        Admin::ResumeOrg(named) => {
            record.operator().suspend(named.organization, false).await?;
            eprintln!("{} is resumed", named.organization);
        }
        Admin::SetLimits { named, concurrency, weight } => {
            let concurrency = concurrency.map(|turns| Some(i32::from(turns)).filter(|turns| *turns > 0));
            let share = Share { concurrency, weight: *weight };
            let now = record.operator().share(named.organization, share).await?;
            let turns = now
                .concurrency
                .map_or("unlimited (deployment's default)".to_owned(), |turns| turns.to_string());
            eprintln!("{}: concurrent turns: {turns}, weight {}", named.organization, now.weight);
        }
        Admin::DeleteOrg { named, confirm } => {
            if named.organization != *confirm {
                bail!("--confirm names another organization; nothing was deleted");
            }
            record.operator().delete(named.organization).await?;
            // The workers do it too, and finish it if this is interrupted.
            while record.store.purge_rows(named.organization, HOUSEKEEPING_BATCH).await? > 0 {}
            eprintln!("{confirm} is deleted; a worker removes its blobs and sandboxes at its next sweep");
        }
        Admin::RotateMasterKey { .. } => {
            let rewrapped = record.rotate_master_key().await?;
            eprintln!(
                "{rewrapped} organizations re-encrypted; SOJOURN_MASTER_KEY_BEFORE is no longer needed"
            );
        }
    }
    Ok(())
}

/// A node on one line.
fn line_of(node: &NodeUse) -> String {
    let state = match (node.is_alive, node.is_disk_low) {
        (false, _) => "silent",
        (true, true) => "disk nearly full",
        (true, false) => "alive",
    };
    let of = |reserved: i64, all: Option<i64>, unit: i64| {
        let all = all.map_or("?".to_owned(), |all| (all / unit).to_string());
        format!("{:.1}/{all}", reserved as f64 / unit as f64)
    };
    format!(
        "{} {state}, last heartbeat {}: {} sandboxes, {} CPUs, {} GiB reserved, {} sessions wait",
        node.node_id,
        node.seen_at,
        node.sandboxes,
        of(node.reserved_cpu_millis, node.cpu_millis, 1_000),
        of(node.reserved_memory_bytes, node.memory_bytes, 1 << 30),
        node.waiting
    )
}
