//! Comparison for P4: axum and sqlx without the service, writing the same rows as a session's creation in one
//! transaction. A separate process, so that it shares the cores with no more processes than the service does.

use std::net::SocketAddr;

use axum::{Json, Router, extract::State, routing::post};
use serde_json::{Value, json};
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
};
use uuid::Uuid;

/// The process, as the benchmark sees it.
pub struct Bare {
    pub address: SocketAddr,
    child: Child,
}

impl Bare {
    /// Starts it on the tables of the anchors.
    pub async fn start(url: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bare", "--url", url]).stdout(std::process::Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let said = child.stdout.take().ok_or_else(|| anyhow::anyhow!("no output"))?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line).await?;
        Ok(Self { address: line.trim().parse()?, child })
    }

    pub async fn stop(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// Serves until it is killed; prints its address on standard output.
pub async fn serve(url: &str) -> anyhow::Result<()> {
    let pool = PgPoolOptions::new().max_connections(24).connect(url).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let router = Router::new().route("/v3/sessions", post(create)).with_state(pool);
    Ok(axum::serve(listener, router).await?)
}

async fn create(State(pool): State<PgPool>, Json(body): Json<Value>) -> Json<Value> {
    let made = insert(&pool, &body).await;
    Json(made.map_or_else(|error| json!({ "error": error.to_string() }), |id| json!({ "id": id })))
}

/// A session, its first two events, and its job.
async fn insert(pool: &PgPool, body: &Value) -> sqlx::Result<String> {
    let (org, session) = (Uuid::nil(), Uuid::now_v7());
    let mut tx = pool.begin().await?;
    sqlx::query("insert into bench.session values ($1, $2, 2)")
        .bind(org)
        .bind(session)
        .execute(&mut *tx)
        .await?;
    sqlx::query(
        "insert into bench.event
         select $1, $2, n, gen_random_uuid(), now(), 'session.created', $3::json from generate_series(1, 2) n",
    )
    .bind(org)
    .bind(session)
    .bind(body.to_string())
    .execute(&mut *tx)
    .await?;
    // Far in the future: the anchor that claims must not find it.
    sqlx::query("insert into bench.job values ($1, $2, now() + interval '1 day')")
        .bind(org)
        .bind(session)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(session.to_string())
}
