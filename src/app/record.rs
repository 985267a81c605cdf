//! The database of a process: opened, migrated, with its first organization.

use std::{fs, io, path::Path, sync::Arc};

use anyhow::{Context, bail};
use uuid::Uuid;

use super::{blobs, clock, data_dir};
use crate::{
    base::{
        ExposeSecret, Origin, SecretString, clock::SteeredClock, limit::CLOCK_DIFFERENCE_MAX, seal::MasterKey,
    },
    config::{self, Settings},
    domain::OrgId,
    store::{
        Store, Urls,
        embedded::Embedded,
        migrate,
        operator::Operator,
        pool::PoolSizes,
        start::{StartWait, exclusively},
    },
};

/// The database of a process, migrated and checked.
pub struct Record {
    pub store: Store,
    pub origin: Origin,
    /// The clock of `origin`.
    pub(super) clock: Arc<SteeredClock>,
    embedded: Option<Embedded>,
    urls: Urls,
}

/// The process that migrates the schema of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// This process, as the owner.
    Own,
    /// This process if it knows the owner: by a URL of its own, or because it starts the server. Otherwise it
    /// waits until the schema is there.
    IfOwner,
}

/// The source of time and ids of a process, and the receiver of messages about its start.
#[derive(Clone)]
pub struct Startup<'a> {
    pub origin: Origin,
    pub says: &'a (dyn Fn(&str) + Send + Sync),
}

impl<'a> Startup<'a> {
    /// Uses the clock and the random generator of this machine.
    pub fn system(says: &'a (dyn Fn(&str) + Send + Sync)) -> Self {
        Self { origin: Origin::system(), says }
    }
}

impl Record {
    /// Opens the database; starts the embedded one if no URL is configured.
    pub async fn open(
        database: &config::Database,
        pools: PoolSizes,
        migration: Migration,
        Startup { origin, says }: Startup<'_>,
    ) -> anyhow::Result<Self> {
        let (origin, clock) = origin.steered(CLOCK_DIFFERENCE_MAX);
        let dir = data_dir::prepared(&database.data_dir, &origin)?;
        let wait = StartWait { limit: database.database_wait_seconds, says };
        let mut master = data_dir::master_key(database, &dir, &origin)?;
        if let Some(text) = &database.master_key_before {
            master = master.replacing(&data_dir::parsed(text, "SOJOURN_MASTER_KEY_BEFORE")?);
        }
        let (urls, embedded) = match &database.database_url {
            Some(app) => {
                let owner = database.owner_database_url.clone().unwrap_or_else(|| app.clone());
                let system = database.system_database_url.clone().unwrap_or_else(|| app.clone());
                (Urls { owner, app: app.clone(), system }, None)
            }
            None => {
                let embedded = Embedded::start(&dir, &origin, says).await?;
                (embedded.urls(), Some(embedded))
            }
        };
        let is_owner = embedded.is_some() || database.owner_database_url.is_some();
        let ready = if migration == Migration::Own || is_owner {
            migrate::migrate(&urls, master, wait).await
        } else {
            migrate::check(&urls, master, wait).await
        };
        let master = match ready {
            Ok(master) => master,
            Err(error) => {
                if let Some(embedded) = embedded {
                    embedded.stop().await.ok();
                }
                return Err(error.into());
            }
        };
        let store = Store::open(&urls, pools, master)?;
        let store = match &database.listen_database_url {
            Some(url) => store.listening_at(url)?,
            None => store,
        };
        clock::check(&store, &clock).await;
        Ok(Self { store, origin, clock, embedded, urls })
    }

    /// Closes the connections, and stops the embedded database with its last user.
    pub async fn close(self) -> anyhow::Result<()> {
        self.store.close().await;
        if let Some(embedded) = self.embedded {
            embedded.stop().await?;
        }
        Ok(())
    }

    /// Operator access to this database.
    pub fn operator(&self) -> Operator<'_> {
        self.store.operator(&self.origin)
    }

    /// Creates an organization with one key with all scopes; the key is shown once.
    pub async fn create_org(&self, name: &str) -> anyhow::Result<(OrgId, SecretString)> {
        let org: OrgId = self.origin.id();
        let secret = self.operator().create(org, name).await?;
        Ok((org, secret.into()))
    }

    /// Re-encrypts all organizations' keys with the current master key; returns the number of organizations
    /// that used the previous one. Idempotent, and safe while processes with either key run.
    pub async fn rotate_master_key(&self) -> anyhow::Result<usize> {
        let rewrapped = self.operator().rewrap().await?;
        migrate::replace_master_key(&self.urls.owner, self.store.master(), &self.origin).await?;
        Ok(rewrapped)
    }

    async fn create_first_org(&self, file: &Path) -> anyhow::Result<OrgId> {
        // Another process may have created it while this one waited.
        if let Some(org) = self.store.first_org().await? {
            return Ok(org);
        }
        let (org, secret) = self.create_org("default").await?;
        if !data_dir::write_secret(file, secret.expose_secret(), &self.origin)? {
            bail!("{} has the key of another database: move it away", file.display());
        }
        Ok(org)
    }

    /// Creates the first organization if there is none, with the keys in the settings and the data directory.
    pub(super) async fn bootstrap(
        &self,
        settings: &Settings,
        says: &(dyn Fn(&str) + Send + Sync),
    ) -> anyhow::Result<Option<SecretString>> {
        let file = settings.database.data_dir.join("api-key");
        let org = match self.store.first_org().await? {
            Some(org) => org,
            None => {
                let wait = StartWait { limit: settings.database.database_wait_seconds, says };
                exclusively(&self.urls.system, wait, async || self.create_first_org(&file).await).await?
            }
        };
        if let Some(secret) = &settings.bootstrap_api_key {
            self.operator().grant(org, "bootstrap key", secret).await?;
            return Ok(Some(secret.clone().into()));
        }
        match fs::read_to_string(&file) {
            Ok(secret) => Ok(Some(secret.trim().to_owned().into())),
            // Another process with its own data directory created the organization.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", file.display())),
        }
    }
}

/// Creates and migrates the schema, and stops the embedded database again.
pub async fn migrate(database: &config::Database, says: &(dyn Fn(&str) + Send + Sync)) -> anyhow::Result<()> {
    let pools = PoolSizes { app: 1, system: 1 };
    Record::open(database, pools, Migration::Own, Startup::system(says)).await?.close().await
}

/// Makes the blob store of the settings the deployment's. Returns false if it was already.
pub async fn adopt_blob_store(
    settings: &Settings,
    says: &(dyn Fn(&str) + Send + Sync),
) -> anyhow::Result<bool> {
    let pools = PoolSizes { app: 1, system: 1 };
    let record = Record::open(&settings.database, pools, Migration::IfOwner, Startup::system(says)).await?;
    let adopted = blobs::adopt(settings, &record.store, Uuid::from_bytes(record.origin.bytes())).await;
    let closed = record.close().await;
    let adopted = adopted?;
    closed?;
    Ok(adopted)
}

/// Connects to an existing database, without starting or migrating it.
pub fn visit(database: &config::Database, url: &str) -> anyhow::Result<Store> {
    let master = MasterKey::generate(&Origin::system());
    let urls = Urls {
        owner: url.to_owned(),
        app: url.to_owned(),
        system: database.system_database_url.clone().unwrap_or_else(|| url.to_owned()),
    };
    Ok(Store::open(&urls, PoolSizes { app: 1, system: 1 }, master)?)
}
