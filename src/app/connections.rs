//! Connections of a process to the database: how many, and for what.

use crate::{
    config::{Role, Settings},
    store::pool::PoolSizes,
};

/// Connections of an `api` process. 20 of them and 50 workers stay below 500 connections.
const API_CONNECTIONS: u32 = 9;
/// Connections of a `worker` process.
const WORKER_CONNECTIONS: u32 = 6;
/// Connections for requests of callers in a process of the role `all`: more do not make it faster.
const APP_CONNECTIONS_MAX: u32 = 24;

/// Returns the most connections of a process, including the one that listens.
pub fn connections(settings: &Settings) -> u32 {
    settings.database.database_connections.unwrap_or(match settings.role {
        Role::Api => API_CONNECTIONS,
        Role::Worker => WORKER_CONNECTIONS,
        Role::All => 41 + (settings.max_concurrent_turns as u32 / 2).min(24),
        Role::Node => 0,
    })
}

/// Divides the connections of a process: one listens, the others belong to the two roles.
pub(super) fn pools(settings: &Settings) -> PoolSizes {
    let pooled = connections(settings).saturating_sub(1);
    let app = match settings.role {
        // Requests of callers; the service's own statements are deliveries, schedules and tokens.
        Role::Api => pooled * 5 / 8,
        // A worker acts for one organization only when a turn starts a session or schedules a wake.
        Role::Worker => (pooled / 5).max(1),
        Role::All => (pooled / 2).min(APP_CONNECTIONS_MAX),
        Role::Node => 0,
    };
    PoolSizes { app, system: pooled - app }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        settings: Settings,
    }

    fn settings(words: &[&str]) -> Settings {
        CommandLine::try_parse_from([&["sojourn"], words].concat()).expect("settings").settings
    }

    #[test]
    fn twenty_apis_and_fifty_workers_stay_below_500_connections() {
        let of = |role| connections(&settings(&["--role", role]));
        assert!(20 * of("api") + 50 * of("worker") < 500);
        assert_eq!(of("all"), 49);
    }

    #[test]
    fn every_connection_has_a_purpose() {
        for role in ["api", "worker", "all"] {
            for count in [5, 6, 9, 12, 30, 49, 200] {
                let settings = settings(&["--role", role, "--database-connections", &count.to_string()]);
                let PoolSizes { app, system } = pools(&settings);
                assert_eq!(app + system + 1, count);
                assert!(app >= 1 && system >= 2, "{role} {count}: {app} {system}");
            }
        }
        let all = PoolSizes { app: 24, system: 24 };
        assert_eq!(pools(&settings(&["--role=all"])), all);
    }
}
