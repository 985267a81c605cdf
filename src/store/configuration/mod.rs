//! Agents with their revisions, credentials, environments.

pub mod agent;
pub mod credential;
pub mod environment;
