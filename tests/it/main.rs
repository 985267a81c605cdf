//! Behaviour through the doors of the house: one binary, so it links once; a
//! database per test, so they share nothing.

mod admin;
mod alive;
mod api;
mod budgets;
mod claim;
mod cli;
mod docs;
mod drill;
mod egress;
mod embedded;
mod fairness;
mod fake;
mod history;
mod hooks;
mod metrics;
mod model;
mod net;
mod organization;
mod restore;
mod revisit;
mod sandbox;
mod schedules;
mod siege;
mod simulation;
mod startup;
mod support;
mod tidy;
mod tool;
mod traces;
mod turns;
mod upgrade;
mod web;
mod webhook;
