//! Images of registries, pulled by digest into an OCI layout that is unpacked like a registered one.
//!
//! Called by `image`. Calls the registry that the operator named, over https, or plain http on this machine. The
//! registry is not trusted: every document and layer is named by a digest and compared with it, the sizes that the
//! manifest states are limits, and URLs in a manifest are not followed. The reasons of failures are shown to
//! organizations, so they contain neither the registry nor its answers, which are in the log of the operator.

use std::{
    error::Error,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

use futures::TryStreamExt as _;
use oci_client::{
    Client, Reference, RegistryOperation,
    client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol},
    errors::{DigestError, OciDistributionError, OciEnvelope, OciErrorCode},
    manifest::{
        IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE,
        OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciImageManifest,
    },
    secrets::RegistryAuth,
};
use tokio::{io::AsyncWriteExt as _, time::timeout};

use super::{
    reference, registry_auth,
    source::{self, Form, Registered},
};
use crate::{
    base::{
        limit::{
            IMAGE_BYTES_MAX, IMAGE_MANIFEST_BYTES_MAX, REGISTRY_CONNECT_TIMEOUT, REGISTRY_DOCUMENT_TIMEOUT,
            REGISTRY_READ_TIMEOUT, ROOTFS_TIMEOUT,
        },
        text::{printable, truncate},
    },
    node::local::layout::make_dir,
    sandbox::BuildError,
};

/// Types of documents that a registry may answer with.
const DOCUMENTS: [&str; 4] = [
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
];
/// Reasons of failures that have several causes.
const REFUSED: &str = "its registry refuses access";
const MISSING: &str = "its registry does not have it";
const SLOW: &str = "its registry does not answer in time";
const MISMATCH: &str = "what its registry sent does not match its digest";
/// Bytes of a registry's answer that are logged.
const DETAIL_BYTES_MAX: usize = 1_024;

/// Pulls the image of a reference into the directory `layout` of `work`; the progress goes to the file `log`.
pub(super) async fn pull(
    entry: &Registered,
    auth_file: Option<&Path>,
    work: &Path,
) -> Result<Registered, BuildError> {
    let failed = |reason: String| BuildError::Failed(format!("the image cannot be pulled: {reason}"));
    let reference = reference::read(&entry.path).map_err(failed)?;
    let auth = registry_auth::find(auth_file, &reference).map_err(failed)?;
    let path = work.join("layout");
    let image = Registered { path, form: Form::Layout, version: entry.version.clone() };
    let pull = Pull {
        client: client(reference.registry()).map_err(|error| failed(error.to_string()))?,
        auth,
        image,
        log: File::create(work.join("log"))?,
        reference,
    };
    let pulled = timeout(ROOTFS_TIMEOUT, pull.run()).await;
    let Unpulled { reason, detail } = match pulled {
        Ok(Ok(())) => return Ok(pull.image),
        Ok(Err(unpulled)) => unpulled,
        Err(_) => format!("it was not transferred within {} s", ROOTFS_TIMEOUT.as_secs()).into(),
    };
    let detail = printable(truncate(&detail, DETAIL_BYTES_MAX).as_bytes());
    tracing::warn!(reference = %pull.reference, reason, detail, "an image could not be pulled");
    Err(failed(reason))
}

/// Client of a registry. It trusts Mozilla's roots, which are built in, and those of this machine.
fn client(registry: &str) -> Result<Client, OciDistributionError> {
    // An error means that the process has a provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let protocol = match reference::is_plain(registry) {
        true => ClientProtocol::HttpsExcept(vec![registry.to_owned()]),
        false => ClientProtocol::Https,
    };
    let root = |data: &[u8]| Certificate { encoding: CertificateEncoding::Der, data: data.to_vec() };
    Client::try_from(ClientConfig {
        protocol,
        extra_root_certificates: webpki_root_certs::TLS_SERVER_ROOT_CERTS
            .iter()
            .map(|der| root(der))
            .collect(),
        connect_timeout: Some(REGISTRY_CONNECT_TIMEOUT),
        read_timeout: Some(REGISTRY_READ_TIMEOUT),
        user_agent: concat!("sojourn/", env!("CARGO_PKG_VERSION")),
        ..ClientConfig::default()
    })
}

/// A pull in progress.
struct Pull {
    client: Client,
    auth: RegistryAuth,
    reference: Reference,
    /// The layout that is written.
    image: Registered,
    log: File,
}

impl Pull {
    async fn run(&self) -> Result<(), Unpulled> {
        self.progress("== pulling the image");
        let auth = self.client.auth(&self.reference, &self.auth, RegistryOperation::Pull);
        timeout(REGISTRY_DOCUMENT_TIMEOUT, auth).await.map_err(|_| SLOW.to_owned())??;
        make_dir(&self.image.path.join("blobs/sha256"), 0o700)?;
        let mut digest = self.reference.digest().unwrap_or_default().to_owned();
        let mut document = self.document(&digest).await?;
        if let Some(chosen) = source::chosen_in(&document)? {
            digest = chosen;
            document = self.document(&digest).await?;
        }
        self.index(&digest)?;
        // Refuses the number and the types of the layers.
        source::layers(&self.image)?;
        let manifest: OciImageManifest =
            serde_json::from_slice(&document).map_err(|error| format!("its manifest is invalid: {error}"))?;
        self.check_platform(&manifest.config).await?;
        let sizes: Option<Vec<u64>> =
            manifest.layers.iter().map(|layer| layer.size.try_into().ok()).collect();
        let sizes = sizes.ok_or_else(|| "its manifest states a negative size".to_owned())?;
        let total = sizes.iter().fold(0_u64, |total, size| total.saturating_add(*size));
        if total > IMAGE_BYTES_MAX {
            return Err(format!("its layers have more than {} GiB", IMAGE_BYTES_MAX >> 30).into());
        }
        let count = sizes.len();
        for (number, (layer, size)) in (1..).zip(manifest.layers.iter().zip(sizes)) {
            self.progress(&format!("== pulling layer {number} of {count}: {} MiB", size.div_ceil(1 << 20)));
            self.blob(&layer.digest, size).await?;
        }
        Ok(())
    }

    /// Pulls an index or a manifest.
    async fn document(&self, digest: &str) -> Result<Vec<u8>, Unpulled> {
        let path = source::blob_path(&self.image.path, digest)?;
        let reference = self.reference.clone_with_digest(digest.to_owned());
        let pulled = self.client.pull_manifest_raw(&reference, &self.auth, &DOCUMENTS);
        // The client reads it whole, so the time also bounds its size.
        let pulled = timeout(REGISTRY_DOCUMENT_TIMEOUT, pulled).await.map_err(|_| SLOW.to_owned())?;
        let (document, _) = pulled?;
        if document.len() as u64 > IMAGE_MANIFEST_BYTES_MAX {
            return Err(format!("its manifest has more than {} MiB", IMAGE_MANIFEST_BYTES_MAX >> 20).into());
        }
        fs::write(path, &document)?;
        Ok(source::blob(&self.image.path, digest)?)
    }

    /// Pulls a layer or a configuration of that size.
    async fn blob(&self, digest: &str, size: u64) -> Result<(), Unpulled> {
        let path = source::blob_path(&self.image.path, digest)?;
        // A digest alone: a descriptor may name other URLs of its content.
        let mut parts = self.client.pull_blob_stream(&self.reference, digest).await?.stream;
        let (mut file, mut received) = (tokio::fs::File::create(path).await?, 0_u64);
        while let Some(part) = parts.try_next().await.map_err(Unpulled::transfer)? {
            received += part.len() as u64;
            if received > size {
                break;
            }
            file.write_all(&part).await?;
        }
        file.flush().await?;
        match received == size {
            true => Ok(()),
            false => Err(format!("the blob {digest} has another size than the manifest states").into()),
        }
    }

    /// Pulls the configuration, which names the platform, and compares that with this machine.
    async fn check_platform(&self, config: &OciDescriptor) -> Result<(), Unpulled> {
        let size = u64::try_from(config.size).ok().filter(|size| *size <= IMAGE_MANIFEST_BYTES_MAX);
        let size = size.ok_or_else(|| "its configuration is too large".to_owned())?;
        self.blob(&config.digest, size).await?;
        Ok(source::check_platform(&source::blob(&self.image.path, &config.digest)?)?)
    }

    /// Makes the layout one of this manifest.
    fn index(&self, digest: &str) -> Result<(), Unpulled> {
        let manifest = serde_json::json!({ "mediaType": OCI_IMAGE_MEDIA_TYPE, "digest": digest });
        let index = serde_json::json!({ "manifests": [manifest] });
        Ok(fs::write(self.image.path.join("index.json"), index.to_string())?)
    }

    fn progress(&self, line: &str) {
        // A build does not fail for its log.
        let _ = writeln!(&self.log, "{line}");
    }
}

/// Why an image was not pulled.
struct Unpulled {
    /// For organizations.
    reason: String,
    /// For the operator: the answer of the registry, or the error of the connection.
    detail: String,
}

impl Unpulled {
    /// Error of a transfer that had begun.
    fn transfer(error: io::Error) -> Self {
        let cause = error.get_ref();
        let is_other = cause.is_some_and(|cause| cause.is::<DigestError>());
        let reason = match is_other {
            true => MISMATCH,
            false => "the transfer from its registry broke off",
        };
        Self { reason: reason.to_owned(), detail: chain(&error) }
    }
}

impl From<String> for Unpulled {
    fn from(reason: String) -> Self {
        Self { reason, detail: String::new() }
    }
}

impl From<io::Error> for Unpulled {
    fn from(error: io::Error) -> Self {
        error.to_string().into()
    }
}

impl From<OciDistributionError> for Unpulled {
    fn from(error: OciDistributionError) -> Self {
        use OciDistributionError as Failed;
        let reason = match &error {
            Failed::DigestError(_) => MISMATCH,
            Failed::AuthenticationFailure(_)
            | Failed::UnauthorizedError { .. }
            | Failed::ServerError { code: 401 | 403, .. } => REFUSED,
            Failed::ImageManifestNotFoundError(_) | Failed::ServerError { code: 404, .. } => MISSING,
            Failed::RegistryError { envelope, .. } => of_envelope(envelope),
            Failed::RequestError(error) if error.is_timeout() => SLOW,
            Failed::RequestError(error) if chain(error).contains("dns error") => {
                "its registry has no address"
            }
            Failed::RequestError(error) if error.is_connect() => "its registry cannot be reached",
            _ => "its registry gave an unexpected answer",
        };
        // A URL may contain the signature of a redirect.
        let detail = match error {
            Failed::RequestError(error) => chain(&error.without_url()),
            error => chain(&error),
        };
        Self { reason: reason.to_owned(), detail }
    }
}

/// Reason in a registry's own words for errors.
fn of_envelope(envelope: &OciEnvelope) -> &'static str {
    match envelope.errors.first().map(|error| &error.code) {
        Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => REFUSED,
        Some(
            OciErrorCode::ManifestUnknown
            | OciErrorCode::BlobUnknown
            | OciErrorCode::ManifestBlobUnknown
            | OciErrorCode::NameUnknown
            | OciErrorCode::NotFound,
        ) => MISSING,
        Some(OciErrorCode::Toomanyrequests) => "its registry allows no more pulls now",
        _ => "its registry gave an unexpected answer",
    }
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
