//! Sources that a new session pins.

use super::refused::Refused;
use crate::{
    domain::{
        CredentialId,
        session::Created,
        source::{self, PinnedSource, Repository, RepositoryLocation},
    },
    journal::Unit,
    store,
};

/// Pins the sources of the session's sandbox. Of two sources with one name, the later list wins;
/// all lists override the environment's sources.
pub(crate) async fn pin_sources(
    unit: &mut Unit,
    created: &mut Created,
    over: &[&[Repository]],
) -> Result<(), Refused> {
    let below = created.environment.as_ref().map(|environment| environment.config.sources.clone());
    let named = over.iter().fold(below.unwrap_or_default(), |below, over| source::overridden_by(below, over));
    created.sources = sources(unit, &named).await?;
    Ok(())
}

/// Validates a list of sources and resolves the credential of each.
pub(crate) async fn sources(unit: &mut Unit, named: &[Repository]) -> Result<Vec<PinnedSource>, Refused> {
    let mut pinned = Vec::with_capacity(named.len());
    for repository in named {
        let wrong = |(field, words): (String, String)| Refused::Source(format!("`{field}` {words}"));
        let mut source = repository.pinned().map_err(wrong)?;
        let place = source::place(&source.url).map_err(|words| Refused::Source(words.to_owned()))?;
        source.credential_id = match &repository.credential {
            Some(named) => Some(own_credential(unit, named, &source.name, &place).await?),
            None => default_credential(unit, &place).await?,
        };
        pinned.push(source);
    }
    match source::together(&pinned) {
        None => Ok(pinned),
        Some(words) => Err(Refused::Source(format!("`sources` {words}"))),
    }
}

/// Returns the credential that a source names, if it matches the repository.
async fn own_credential(
    unit: &mut Unit,
    named: &str,
    name: &str,
    place: &RepositoryLocation,
) -> Result<CredentialId, Refused> {
    let credential = unit.tx().find_credential(named).await.map_err(|error| match error {
        store::Error::NotFound => Refused::Source(format!("{name}: there is no such credential")),
        error => error.into(),
    })?;
    let fits = credential.base_url.as_deref().is_some_and(|base| source::covers(base, place));
    if credential.provider != source::PROVIDER || !fits {
        let words = "the credential is not of the provider `git`, or its base_url is for another repository";
        return Err(Refused::Source(format!("{name}: {words}")));
    }
    Ok(credential.id)
}

/// Returns the organization's default credential, if it matches the repository.
async fn default_credential(
    unit: &mut Unit,
    place: &RepositoryLocation,
) -> Result<Option<CredentialId>, Refused> {
    let Some(id) = unit.tx().default_credential(source::PROVIDER).await? else { return Ok(None) };
    let credential = unit.tx().credential(id).await?;
    let fits = credential.base_url.as_deref().is_some_and(|base| source::covers(base, place));
    Ok(fits.then_some(id))
}
