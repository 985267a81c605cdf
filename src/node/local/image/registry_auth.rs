//! Credentials for registries, from the file that the operator names.
//!
//! Called by `registry` at each pull, so a changed file needs no restart. The format is that of Docker's
//! `config.json`, of which only `auths` is read: programs that store credentials elsewhere are not run.

use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use oci_client::{Reference, secrets::RegistryAuth};
use serde::Deserialize;

use crate::base::limit::REGISTRY_AUTH_FILE_BYTES_MAX;

/// Key of Docker's registry in files that `docker login` writes.
const DOCKER: (&str, &str) = ("docker.io", "https://index.docker.io/v1/");

#[derive(Deserialize)]
struct Contents {
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    /// Base64 of user name, colon and password.
    auth: Option<String>,
}

/// Finds the credentials for the registry of a reference; anonymous if the file has none for it.
///
/// # Errors
/// A sentence without a secret: the file or the entry of the registry cannot be used.
pub(super) fn find(file: Option<&Path>, reference: &Reference) -> Result<RegistryAuth, String> {
    match file.map(read).transpose()? {
        Some(auths) => of(auths, reference.registry()),
        None => Ok(RegistryAuth::Anonymous),
    }
}

/// Checks that the file can be read.
///
/// # Errors
/// As [`find`].
pub(crate) fn check(file: &Path) -> Result<(), String> {
    read(file).map(drop)
}

fn read(path: &Path) -> Result<BTreeMap<String, Entry>, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        let mut file = file.take(REGISTRY_AUTH_FILE_BYTES_MAX);
        file.read_to_string(&mut text)
    });
    read.map_err(|error| format!("the file SOJOURN_REGISTRY_AUTH_FILE cannot be read: {error}"))?;
    // The message of the parser could quote a secret.
    let contents: Contents = serde_json::from_str(&text)
        .map_err(|_| "the file SOJOURN_REGISTRY_AUTH_FILE is not JSON with `auths`".to_owned())?;
    Ok(contents.auths)
}

fn of(mut auths: BTreeMap<String, Entry>, registry: &str) -> Result<RegistryAuth, String> {
    let docker = (registry == DOCKER.0).then_some(DOCKER.1);
    let keys = [Some(registry.to_owned()), Some(format!("https://{registry}")), docker.map(str::to_owned)];
    let Some(entry) = keys.into_iter().flatten().find_map(|key| auths.remove(&key)) else {
        return Ok(RegistryAuth::Anonymous);
    };
    let decoded = entry.auth.and_then(|auth| STANDARD.decode(auth.trim()).ok());
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    match text.as_deref().and_then(|text| text.split_once(':')) {
        Some((user, password)) => Ok(RegistryAuth::Basic(user.to_owned(), password.to_owned())),
        None => {
            Err("SOJOURN_REGISTRY_AUTH_FILE has no `auth` of user and password for its registry".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_those_of_the_registry_and_of_no_other() {
        let of = |registry: &str| {
            let auth = STANDARD.encode("user:pass:word");
            let text = format!(
                r#"{{"auths": {{"registry.example:5000": {{"auth": "{auth}"}}, "https://other.example": {{"auth": "{auth}"}},
                    "https://index.docker.io/v1/": {{"auth": "{auth}"}}, "stored.example": {{}},
                    "broken.example": {{"auth": "no base64"}}}}, "credsStore": "desktop"}}"#
            );
            let contents: Contents = serde_json::from_str(&text).unwrap();
            super::of(contents.auths, registry)
        };
        let found = Ok(RegistryAuth::Basic("user".to_owned(), "pass:word".to_owned()));
        for registry in ["registry.example:5000", "other.example", "docker.io"] {
            assert_eq!(of(registry), found, "{registry}");
        }
        for registry in ["registry.example", "example", "another.example"] {
            assert_eq!(of(registry), Ok(RegistryAuth::Anonymous), "{registry}");
        }
        for registry in ["stored.example", "broken.example"] {
            assert!(of(registry).is_err_and(|reason| !reason.contains("base64")), "{registry}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_reported_without_its_content() {
        let ground = tempfile::tempdir().unwrap();
        let file = ground.path().join("auth.json");
        assert!(check(&file).unwrap_err().contains("cannot be read"));
        std::fs::write(&file, r#"{"auths": {"a": {"auth": ["secret"]}}}"#).unwrap();
        let refused = check(&file).unwrap_err();
        assert!(refused.contains("is not JSON") && !refused.contains("secret"), "{refused}");
        std::fs::write(&file, r#"{"auths": {}}"#).unwrap();
        check(&file).unwrap();
    }
}
