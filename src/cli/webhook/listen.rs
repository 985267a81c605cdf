//! `sojourn webhook listen`: a webhook receiver on this machine's loopback, for development.
//!
//! It creates a webhook for itself and deletes it at the end. With `--secret-stdin`, it only verifies
//! deliveries that another program forwards. Deliveries with an invalid signature are refused and reported,
//! never printed as events.

use std::{convert::Infallible, net::Ipv4Addr, sync::Arc};

use anyhow::Context;
use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response, StatusCode, body::Bytes, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

use super::event_filter::EventFilter;
use crate::{
    base::{
        Origin,
        limit::{HEADER_TIMEOUT, LISTEN_CONNECTIONS_MAX, LISTEN_DELIVERIES_MAX, LISTEN_DELIVERY_BYTES_MAX},
    },
    cli::{client::Client, input, print},
    webhook::{Refused, Secret, verify},
};

/// Options of the receiver.
#[derive(Debug, Args)]
pub(super) struct Listen {
    /// Port on 127.0.0.1 [default: a free port]
    #[arg(long, default_value_t = 0)]
    port: u16,
    #[command(flatten)]
    filter: EventFilter,
    /// Create no webhook: another program forwards deliveries, signed with the secret read from standard
    /// input
    #[arg(long)]
    secret_stdin: bool,
    /// Exit after this many deliveries
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
}

/// A received delivery: its verified body, or the reason of its refusal.
type Received = Result<Value, Refused>;

impl Listen {
    /// Receives until interrupted, or until `count` deliveries were received. The exit code is 1 when one of
    /// them was refused.
    pub(super) async fn run(self, client: &Client, webhooks: &str, json: bool) -> anyhow::Result<u8> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await.context("cannot listen")?;
        let url = format!("http://{}/", listener.local_addr()?);
        let (webhook, secret) = if self.secret_stdin {
            (None, input::secret("secret")?)
        } else {
            let body = input::body(json!({ "url": url }), &self.filter)?;
            let made = client.post(webhooks, &body).await.context(
                "no webhook for this address could be created (the service needs SOJOURN_ALLOW_PRIVATE_WEBHOOKS=on, and must run on this machine)",
            )?;
            let secret = made["secret"].as_str().context("the response contains no secret")?;
            (made["id"].as_str().map(str::to_owned), secret.to_owned())
        };
        eprintln!("listening on {url}; press Ctrl-C to stop");
        let secret = Secret::parse(&secret).context("the signing secret is invalid")?;
        let ended = receive(listener, secret, self.count, json).await;
        if let Some(webhook) = webhook {
            client.delete(&format!("{webhooks}/{webhook}")).await.context("the webhook was not deleted")?;
        }
        ended
    }
}

async fn receive(
    listener: TcpListener,
    secret: Secret,
    count: Option<u64>,
    json: bool,
) -> anyhow::Result<u8> {
    let secret = Arc::new(secret);
    let (sender, mut deliveries) = mpsc::channel::<Received>(LISTEN_DELIVERIES_MAX);
    let mut connections = JoinSet::new();
    let (mut came, mut code) = (0, 0);
    while count.is_none_or(|count| came < count) {
        while connections.try_join_next().is_some() {}
        // Cancel safe: connections not accepted and deliveries not received remain queued.
        tokio::select! {
            accepted = listener.accept(), if connections.len() < LISTEN_CONNECTIONS_MAX => {
                let (stream, _) = accepted?;
                connections.spawn(serve(TokioIo::new(stream), secret.clone(), sender.clone()));
            }
            Some(delivery) = deliveries.recv() => {
                came += 1;
                match delivery {
                    Ok(delivery) => show(&delivery, json),
                    Err(refused) => {
                        code = 1;
                        eprintln!("delivery refused: {refused}");
                    }
                }
            }
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                break;
            }
        }
    }
    connections.shutdown().await;
    Ok(code)
}

async fn serve(io: TokioIo<tokio::net::TcpStream>, secret: Arc<Secret>, deliveries: mpsc::Sender<Received>) {
    let service = service_fn(async |request: Request<Incoming>| {
        let delivery = delivery(request, &secret).await;
        let status = if delivery.is_ok() { StatusCode::NO_CONTENT } else { StatusCode::UNAUTHORIZED };
        // Forward before responding: with `--count`, the process may exit after the last one.
        let _ = deliveries.send(delivery).await;
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() = status;
        Ok::<_, Infallible>(response)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    // Ignore errors of the connection, e.g. a sender that hangs up.
    let _ = builder.serve_connection(io, service).await;
}

async fn delivery(request: Request<Incoming>, secret: &Secret) -> Received {
    let (head, body) = request.into_parts();
    let header =
        |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body =
        Limited::new(body, LISTEN_DELIVERY_BYTES_MAX).collect().await.map_err(|_| Refused::Body)?.to_bytes();
    let timestamp = header("webhook-timestamp");
    let now = Origin::system().now().unix_timestamp();
    verify(secret, header("webhook-id"), timestamp, header("webhook-signature"), &body, now)?;
    serde_json::from_slice(&body).map_err(|_| Refused::Body)
}

fn show(delivery: &Value, json: bool) {
    if json {
        return print::line(&delivery.to_string());
    }
    let session = delivery["sessionId"].as_str().unwrap_or("-");
    print::line(&format!("{session}  {}", print::event(&delivery["event"]).trim_start()));
}
