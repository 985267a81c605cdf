//! Sojourn: durable agent sessions as a service.
//!
//! A request enters `http`, becomes a command that `journal` decides and appends,
//! wakes the `queue`, is taken by a `worker`, which runs the `harness` with a
//! `model` and `tool`s in a `sandbox`; every fact leaves again by `stream` and
//! `webhook`.

pub mod base;
pub mod blob;
pub mod domain;
pub mod harness;
pub mod journal;
pub mod model;
pub mod net;
pub mod sandbox;
pub mod store;
pub mod tool;
pub mod webhook;
pub mod wire;
