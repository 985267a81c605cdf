//! Sojourn: durable agent sessions as a service.
//!
//! A request enters `http`, becomes a command that `journal` decides and appends,
//! wakes the `queue`, is taken by a `worker`, which runs the `harness` with a
//! `model` and `tool`s in a `sandbox`; every fact leaves again by `stream` and
//! `webhook`.

pub mod base;
pub mod domain;
pub mod model;
pub mod sandbox;
pub mod tool;
