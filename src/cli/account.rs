//! What an operator agrees with an organization: its prices.

use std::{fs, path::PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;

use crate::{
    app::Record,
    config::Database,
    domain::{TenantId, price::PriceList},
    store::pool::PoolSizes,
};

#[derive(Debug, Subcommand)]
pub(super) enum Account {
    /// Put a price list in front of the bundled one (docs/budgets.md has its form)
    SetPrices {
        /// Id of the organization, org_...
        org: TenantId,
        /// JSON file of the list; without one the bundled list holds alone
        file: Option<PathBuf>,
        #[command(flatten)]
        database: Database,
    },
}

/// Does it, on the database itself: no key of an organization may.
pub(super) async fn run(account: Account) -> anyhow::Result<()> {
    match account {
        Account::SetPrices { org, file, database } => {
            let prices = file.map(|file| read(&file)).transpose()?;
            let record = open(&database).await?;
            let done = record.store.set_prices(org, prices.as_ref()).await;
            record.close().await?;
            done.with_context(|| {
                format!("the prices of {org} could not be set; is there such an organization?")
            })?;
            let version = prices.map_or_else(|| PriceList::bundled().version.clone(), |list| list.version);
            eprintln!("turns of {org} that start from now on are priced by {version}");
        }
    }
    Ok(())
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
