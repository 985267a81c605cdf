//! What an operator agrees with an organization: its prices and its balance.

use std::{fs, path::PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;

use crate::{
    app::Record,
    config::Database,
    domain::{OrgId, price::PriceList},
    store::{self, pool::PoolSizes},
};

#[derive(Debug, Subcommand)]
pub(super) enum Billing {
    /// Add to what an organization may spend; one without a bound has one from then on
    TopUp {
        /// Id of the organization, org_...
        org: OrgId,
        /// Micro-USD: 5000000 is five dollars; negative takes away
        #[arg(allow_negative_numbers = true)]
        micros: i64,
        #[command(flatten)]
        database: Database,
    },
    /// Take the bound away: an organization may spend what its caps allow
    Unlimited {
        /// Id of the organization, org_...
        org: OrgId,
        #[command(flatten)]
        database: Database,
    },
    /// Put a price list in front of the bundled one (docs/budgets.md has its form)
    SetPrices {
        /// Id of the organization, org_...
        org: OrgId,
        /// JSON file of the list; without one the bundled list holds alone
        file: Option<PathBuf>,
        #[command(flatten)]
        database: Database,
    },
}

/// Does it, on the database itself: no key of an organization may.
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
            eprintln!("{org} has no bound but its caps");
        }
        Billing::SetPrices { org, file, database } => {
            let prices = file.map(|file| read(&file)).transpose()?;
            let record = open(&database).await?;
            let done = record.operator().set_prices(org, prices.as_ref()).await;
            record.close().await?;
            known(org, done)?;
            let version = prices.map_or_else(|| PriceList::bundled().version.clone(), |list| list.version);
            eprintln!("turns of {org} that start from now on are priced by {version}");
        }
    }
    Ok(())
}

fn known<T>(org: OrgId, done: store::Result<T>) -> anyhow::Result<T> {
    done.with_context(|| format!("{org} was not changed; is there such an organization?"))
}

async fn open(database: &Database) -> anyhow::Result<Record> {
    Record::open(database, PoolSizes { app: 1, system: 1 }, &|line| eprintln!("{line}")).await
}

fn read(file: &PathBuf) -> anyhow::Result<PriceList> {
    let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let list: PriceList =
        serde_json::from_str(&text).with_context(|| format!("{} is no price list", file.display()))?;
    if list.version.is_empty() {
        bail!("{} needs a version that names it", file.display());
    }
    if let Some(name) = list.unbelievable() {
        bail!("{}: the price of {name} cannot be meant: prices are whole micro-USD", file.display());
    }
    Ok(list)
}
