//! Behaviour through the doors of the house: one binary, so it links once; a
//! database per test, so they share nothing.

mod alive;
mod api;
mod budgets;
mod cli;
mod embedded;
mod fairness;
mod fake;
mod history;
mod model;
mod net;
mod sandbox;
mod simulation;
mod startup;
mod support;
mod tidy;
mod tool;
mod turns;
mod webhook;
