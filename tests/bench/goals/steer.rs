//! P5: from a message of a caller to the request to the model.
//!
//! Measured from before the message is sent until the provider has the request: HTTP, the transaction, the
//! wake, the claim, the turn's start and the context are included. The anchor is a job's insert, its
//! notification and its claim by bare statements.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::State, response::IntoResponse, routing::post};
use serde_json::json;
use tokio::{
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{
    Bench,
    anchor::Anchor,
    http::{self, Caller},
    measure::{Measured, Metric, Target},
    plan::Goal,
    stats::p50_p99,
};

/// Messages to one session before the next session is used.
const TURNS: usize = 20;
const ANSWER: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Yes.\"},\"finish_reason\":\"stop\"}]}\n\n\
data: [DONE]\n\n";

pub async fn run(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let anchor = Anchor::open(bench).await?;
    let mut provider = Provider::start(ANSWER).await?;
    let service = bench.ground.serve(&["--role=all", "--max-concurrent-turns=16"]).await?;
    let caller = Caller::of(service.address)?;
    provider.register(&caller).await?;
    let agent = json!({ "name": "steered", "prompt": "Say yes.", "model": "openai/m" });
    let agent = http::id(&caller.post("/agents", &agent).await?)?;
    let count = bench.plan.size(400, 20);
    let metrics = vec![
        Metric::new(Goal::P5, "p50", "ms", Target::AtMost(6.0)),
        Metric::new(Goal::P5, "p99", "ms", Target::AtMost(30.0)),
    ];
    let measured = bench
        .measure(
            metrics,
            async || Ok(p50_p99(anchor.wakes(count).await?)),
            async || {
                let mut times = Vec::with_capacity(count);
                while times.len() < count {
                    let session = caller.session(&agent, None).await?;
                    for _ in 0..TURNS.min(count) {
                        let steer = async { caller.steer(&session, "Well?").await.map(drop) };
                        times.push(provider.next_after(steer).await?);
                        caller.settled(&session).await?;
                    }
                }
                Ok(p50_p99(times))
            },
        )
        .await?;
    service.stop().await?;
    provider.stop();
    anchor.close().await;
    Ok(measured)
}

/// A provider that answers immediately and reports the time of each request.
pub struct Provider {
    address: SocketAddr,
    asked: mpsc::Receiver<Instant>,
    served: JoinHandle<()>,
}

impl Provider {
    /// Starts one that gives the same answer to every request.
    pub async fn start(answer: &'static str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (tell, asked) = mpsc::channel(64);
        let router =
            Router::new().route("/v1/chat/completions", post(reply)).with_state(Arc::new((tell, answer)));
        let served = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the provider ended: {error}");
            }
        });
        Ok(Self { address, asked, served })
    }

    /// Makes it the provider of the organization.
    pub async fn register(&self, caller: &Caller) -> anyhow::Result<()> {
        let credential = json!({
            "provider": "openai", "key": "sk-bench", "is_default": true,
            "base_url": format!("http://{}/v1", self.address)
        });
        caller.post("/credentials", &credential).await.map(drop)
    }

    /// Returns the time from before `request` until the provider has the request that follows it.
    pub async fn next_after(
        &mut self,
        request: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<Duration> {
        while self.asked.try_recv().is_ok() {}
        let began = Instant::now();
        request.await?;
        let asked = timeout(Duration::from_secs(30), self.asked.recv()).await?;
        let asked = asked.ok_or_else(|| anyhow::anyhow!("the provider ended"))?;
        Ok(asked.saturating_duration_since(began))
    }

    /// Stops it.
    pub fn stop(self) {
        self.served.abort();
    }
}

async fn reply(State(state): State<Arc<(mpsc::Sender<Instant>, &'static str)>>) -> impl IntoResponse {
    let (tell, answer) = &*state;
    // Nobody measures a request that finds the channel full.
    let _ = tell.try_send(Instant::now());
    ([("content-type", "text/event-stream")], *answer)
}
