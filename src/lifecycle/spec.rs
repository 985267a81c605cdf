//! Sandbox spec and egress policy from a session's environment.
//!
//! Called by `turn` and `worker`. Reads the pinned snapshot; only the values of secrets are read from
//! the current environment.

use crate::{
    domain::{
        OrgId, Session,
        context::Context,
        environment::{EnvironmentSnapshot, Life},
        network::{HostPattern, SecretPlacement},
        rootfs::RootFs,
        secret::{PinnedSecret, SecretBinding},
        skill::PinnedSkill,
        source::PinnedSource,
    },
    egress::{Policy, Secret, Secrets},
    sandbox::SandboxLimits,
    store::{self, Store},
};

use super::{Sandboxes, egress::EgressPolicy};

/// Error code of a turn whose environment, with its secrets, was deleted.
const ENVIRONMENT_DELETED: &str = "environment_deleted";

/// Properties of a new sandbox of a session.
#[derive(Clone, Debug, Default)]
pub(crate) struct SandboxSpec {
    pub limits: SandboxLimits,
    /// The environment sets `cpus` or `memory`; not every provider can enforce these.
    pub names_size: bool,
    pub rootfs: RootFs,
    /// The environment's variables, and the placeholders of its secrets.
    pub env: Vec<(String, String)>,
    /// Script of the lifecycle hook `post_start`.
    pub post_start: Option<String>,
    /// Repositories to clone; `post_clone` runs after that.
    pub sources: Vec<PinnedSource>,
    pub post_clone: Option<String>,
    /// Skills that it has to have; `None` if the session never had any.
    pub skills: Option<Vec<PinnedSkill>>,
    /// Times of rotation and end; `None` is unlimited.
    pub life: Option<Life>,
    /// Working directory and variables with which commands start.
    pub context: Context,
    /// The session has an agent. Without one, it fails when its sandbox cannot be replaced.
    pub has_agent: bool,
}

impl SandboxSpec {
    pub(crate) fn of(session: &Session, sandboxes: &Sandboxes) -> Self {
        let spec = session.created.environment.as_ref().map(spec).unwrap_or_default();
        Self {
            limits: spec.limits.at_most(sandboxes.limits.sandbox),
            rootfs: rootfs_of(session, &sandboxes.default_image),
            sources: session.created.sources.clone(),
            skills: skills(session),
            context: session.context.clone(),
            has_agent: session.created.agent_snapshot.is_some(),
            ..spec
        }
    }

    /// Reads a session's environment; or the error code and message if its turn cannot run.
    pub(crate) async fn read(
        sandboxes: &Sandboxes,
        org: OrgId,
        session: &Session,
    ) -> Result<Result<(Self, EgressPolicy), (&'static str, String)>, store::Error> {
        let spec = Self::of(session, sandboxes);
        let Some(snapshot) = &session.created.environment else {
            return Ok(Ok((spec, EgressPolicy::default())));
        };
        let secrets = match secrets(&sandboxes.store, org, snapshot).await {
            Ok(secrets) => secrets,
            Err(store::Error::NotFound) => {
                let message = "the environment whose secrets the session pinned was deleted".to_owned();
                return Ok(Err((ENVIRONMENT_DELETED, message)));
            }
            Err(error) => return Err(error),
        };
        let policy = Policy::new(&snapshot.config.network, &sandboxes.network.registries)
            .map_err(|bad| store::Error::Corrupt(format!("a stored network policy: {bad}")))?;
        Ok(Ok((spec, EgressPolicy { policy, secrets })))
    }
}

/// Skills of a session; of one whose agent was changed also an empty list, because it may have had some before.
fn skills(session: &Session) -> Option<Vec<PinnedSkill>> {
    let pinned = session.created.agent_snapshot.as_ref().map(|agent| &agent.pinned_skills);
    pinned.filter(|pinned| !pinned.is_empty() || session.agent_head > 0).cloned()
}

/// Root file system of a session's sandboxes.
pub(crate) fn rootfs_of(session: &Session, default_image: &str) -> RootFs {
    RootFs::of(session.created.environment.as_ref().map(|pinned| &pinned.config), default_image)
}

fn spec(snapshot: &EnvironmentSnapshot) -> SandboxSpec {
    let size = snapshot.config.size();
    let placeholders =
        snapshot.secrets.iter().map(|secret| (secret.binding.name.clone(), secret.placeholder.clone()));
    // Node.js searches for modules beside a program, not in the global directory.
    let has_modules =
        !snapshot.config.packages.npm.is_empty() && !snapshot.config.env.contains_key("NODE_PATH");
    let modules = has_modules.then(|| ("NODE_PATH".to_owned(), "/usr/local/lib/node_modules".to_owned()));
    let env = snapshot.config.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    SandboxSpec {
        limits: SandboxLimits {
            cpu_millis: size.cpu_millis,
            memory_bytes: size.memory_bytes,
            pids: size.pids,
            disk_bytes: size.disk_bytes,
        },
        names_size: snapshot.config.cpus.is_some() || snapshot.config.memory.is_some(),
        rootfs: RootFs::default(),
        env: modules.into_iter().chain(env).chain(placeholders).collect(),
        post_start: snapshot.config.lifecycle_hooks.post_start.clone(),
        post_clone: snapshot.config.lifecycle_hooks.post_clone.clone(),
        sources: Vec::new(),
        skills: None,
        life: snapshot.config.life(),
        context: Context::default(),
        has_agent: false,
    }
}

async fn secrets(store: &Store, org: OrgId, snapshot: &EnvironmentSnapshot) -> Result<Secrets, store::Error> {
    let Some(environment) = snapshot.environment_id.filter(|_| !snapshot.secrets.is_empty()) else {
        return Ok(Secrets::default());
    };
    let mut values = store.open_environment(org, environment).await?;
    let mut secrets = Vec::with_capacity(snapshot.secrets.len());
    for PinnedSecret { binding, placeholder } in &snapshot.secrets {
        // The placeholder of a secret that was removed since is not replaced.
        let Some(value) = values.remove(&binding.name) else { continue };
        let hosts = binding.hosts.iter().map(|host| HostPattern::parse(host)).collect::<Result<_, _>>();
        let hosts = hosts.map_err(|bad| store::Error::Corrupt(format!("a secret's host: {bad}")))?;
        let SecretBinding { name, headers, query_parameters, .. } = binding.clone();
        let placement = SecretPlacement { headers, query_parameters };
        secrets.push(Secret { name, placeholder: placeholder.clone(), value, hosts, placement });
    }
    Ok(Secrets::new(secrets))
}
