//! `sojourn admin`: what only the operator may do, straight on the database.

use anyhow::bail;
use clap::{Args, Subcommand};

use crate::{
    app::Record,
    base::ExposeSecret,
    config::Database,
    domain::TenantId,
    store::{pool::PoolSizes, tenant::Organization},
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
    /// Destroy everything that an organization has; only its audit log stays
    DeleteOrg {
        #[command(flatten)]
        named: Named,
        /// The same id again, because nothing brings the data back
        #[arg(long, value_name = "ID")]
        confirm: TenantId,
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
    organization: TenantId,
    #[command(flatten)]
    database: Database,
}

impl Admin {
    fn database(&self) -> &Database {
        match self {
            Self::CreateOrg { database, .. }
            | Self::ListOrgs { database }
            | Self::RotateMasterKey { database } => database,
            Self::SuspendOrg(named) | Self::ResumeOrg(named) | Self::DeleteOrg { named, .. } => {
                &named.database
            }
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
            let (tenant, key) = record.create_org(name).await?;
            eprintln!("organization {tenant} ({name}); its key is shown once:");
            println!("{}", key.expose_secret());
        }
        Admin::ListOrgs { .. } => {
            for organization in record.store.organizations().await? {
                println!("{} {} {}", organization.id, state(&organization), organization.name);
            }
        }
        Admin::SuspendOrg(named) => {
            record.suspend_org(named.organization, true).await?;
            eprintln!("{} is suspended", named.organization);
        }
        Admin::ResumeOrg(named) => {
            record.suspend_org(named.organization, false).await?;
            eprintln!("{} goes on", named.organization);
        }
        Admin::DeleteOrg { named, confirm } => {
            if named.organization != *confirm {
                bail!("--confirm names another organization; nothing was deleted");
            }
            record.delete_org(named.organization).await?;
            eprintln!("{} is deleted; its blobs and boxes go with the next round of a worker", confirm);
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

fn state(organization: &Organization) -> &'static str {
    match (organization.deleted_at, organization.suspended_at) {
        (Some(_), _) => "deleted",
        (None, Some(_)) => "suspended",
        (None, None) => "active",
    }
}
