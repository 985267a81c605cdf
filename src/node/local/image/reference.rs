//! References to images of registries: the files `NAME.ref` of the operator's directory.
//!
//! Called by `source`, which finds them, and by `registry`, which pulls their images. A reference names an image by
//! digest. A tag can change, so that two nodes would have different images of one name.

use std::{fs::File, io::Read, net::IpAddr, path::Path};

use oci_client::Reference;

use crate::base::limit::IMAGE_REFERENCE_BYTES_MAX;

/// Suffix of a file that contains a reference.
pub(super) const SUFFIX: &str = ".ref";
/// Scheme of a digest; images that name their content by another one are refused.
const SHA256: &str = "sha256:";
/// Hexadecimal digits of a digest that are the version of its image.
const VERSION_DIGITS: usize = 12;

/// Reads the reference in a file.
///
/// # Errors
/// A sentence about the file without its path: it cannot be read, or does not name an image by digest.
pub(super) fn read(path: &Path) -> Result<Reference, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        let mut file = file.take(IMAGE_REFERENCE_BYTES_MAX);
        file.read_to_string(&mut text)
    });
    read.map_err(|error| format!("the reference cannot be read: {error}"))?;
    parse(text.trim())
}

fn parse(text: &str) -> Result<Reference, String> {
    if text.contains("://") {
        return Err(
            "the reference must not begin with a scheme: registries are reached over https".to_owned()
        );
    }
    let form = "it must be one line REGISTRY/REPOSITORY@sha256:DIGEST";
    let parsed: Reference = text.parse().map_err(|_| format!("the reference is malformed: {form}"))?;
    // The parser adds the registry of Docker to a name that has none.
    if !text.strip_prefix(parsed.registry()).is_some_and(|rest| rest.starts_with('/')) {
        return Err(format!("the reference names no registry: {form}"));
    }
    if parsed.digest().is_none() {
        return Err(format!("the reference has no digest, and a tag can change: {form}"));
    }
    if parsed.tag().is_some() {
        return Err(format!("the reference has a tag beside its digest: {form}"));
    }
    let digest = parsed.digest().and_then(|digest| digest.strip_prefix(SHA256)).unwrap_or_default();
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digest.len() != 64 || !digest.bytes().all(is_digit) {
        return Err(format!("the digest of the reference is not a SHA-256: {form}"));
    }
    Ok(parsed)
}

/// Version of the image: the first digits of its digest.
pub(super) fn version(reference: &Reference) -> String {
    let digits = reference.digest().and_then(|digest| digest.strip_prefix(SHA256)).unwrap_or_default();
    digits.chars().take(VERSION_DIGITS).collect()
}

/// Whether a registry is reached over plain http: only one on this machine.
pub(super) fn is_plain(registry: &str) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => registry,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_names_a_registry_a_repository_and_a_digest() {
        let digest = "0123456789abcdef".repeat(4);
        let text = format!("registry.example:5000/team/tools@sha256:{digest}");
        let parsed = parse(&text).unwrap();
        assert_eq!((parsed.registry(), parsed.repository()), ("registry.example:5000", "team/tools"));
        assert_eq!(version(&parsed), "0123456789ab");
        for (text, why) in [
            ("registry.example/tools:1.0".to_owned(), "no digest"),
            ("registry.example/tools".to_owned(), "no digest"),
            (format!("registry.example/tools:1.0@sha256:{digest}"), "a tag beside"),
            (format!("tools@sha256:{digest}"), "names no registry"),
            (format!("team/tools@sha256:{digest}"), "names no registry"),
            (format!("https://registry.example/tools@sha256:{digest}"), "scheme"),
            (format!("http://127.0.0.1:5000/tools@sha256:{digest}"), "scheme"),
            (format!("registry.example/../tools@sha256:{digest}"), "malformed"),
            (format!("registry.example/tools@sha256:{}", &digest[1..]), ""),
            (format!("registry.example/tools@sha256:{}", digest.to_uppercase()), ""),
            (format!("registry.example/tools@sha512:{digest}{digest}"), "not a SHA-256"),
            (format!("registry.example/tools@sha256:{digest} # ours"), "malformed"),
            (format!("registry.example/a@sha256:{digest}\nregistry.example/b@sha256:{digest}"), "malformed"),
            (String::new(), "malformed"),
        ] {
            let refused = parse(&text).expect_err(&text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn only_a_registry_of_this_machine_is_reached_over_plain_http() {
        for registry in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.8.0.1", "[::1]:5000"] {
            assert!(is_plain(registry), "{registry}");
        }
        for registry in
            ["registry.example", "10.0.0.1:5000", "192.168.1.2", "localhost.example", "127.0.0.1.example:80"]
        {
            assert!(!is_plain(registry), "{registry}");
        }
    }
}
