//! State that the handlers share.

use std::sync::Arc;

use super::{answer::Answer, error::ApiError, key_cache::KeyCache, rate::Rates, unauthenticated::Lookups};
use crate::{
    base::{
        limit::{
            ARCHIVES_MAX, ARCHIVES_PER_ORG, FILE_UPLOADS_MAX, FILE_UPLOADS_PER_ORG, IMPORTS_MAX,
            IMPORTS_PER_ORG, LARGE_BODIES_MAX, LARGE_BODIES_PER_ORG, ORGANIZATION_RATE_FACTOR,
            TRIGGER_MESSAGES_PER_SECOND,
        },
        seal::sha256,
        shares::Shares,
    },
    blob::Blobs,
    domain::{OrgId, environment::Size, rootfs::RootFs},
    file::Files,
    journal::{CreationCommitter, Journal},
    model::ModelName,
    net,
    skill::Skills,
    store::{Store, admission::OrganizationMaxima},
    stream::Streams,
    trigger,
};

/// State of the handlers. Cheap to clone.
#[derive(Clone)]
pub struct App(pub(super) Arc<Inner>);

/// Shared state behind [`App`].
pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) journal: Journal,
    pub(super) creations: CreationCommitter<Answer, ApiError>,
    pub(super) blobs: Blobs,
    pub(super) streams: Streams,
    pub(super) webhooks: net::Client,
    pub(super) models: net::Client,
    pub(super) mcp_servers: net::Client,
    /// Fetches files of messages.
    pub(super) file_addresses: net::Client,
    pub(super) files: Files,
    pub(super) skills: Skills,
    /// Whether agents may use `scripted/...` models.
    pub(super) scripted: bool,
    pub(super) local_sources: net::LocalDirectories,
    pub(super) images: Images,
    pub(super) sandbox_max: Size,
    pub(super) organization_max: OrganizationMaxima,
    pub(super) keys: KeyCache,
    pub(super) lookups: Lookups,
    pub(super) rates: Rates,
    pub(super) organization_rates: Rates,
    pub(super) trigger_rates: Rates,
    pub(super) imports: Shares<OrgId>,
    pub(super) archives: Shares<OrgId>,
    /// Bodies that are parsed on threads for blocking work.
    pub(super) large_bodies: Shares<OrgId>,
    pub(super) uploads: Shares<OrgId>,
    /// SHA-256 of the operator's key.
    pub(super) operator: Option<[u8; 32]>,
}

/// The images that environments may use.
#[derive(Clone)]
pub struct Images {
    /// Image of an environment that names none.
    pub default: String,
    /// Returns the reason if a root file system is unavailable.
    pub refuse: Arc<Refuse>,
}

/// Returns the reason if a root file system is unavailable.
pub type Refuse = dyn Fn(&RootFs) -> Option<RootFsUnavailable> + Send + Sync;

/// Reason why a root file system is unavailable in this deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootFsUnavailable {
    UnknownImage,
    /// Packages cannot be installed; contains the remedy.
    Packages(&'static str),
}

/// Dependencies passed by the composition root.
pub struct Parts {
    pub store: Store,
    pub journal: Journal,
    pub blobs: Blobs,
    pub streams: Streams,
    /// Clients that check which addresses an organization may use for webhooks, for models and for MCP servers.
    pub webhooks: net::Client,
    pub models: net::Client,
    pub mcp_servers: net::Client,
    pub files: Files,
    pub skills: Skills,
    /// Client that fetches files from addresses that an organization names.
    pub file_addresses: net::Client,
    pub scripted: bool,
    /// Local directories whose repositories may be cloned.
    pub local_sources: net::LocalDirectories,
    pub images: Images,
    /// Maximum size of one sandbox.
    pub sandbox_max: Size,
    /// Maxima of the sandboxes of one organization.
    pub organization_max: OrganizationMaxima,
    /// Sustained requests per second of one key.
    pub requests_per_second: u32,
    /// Grants access to `/v3/admin`; without it the admin API is disabled.
    pub operator_key: Option<String>,
}

impl App {
    /// Builds the API from its parts.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            files: parts.files,
            skills: parts.skills,
            file_addresses: parts.file_addresses,
            store: parts.store,
            creations: CreationCommitter::new(parts.journal.clone(), Answer::stored),
            journal: parts.journal,
            blobs: parts.blobs,
            streams: parts.streams,
            webhooks: parts.webhooks,
            models: parts.models,
            mcp_servers: parts.mcp_servers,
            scripted: parts.scripted,
            local_sources: parts.local_sources,
            images: parts.images,
            sandbox_max: parts.sandbox_max,
            organization_max: parts.organization_max,
            keys: KeyCache::default(),
            lookups: Lookups::default(),
            rates: Rates::new(parts.requests_per_second),
            organization_rates: Rates::new(
                parts.requests_per_second.saturating_mul(ORGANIZATION_RATE_FACTOR),
            ),
            trigger_rates: Rates::new(TRIGGER_MESSAGES_PER_SECOND),
            imports: Shares::new(IMPORTS_MAX, IMPORTS_PER_ORG),
            uploads: Shares::new(FILE_UPLOADS_MAX, FILE_UPLOADS_PER_ORG),
            archives: Shares::new(ARCHIVES_MAX, ARCHIVES_PER_ORG),
            large_bodies: Shares::new(LARGE_BODIES_MAX, LARGE_BODIES_PER_ORG),
            operator: parts.operator_key.map(|key| sha256(key.as_bytes())),
        }))
    }

    /// Parses a model name and checks that it may be used in this deployment.
    pub(super) fn check_model(&self, model: &str) -> Result<ModelName, ApiError> {
        trigger::check_model(model, self.0.scripted).map_err(|reason| ApiError::invalid("model", reason))
    }
}
