//! Sojourn: durable agent sessions as a service.
//!
//! A request enters `http` and becomes a command that `journal` decides and appends. It wakes the `queue`,
//! from which a `worker` claims the session and runs the `harness` with a `model` and `tool`s in a `sandbox`.
//! Events leave through `stream` and `webhook`.

pub mod app;
pub mod base;
pub mod blob;
pub mod cli;
pub mod config;
pub mod domain;
pub mod egress;
pub mod harness;
pub mod http;
pub mod journal;
pub mod model;
pub mod net;
pub mod queue;
pub mod sandbox;
pub mod shutdown;
pub mod store;
pub mod stream;
pub mod telemetry;
pub mod tool;
pub mod trigger;
pub mod web;
pub mod webhook;
pub mod wire;
pub mod worker;
