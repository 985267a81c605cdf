//! The blob store of the settings, which must be the one that all processes of the deployment use.

use anyhow::{Context, bail};
use uuid::Uuid;

use crate::{blob::Blobs, config::Settings, store::Store};

/// Opens the blob store. Refuses one that is not the deployment's: the blobs of the others would be missing.
///
/// A store that does not answer is accepted: a process can start while its bucket is away.
pub(super) async fn open(settings: &Settings, store: &Store, new_id: Uuid) -> anyhow::Result<Blobs> {
    let blobs = open_unchecked(settings)?;
    let wanted = store.blob_store_id().await?;
    let found = match (blobs.id().await, wanted) {
        (Ok(None), None) => blobs.create_id(new_id).await.map(Some),
        (found, _) => found,
    };
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "starting without the blob store");
            return Ok(blobs);
        }
    };
    let wanted = match (wanted, found) {
        (None, Some(found)) => Some(store.claim_blob_store(found).await?),
        (wanted, _) => wanted,
    };
    if wanted != found {
        bail!(
            "{} is not the blob store of this deployment: mount the same directory on every machine or set \
             SOJOURN_BLOB_STORE to the same bucket; after moving the blobs here, run `sojourn adopt-blob-store`",
            place(settings)
        );
    }
    Ok(blobs)
}

/// Makes the blob store of the settings the deployment's. Returns false if it was already.
pub(super) async fn adopt(settings: &Settings, store: &Store, new_id: Uuid) -> anyhow::Result<bool> {
    let blobs = open_unchecked(settings)?;
    let found = blobs.id().await?;
    let wanted = match store.blob_store_id().await? {
        Some(id) => id,
        None => store.claim_blob_store(found.unwrap_or(new_id)).await?,
    };
    if found == Some(wanted) {
        return Ok(false);
    }
    blobs.replace_id(wanted).await?;
    Ok(true)
}

fn open_unchecked(settings: &Settings) -> anyhow::Result<Blobs> {
    let data_dir = &settings.database.data_dir;
    let Some(url) = &settings.blob_store else {
        return Ok(Blobs::local(&data_dir.join("blobs"))?);
    };
    let options: Vec<_> = std::env::vars().filter(|(name, _)| name.starts_with("AWS_")).collect();
    Blobs::s3(url, &options, &data_dir.join("scratch")).context("SOJOURN_BLOB_STORE")
}

/// The store, for an error message.
fn place(settings: &Settings) -> String {
    settings
        .blob_store
        .clone()
        .unwrap_or_else(|| settings.database.data_dir.join("blobs").display().to_string())
}
