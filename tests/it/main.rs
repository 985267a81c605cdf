//! Integration tests through the public interfaces: one binary, so that it links once; a database per test,
//! so that tests share no rows.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that fails may panic, and its tasks end with its process"
)]
#![allow(unreachable_pub, reason = "nothing imports from a test")]

mod admin;
mod api;
mod budgets;
mod builds;
mod claims;
mod cli;
mod clock;
mod docs;
mod egress;
mod embedded;
mod failover;
mod fairness;
mod fake;
mod history;
mod jobs;
mod long_session;
mod lost_commits;
mod maintenance;
mod metrics;
mod model;
mod net;
mod objects;
mod organization;
mod organization_deletion;
mod outbox;
mod permission;
mod pooler;
mod processes;
mod restore;
mod retention;
mod sandbox;
mod scheduled_wake;
mod schedules;
mod segments;
mod silent_database;
mod simulation;
mod slow_client;
mod startup;
mod stuck;
mod support;
mod tidy;
mod tool;
mod traces;
mod triggers;
mod turns;
mod upgrade;
mod web;
mod webhook;
mod webhook_faults;
