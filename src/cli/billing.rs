//! `sojourn admin` billing commands: prices and balance of an organization.

use std::{fs, path::PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;

use crate::{
    app::{Migration, Record, Startup},
    config::Database,
    domain::{OrgId, price::PriceList},
    store::{self, pool::PoolSizes},
};

#[derive(Debug, Subcommand)]
pub(super) enum Billing {
    /// Add to an organization's balance; one without a balance gets one
    TopUp {
        /// Organization ID, org_...
        org: OrgId,
        /// Amount in micro-USD: 5000000 is 5 USD; a negative amount is subtracted
        #[arg(allow_negative_numbers = true)]
        micros: i64,
        #[command(flatten)]
        database: Database,
    },
    /// Remove an organization's balance; only its spend caps apply
    Unlimited {
        /// Organization ID, org_...
        org: OrgId,
        #[command(flatten)]
        database: Database,
    },
    /// Override the bundled price list for an organization (format: docs/budgets.md)
    SetPrices {
        /// Organization ID, org_...
        org: OrgId,
        /// JSON file with the price list; omit to use only the bundled list
        file: Option<PathBuf>,
        #[command(flatten)]
        database: Database,
    },
}

/// Runs a command directly on the database; no API key of an organization permits this.
pub(super) async fn run(billing: Billing) -> anyhow::Result<()> {
    match billing {
        Billing::TopUp { org, micros, database } => {
            let record = open(&database).await?;
            let done = record.operator().top_up(org, micros).await;
            record.close().await?;
            eprintln!("{org} has {} micro-USD left", known(org, done)?);
        }
        Billing::Unlimited { org, database } => {
            let record = open(&database).await?;
            let done = record.operator().set_balance(org, None).await;
            record.close().await?;
            known(org, done)?;
            eprintln!("{org} has no balance limit; only its spend caps apply");
        }
        Billing::SetPrices { org, file, database } => {
            let prices = file.map(|file| read(&file)).transpose()?;
            let record = open(&database).await?;
            let done = record.operator().set_prices(org, prices.as_ref()).await;
            record.close().await?;
            known(org, done)?;
            let version = prices.map_or_else(|| PriceList::bundled().version.clone(), |list| list.version);
            eprintln!("new turns of {org} are priced by {version}");
        }
    }
    Ok(())
}

fn known<T>(org: OrgId, done: store::Result<T>) -> anyhow::Result<T> {
    done.with_context(|| format!("{org} was not changed; does the organization exist?"))
}

async fn open(database: &Database) -> anyhow::Result<Record> {
    Record::open(
        database,
        PoolSizes { app: 1, system: 1 },
        Migration::IfOwner,
        Startup::system(&|line| eprintln!("{line}")),
    )
    .await
}

fn read(file: &PathBuf) -> anyhow::Result<PriceList> {
    let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let list: PriceList =
        serde_json::from_str(&text).with_context(|| format!("{} is not a price list", file.display()))?;
    if list.version.is_empty() {
        bail!("{} needs a non-empty `version`", file.display());
    }
    if let Some(name) = list.implausible_price() {
        bail!("{}: the price of {name} is implausible: prices are whole micro-USD", file.display());
    }
    Ok(list)
}
