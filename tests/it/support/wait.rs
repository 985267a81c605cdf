//! Waiting for background work of a service, and direct changes of its rows.

use std::time::Duration;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection};
use tokio::time::{MissedTickBehavior, timeout};

use super::service::{Caller, Ground};

impl Ground {
    /// Runs a statement as the superuser of the test's database.
    pub async fn sql(&self, statement: &str) {
        let mut superuser = self.database.superuser().await;
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut superuser).await.expect(statement);
        superuser.close().await.expect("a clean end");
    }

    /// Runs a query that returns one number.
    pub async fn count(&self, query: &str) -> i64 {
        let mut superuser = self.database.superuser().await;
        let count: i64 =
            sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(&mut superuser).await.expect(query);
        superuser.close().await.expect("a clean end");
        count
    }
}

/// Limit of a wait for something that must happen. A passing test waits a fraction of it, also while the
/// machine compiles; how fast the service is is measured by the benchmark.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// Polls `look` until it returns a value. For a wait whose limit is part of the test; other waits are
/// [`wait_for`].
pub async fn poll<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let mut looks = tokio::time::interval(Duration::from_millis(20));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if let Some(found) = look().await {
            return found;
        }
    }
}

/// Polls `look` until it returns a value; panics with `what` after [`WAIT_MAX`].
pub async fn wait_for<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    let Ok(found) = timeout(WAIT_MAX, poll(look)).await else { panic!("timed out: {what}") };
    found
}

impl Caller {
    /// Polls `path` until the response satisfies `is_wanted`.
    pub async fn until(&self, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let look = async || {
            last = self.get(path).await.ok();
            is_wanted(&last).then(|| last.clone())
        };
        let found = timeout(WAIT_MAX, poll(look)).await;
        found.unwrap_or_else(|_| panic!("{path} does not reach the wanted state: {last:#}"))
    }
}
