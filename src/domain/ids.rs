//! Kinds of resources that have an id, with their prefixes.

use crate::base::{Id, Kind};

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $alias:ident $prefix:literal)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $kind {}
        impl Kind for $kind {
            const PREFIX: &'static str = $prefix;
        }
        $(#[$doc])*
        pub type $alias = Id<$kind>;
    )*};
}

kinds! {
    /// An organization: the unit of isolation.
    OrgKind OrgId "org"
    /// An API key.
    KeyKind KeyId "key"
    /// An agent.
    AgentKind AgentId "agt"
    /// An immutable revision of an agent.
    RevisionKind RevisionId "rev"
    /// A stored provider key.
    CredentialKind CredentialId "cred"
    /// A stored environment.
    EnvironmentKind EnvironmentId "env"
    /// A session.
    SessionKind SessionId "ses"
    /// A turn of a session.
    TurnKind TurnId "trn"
    /// A step of a turn.
    StepKind StepId "stp"
    /// An event of a log.
    EventKind EventId "evt"
    /// An action that a turn needs from a caller; the id of its event `action.required`.
    ActionIdKind ActionId "act"
    /// A claim of an action.
    ClaimKind ClaimId "clm"
    /// A sandbox.
    SandboxKind SandboxId "sbx"
    /// A checkpoint of a session's files.
    CheckpointKind CheckpointId "ckp"
    /// A stored file.
    FileKind FileId "fil"
    /// A version of a skill.
    SkillKind SkillId "skl"
    /// An operation on a session's sandbox by a caller.
    OperationKind OperationId "opr"
    /// A webhook destination of a session.
    DestinationKind DestinationId "dst"
    /// One event for one destination.
    DeliveryKind DeliveryId "dlv"
    /// A webhook destination of an organization.
    WebhookKind WebhookId "whk"
    /// A schedule of an agent.
    ScheduleKind ScheduleId "sch"
    /// A run of a schedule.
    RunKind RunId "run"
    /// An inbound webhook that starts sessions of an agent.
    TriggerKind TriggerId "trg"
    /// A token that starts sessions of one agent.
    InvokeTokenKind InvokeTokenId "ivt"
    /// A row of the audit log.
    AuditKind AuditId "aud"
    /// One HTTP request.
    RequestKind RequestId "req"
}
