//! Behaviour through the doors of the house: one binary, so it links once; a
//! database per test, so they share nothing.

mod alive;
mod api;
mod cli;
mod egress;
mod embedded;
mod fairness;
mod fake;
mod history;
mod metrics;
mod model;
mod net;
mod sandbox;
mod simulation;
mod startup;
mod support;
mod tidy;
mod tool;
mod traces;
mod turns;
mod web;
mod webhook;
