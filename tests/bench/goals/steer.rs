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
    let mut provider = Provider::start().await?;
    let service = bench.ground.serve(&["--role=all", "--max-concurrent-turns=16"]).await?;
    let caller = Caller::of(service.address)?;
    let credential = json!({
        "provider": "openai", "key": "sk-bench", "is_default": true,
        "base_url": format!("http://{}/v1", provider.address)
    });
    caller.post("/credentials", &credential).await?;
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
                        times.push(provider.ask(&caller, &session).await?);
                        caller.settled(&session).await?;
                    }
                }
                Ok(p50_p99(times))
            },
        )
        .await?;
    service.stop().await?;
    provider.served.abort();
    anchor.close().await;
    Ok(measured)
}

/// A provider that answers immediately and reports the time of each request.
struct Provider {
    address: SocketAddr,
    asked: mpsc::Receiver<Instant>,
    served: JoinHandle<()>,
}

impl Provider {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (tell, asked) = mpsc::channel(64);
        let router = Router::new().route("/v1/chat/completions", post(answer)).with_state(Arc::new(tell));
        let served = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the provider ended: {error}");
            }
        });
        Ok(Self { address, asked, served })
    }

    async fn ask(&mut self, caller: &Caller, session: &str) -> anyhow::Result<Duration> {
        let began = Instant::now();
        caller.steer(session, "Well?").await?;
        let asked = timeout(Duration::from_secs(30), self.asked.recv()).await?;
        let asked = asked.ok_or_else(|| anyhow::anyhow!("the provider ended"))?;
        Ok(asked.saturating_duration_since(began))
    }
}

async fn answer(State(tell): State<Arc<mpsc::Sender<Instant>>>) -> impl IntoResponse {
    // A request without a receiver is a second attempt of a measured one.
    let _ = tell.try_send(Instant::now());
    ([("content-type", "text/event-stream")], ANSWER)
}
