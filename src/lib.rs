//! Sojourn: durable agent sessions as a service.
//!
//! A request enters `http`, becomes a command that `journal` decides and appends, wakes
//! the `queue`, is claimed by a `worker`, which runs a `turn` (the `harness` with a
//! `model` and `tool`s, in a sandbox that `lifecycle` provides); every fact leaves
//! again by `stream` and `webhook`.

pub mod app;
pub mod base;
pub mod blob;
pub mod cli;
pub mod config;
pub mod domain;
pub mod egress;
pub mod file;
pub mod harness;
pub mod http;
pub mod journal;
mod lifecycle;
pub mod mcp;
pub mod model;
pub mod net;
pub mod node;
mod operation;
pub mod permission;
pub mod queue;
pub mod sandbox;
pub mod shutdown;
pub mod skill;
pub mod snapshot;
pub mod store;
pub mod stream;
mod telemetry;
pub mod tool;
mod trigger;
mod turn;
mod web;
pub mod webhook;
pub mod wire;
mod worker;
