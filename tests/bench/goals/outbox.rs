//! P12: from an event to the receiver of its webhook.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State, routing::post};
use serde_json::json;
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::{
    Bench,
    anchor::{Anchor, Way},
    http::Caller,
    measure::{Measured, Metric, Target},
    plan::Goal,
    rig::{Busy, Rig},
    stats::percentile_ms,
};

/// Sessions with one destination each.
const BUSY: usize = 16;
/// Events per second while the delay is measured.
const PACE: u64 = 100;

pub async fn run(bench: &Bench) -> anyhow::Result<Vec<Measured>> {
    let span = bench.plan.span();
    let anchor = Anchor::open(bench).await?;
    let sink = Sink::start().await?;
    let service = bench.ground.serve(&["--role=api"]).await?;
    let caller = Caller::of(service.address)?;
    let agent = caller.agent().await?;
    for _ in 0..BUSY {
        let session = caller.session(&agent, Some(&json!("begin"))).await?;
        let destination = json!({ "url": format!("http://{}/", sink.address), "level": "internal" });
        caller.post(&format!("/sessions/{session}/destinations"), &destination).await?;
    }
    let mut rig = Rig::beside(bench).await?;
    let busy = rig.claim(BUSY).await?;
    let metrics = vec![
        Metric::new(Goal::P12, "deliveries", "/s", Target::AtLeast(950.0)),
        Metric::new(Goal::P12, "from the event to its POST, p50", "ms", Target::AtMost(50.0)),
    ];
    let measured = bench
        .measure(
            metrics,
            async || anchor.throughput(Way::One, span / 4).await,
            async || {
                let late = sink.late(&busy, span).await?;
                Ok(vec![sink.flood(&busy, span).await?, late])
            },
        )
        .await?;
    rig.close().await?;
    service.stop().await?;
    sink.served.abort();
    anchor.close().await;
    Ok(measured)
}

type Arrivals = Arc<Mutex<HashMap<(String, i64), Instant>>>;

/// A receiver that answers 200 immediately.
struct Sink {
    address: SocketAddr,
    arrivals: Arrivals,
    served: JoinHandle<()>,
}

impl Sink {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let arrivals = Arrivals::default();
        let router = Router::new().route("/", post(receive)).with_state(arrivals.clone());
        let served = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the receiver ended: {error}");
            }
        });
        Ok(Self { address, arrivals, served })
    }

    /// A burst of events: deliveries per second until the last one has arrived.
    async fn flood(&self, busy: &[Busy], span: Duration) -> anyhow::Result<f64> {
        let count = (span.as_secs_f64() * 1_000.0) as usize / busy.len();
        let before = self.count();
        for busy in busy {
            for _ in 0..count.div_ceil(100) {
                busy.append(count.min(100)).await?;
            }
        }
        let wanted = before + busy.len() * count.div_ceil(100) * count.min(100);
        let began = Instant::now();
        let at_once = self.count();
        while self.count() < wanted {
            anyhow::ensure!(began.elapsed() < Duration::from_secs(120), "deliveries do not arrive");
            sleep(Duration::from_millis(5)).await;
        }
        Ok((wanted - at_once) as f64 / began.elapsed().as_secs_f64())
    }

    /// A steady rate: the time from the commit to the receiver, p50 in milliseconds.
    async fn late(&self, busy: &[Busy], span: Duration) -> anyhow::Result<f64> {
        let mut committed = Vec::new();
        for number in 0..(span.as_secs_f64() * PACE as f64) as usize {
            let busy = &busy[number % busy.len()];
            let seq = busy.append(1).await?;
            committed.push(((busy.session.to_string(), seq), Instant::now()));
            sleep(Duration::from_millis(1_000 / PACE)).await;
        }
        let began = Instant::now();
        loop {
            let arrivals = self.arrivals.lock().expect("no receiver panics").clone();
            let late = committed
                .iter()
                .filter_map(|(key, at)| Some(arrivals.get(key)?.saturating_duration_since(*at)));
            let mut late: Vec<_> = late.collect();
            if late.len() == committed.len() {
                return Ok(percentile_ms(&mut late, 50));
            }
            anyhow::ensure!(began.elapsed() < Duration::from_secs(60), "deliveries do not arrive");
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn count(&self) -> usize {
        self.arrivals.lock().expect("no receiver panics").len()
    }
}

async fn receive(State(arrivals): State<Arrivals>, body: Bytes) {
    let now = Instant::now();
    let Ok(delivery) = serde_json::from_slice::<serde_json::Value>(&body) else { return };
    let session = delivery["sessionId"].as_str().unwrap_or_default().to_owned();
    let seq = delivery["event"]["seq"].as_i64().unwrap_or_default();
    arrivals.lock().expect("no receiver panics").insert((session, seq), now);
}
