//! Agents with their revisions, credentials, environments, skills.

pub(crate) mod agent;
pub(crate) mod credential;
pub(crate) mod environment;
pub(crate) mod oauth;
pub(crate) mod skill;
