//! Agents with their revisions, credentials, environments.

pub(crate) mod agent;
pub(crate) mod credential;
pub(crate) mod environment;
pub(crate) mod oauth;
