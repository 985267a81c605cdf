//! Data that a new session pins: agent, revision, model, credential, environment.
//!
//! Every check that can refuse the session runs before anything is written.

use super::{refused::Refused, source::pin_sources};
use crate::{
    base::{Origin, seal::sha256, text::hex},
    domain::{
        AgentId, CredentialId, EnvironmentId, Session, SessionId,
        context::ContextChange,
        custom_tool::AgentTool,
        decide::{Input, NewSession, Stamp},
        environment::{EnvironmentChoice, EnvironmentSnapshot},
        permission::{Permissions, Rule},
        schedule::SessionTemplate,
        secret::PinnedSecret,
        session::{AgentSnapshot, Created, Pins, Source},
        skill::{self, PinnedSkill},
        source::{self, PinnedSource, Repository},
        turn_settings::TurnSettings,
    },
    journal::{self, Unit},
    model::{ModelName, NoModel, Providers},
    store::{
        self,
        agent::{Agent, Revision},
    },
};

/// Agent, revision and model of a new session.
pub(crate) struct Choice {
    pub agent: Agent,
    pub revision: Revision,
    /// Overrides the revision's model.
    pub model: Option<String>,
    /// Replaces the revision's tools.
    pub tools: Option<Vec<AgentTool>>,
    /// Rules of the session, beside those of the revision.
    pub permissions: Vec<Rule>,
    /// Override those of the revision.
    pub settings: TurnSettings,
    /// Whether scripted models are allowed.
    pub scripted: bool,
}

impl Choice {
    /// An agent at this revision, as it is.
    pub(crate) fn of(agent: Agent, revision: Revision) -> Self {
        let (permissions, settings) = (Vec::new(), TurnSettings::default());
        Self { agent, revision, model: None, tools: None, permissions, settings, scripted: false }
    }
}

/// A session to open for an agent without an API request.
pub(crate) struct Opening {
    pub agent: AgentId,
    pub session_template: SessionTemplate,
    pub inherited: Inherited,
    /// Sources that the trigger adds.
    pub sources: Vec<Repository>,
    pub input: Input,
    pub source: Source,
    pub scripted: bool,
    /// The parent session, and the key of the new session under it.
    pub parent: Option<(SessionId, String)>,
}

/// Parts of a parent session that its child has, too.
#[derive(Default)]
pub(crate) struct Inherited {
    /// Goes before that of the agent.
    pub environment: Option<EnvironmentSnapshot>,
    /// Beside those of the environment and the agent.
    pub sources: Vec<PinnedSource>,
    /// Beside those of the agent.
    pub skills: Vec<PinnedSkill>,
}

/// Sets the parent of a new session that has its agent, if one is given. The permissions of the parent hold below it.
pub(crate) async fn adopt(
    unit: &mut Unit,
    created: &mut Created,
    parent: Option<SessionId>,
) -> Result<(), Refused> {
    let Some(parent) = parent else { return Ok(()) };
    unit.adopt(parent).await.map_err(|error| match error {
        journal::Error::Store(store::Error::NotFound) => Refused::UnknownParent,
        error => error.into(),
    })?;
    created.parent_session_id = Some(parent);
    let above = bound_by(unit, parent).await?;
    if let (Some(own), Some(above)) = (&mut created.agent_snapshot, above) {
        own.permissions.parents = above.permissions.for_children();
    }
    Ok(())
}

/// Returns the agent whose permissions hold below a session: its own, or that of the nearest session above that has one.
async fn bound_by(unit: &mut Unit, session: SessionId) -> Result<Option<AgentSnapshot>, Refused> {
    let mut next = Some(session);
    while let Some(id) = next {
        let Created { agent_snapshot, parent_session_id, .. } = unit.tx().session(id).await?.created;
        if agent_snapshot.is_some() {
            return Ok(agent_snapshot);
        }
        next = parent_session_id;
    }
    Ok(None)
}

/// Parses a model name; returns an error message if it may not be used here.
pub(crate) fn check_model(model: &str, scripted: bool) -> Result<ModelName, String> {
    let unfit = |error: NoModel| error.to_string();
    let name: ModelName = model.parse().map_err(unfit)?;
    Providers::check(&name).map_err(unfit)?;
    if !Providers::needs_credential(&name.provider) && !scripted {
        return Err("scripted models are disabled here (SOJOURN_SCRIPTED=off)".to_owned());
    }
    Ok(name)
}

/// Opens a session of an agent's active revision with its first input.
pub(crate) async fn open(unit: &mut Unit, opening: Opening, stamp: &Stamp) -> Result<Session, Refused> {
    let Opening { agent, session_template, inherited, sources: brought, input, source, scripted, parent } =
        opening;
    let agent = unit.tx().agent(agent).await.map_err(|error| match error {
        store::Error::NotFound => Refused::UnknownAgent,
        error => error.into(),
    })?;
    let mut created = Created {
        agent_id: None,
        credential_id: None,
        agent_snapshot: None,
        environment: None,
        sources: Vec::new(),
        title: session_template.title,
        key: None,
        client_id: None,
        slug: None,
        metadata: session_template.metadata,
        limits: session_template.limits,
        source,
        parent_session_id: None,
    };
    created.limits = agent.limits.overridden_by(session_template.limits);
    let (revision, own) = (agent.revision.clone(), agent.sources.clone());
    let of_agent = revision.environment.clone();
    let mut pins = pins(unit, Choice { scripted, ..Choice::of(agent, revision) }).await?;
    let snapshot = &mut pins.agent_snapshot;
    skill::join(&mut snapshot.pinned_skills, inherited.skills, snapshot.tools.as_deref());
    check_fallback_credentials(unit, &pins.agent_snapshot.model, &pins.agent_snapshot.settings).await?;
    created.pin(pins);
    created.environment = match (session_template.environment, inherited.environment) {
        (None, Some(inherited)) => Some(inherited.with_placeholders(|| placeholder(&stamp.origin))),
        (choice, _) => match choice.or(of_agent) {
            Some(choice) => Some(environment(unit, choice, &stamp.origin).await?),
            None => None,
        },
    };
    pin_sources(unit, &mut created, &[&own, &brought]).await?;
    source::join(&mut created.sources, inherited.sources);
    if let Some((parent, key)) = parent {
        adopt(unit, &mut created, Some(parent)).await?;
        created.key = Some(key);
    }
    let new = NewSession { created, context: ContextChange::default(), input: Some(input) };
    let creation = unit.decide_session(stamp.origin.id(), new, stamp)?;
    Ok(unit.create(creation).await?)
}

/// Returns agent, revision, model and credential, to be pinned for the life of a session.
pub(crate) async fn pins(unit: &mut Unit, choice: Choice) -> Result<Pins, Refused> {
    let Choice { agent, revision, model, tools, permissions, settings, scripted } = choice;
    let model = model.unwrap_or(revision.model);
    let name = check_model(&model, scripted).map_err(Refused::Model)?;
    let credential_id = resolve_credential(unit, &agent, &name).await?;
    let settings = revision.settings.overridden_by(&settings);
    let tools = tools.or(revision.tools);
    let pinned_skills = pinned_skills(unit, &settings, tools.as_deref()).await?;
    let agent_snapshot = AgentSnapshot {
        revision_id: revision.id,
        revision: revision.number,
        name: agent.name,
        prompt_hash: hex(&sha256(revision.prompt.as_bytes())),
        model,
        model_options: revision.model_options,
        runtime: revision.runtime,
        tools,
        permissions: Permissions { agent: revision.permissions, session: permissions, parents: Vec::new() },
        settings,
        pinned_skills,
    };
    Ok(Pins { agent_id: agent.id, credential_id, agent_snapshot })
}

/// Returns the versions of the skills that settings name, as they are now, for an agent with these tools.
pub(crate) async fn pinned_skills(
    unit: &mut Unit,
    settings: &TurnSettings,
    tools: Option<&[AgentTool]>,
) -> Result<Vec<PinnedSkill>, Refused> {
    match settings.skills.as_deref() {
        None | Some([]) => Ok(Vec::new()),
        Some(_) if !skill::are_readable(tools) => Err(Refused::UnreadableSkills),
        Some(skills) => unit.tx().pin_skills(skills).await?.map_err(Refused::UnknownSkill),
    }
}

/// Returns the agent's credential if it matches the model, else the organization's default.
async fn resolve_credential(
    unit: &mut Unit,
    agent: &Agent,
    name: &ModelName,
) -> Result<Option<CredentialId>, Refused> {
    if !Providers::needs_credential(&name.provider) {
        return Ok(None);
    }
    if let Some(own) = agent.credential {
        match unit.tx().credential(own).await {
            Ok(credential) if credential.provider == name.provider => return Ok(Some(own)),
            Ok(_) | Err(store::Error::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let default = unit.tx().default_credential(&name.provider).await?;
    default.map(Some).ok_or_else(|| Refused::NoCredential(name.provider.clone()))
}

/// Checks that the organization has a default credential for each provider of a fallback model that is not the one of
/// `model`, whose credential the session pins.
pub(crate) async fn check_fallback_credentials(
    unit: &mut Unit,
    model: &str,
    settings: &TurnSettings,
) -> Result<(), Refused> {
    let own = check_model(model, true).map_err(Refused::Model)?;
    for fallback in settings.fallback_models.iter().flatten() {
        let name = check_model(&fallback.model, true).map_err(Refused::Model)?;
        let needs_other = name.provider != own.provider && Providers::needs_credential(&name.provider);
        if needs_other && unit.tx().default_credential(&name.provider).await?.is_none() {
            return Err(Refused::NoCredential(name.provider));
        }
    }
    Ok(())
}

/// Returns the pinned environment of a new session.
pub(crate) async fn environment(
    unit: &mut Unit,
    choice: EnvironmentChoice,
    origin: &Origin,
) -> Result<EnvironmentSnapshot, Refused> {
    let name = match choice {
        EnvironmentChoice::Inline(config) => {
            return Ok(EnvironmentSnapshot { config: *config, ..EnvironmentSnapshot::default() });
        }
        EnvironmentChoice::Named(name) => name,
    };
    let found = match name.parse::<EnvironmentId>() {
        Ok(id) => unit.tx().environment(id).await,
        Err(_) => unit.tx().environment_by_name(&name).await?.ok_or(store::Error::NotFound),
    };
    let named = found.map_err(|error| match error {
        store::Error::NotFound => Refused::UnknownEnvironment,
        error => error.into(),
    })?;
    let secrets = named
        .secrets
        .into_iter()
        .map(|secret| PinnedSecret { binding: secret, placeholder: placeholder(origin) });
    Ok(EnvironmentSnapshot {
        environment_id: Some(named.id),
        name: Some(named.name),
        config: named.config,
        secrets: secrets.collect(),
    })
}

/// Returns a new placeholder of a secret, unique to one session.
fn placeholder(origin: &Origin) -> String {
    format!("sjph_{}", hex(&origin.bytes::<20>()))
}
