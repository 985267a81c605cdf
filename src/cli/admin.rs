//! `sojourn admin`: what only the operator may do, straight on the database.

use anyhow::bail;
use clap::{Args, Subcommand};

use crate::{
    app::Record,
    base::ExposeSecret,
    config::Database,
    domain::OrgId,
    store::{org::Share, pool::PoolSizes},
};

/// What an operator may do.
#[derive(Debug, Subcommand)]
pub(super) enum Admin {
    /// Make an organization and print its API key, once
    CreateOrg {
        /// What people call it
        name: String,
        #[command(flatten)]
        database: Database,
    },
    /// List organizations, oldest first
    ListOrgs {
        #[command(flatten)]
        database: Database,
    },
    /// Suspend an organization: no call of it is answered, no turn of it starts
    SuspendOrg(Named),
    /// Let a suspended organization go on
    ResumeOrg(Named),
    /// Say how much of an organization may run at once
    SetLimits {
        #[command(flatten)]
        named: Named,
        /// Turns that may run at once; 0 is the deployment's own number
        #[arg(long, value_name = "TURNS")]
        concurrency: Option<u16>,
        /// Turns that run for each one of an organization of weight 1, when both have work
        #[arg(long, value_name = "1-100", value_parser = clap::value_parser!(i32).range(1..=100))]
        weight: Option<i32>,
    },
    /// Destroy everything that an organization has; only its audit log stays
    DeleteOrg {
        #[command(flatten)]
        named: Named,
        /// The same id again, because nothing brings the data back
        #[arg(long, value_name = "ID")]
        confirm: OrgId,
    },
    /// Seal everything under SOJOURN_MASTER_KEY instead of SOJOURN_MASTER_KEY_BEFORE
    RotateMasterKey {
        #[command(flatten)]
        database: Database,
    },
}

/// One organization.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Its id
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
            | Self::RotateMasterKey { database } => database,
            Self::SuspendOrg(named)
            | Self::ResumeOrg(named)
            | Self::SetLimits { named, .. }
            | Self::DeleteOrg { named, .. } => &named.database,
        }
    }
}

/// Does it, and says what was done.
pub(super) async fn run(command: Admin) -> anyhow::Result<()> {
    let pools = PoolSizes { app: 1, system: 1 };
    let record = Record::open(command.database(), pools, &|line| eprintln!("{line}")).await?;
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
        Admin::SuspendOrg(named) => {
            record.operator().suspend(named.organization, true).await?;
            eprintln!("{} is suspended", named.organization);
        }
        Admin::ResumeOrg(named) => {
            record.operator().suspend(named.organization, false).await?;
            eprintln!("{} goes on", named.organization);
        }
        Admin::SetLimits { named, concurrency, weight } => {
            let concurrency = concurrency.map(|turns| Some(i32::from(turns)).filter(|turns| *turns > 0));
            let share = Share { concurrency, weight: *weight };
            let now = record.operator().share(named.organization, share).await?;
            let turns = now
                .concurrency
                .map_or("as many as the deployment allows".to_owned(), |turns| turns.to_string());
            eprintln!("{}: {turns} turns at once, weight {}", named.organization, now.weight);
        }
        Admin::DeleteOrg { named, confirm } => {
            if named.organization != *confirm {
                bail!("--confirm names another organization; nothing was deleted");
            }
            record.operator().delete(named.organization).await?;
            eprintln!("{} is deleted; its blobs and sandboxes go with the next round of a worker", confirm);
        }
        Admin::RotateMasterKey { .. } => {
            let rewrapped = record.rotate_master_key().await?;
            eprintln!(
                "{rewrapped} organizations were sealed anew; SOJOURN_MASTER_KEY_BEFORE is not needed any more"
            );
        }
    }
    Ok(())
}
