//! Waiting for background work of a service, and direct changes of its rows.

use std::time::Duration;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection};

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

impl Caller {
    /// Polls `path` until the response satisfies `is_wanted`.
    pub async fn until(&self, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let limit = tokio::time::Instant::now() + Duration::from_secs(30);
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        loop {
            let now = self.get(path).await.ok();
            if is_wanted(&now) {
                return now;
            }
            assert!(tokio::time::Instant::now() < limit, "{path} does not reach the wanted state: {now:#}");
            looks.tick().await;
        }
    }
}
