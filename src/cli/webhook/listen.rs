//! `sojourn webhook listen`: a receiver on this machine's loopback, for development.
//!
//! It adds a webhook that points at itself and removes it at the end, or, with
//! `--secret-stdin`, only verifies what something else forwards to it. Deliveries that do
//! not verify are refused and told; they are never printed as if they were true.

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

use super::Wanted;
use crate::{
    base::{
        Origin,
        limit::{HEADER_TIMEOUT, LISTEN_CONNECTIONS_MAX, LISTEN_DELIVERIES_MAX, LISTEN_DELIVERY_BYTES_MAX},
    },
    cli::{client::Client, print},
    webhook::{Refused, Secret, verify},
};

/// How to receive.
#[derive(Debug, Args)]
pub struct Listen {
    /// Port on 127.0.0.1; a free one by default
    #[arg(long, default_value_t = 0)]
    port: u16,
    #[command(flatten)]
    wanted: Wanted,
    /// Add no webhook: deliveries come by a tunnel of yours, signed with the secret that is read
    /// from standard input
    #[arg(long)]
    secret_stdin: bool,
    /// End after so many deliveries
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
}

/// A delivery that came: as it was signed, or why it is not believed.
type Received = Result<Value, Refused>;

impl Listen {
    /// Receives until interrupted, or until `count` deliveries came. The exit code is 1 when
    /// one of them did not verify.
    pub async fn run(self, client: &Client, webhooks: &str, json: bool) -> anyhow::Result<u8> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await.context("cannot listen")?;
        let url = format!("http://{}/", listener.local_addr()?);
        let (webhook, secret) = if self.secret_stdin {
            (None, super::secret()?)
        } else {
            let mut body = json!({ "url": url });
            self.wanted.write(&mut body);
            let made = client.post(webhooks, &body).await.context(
                "no webhook can point here (the service needs SOJOURN_ALLOW_PRIVATE_WEBHOOKS=on, and must run on this machine)",
            )?;
            let secret = made["secret"].as_str().context("the service told no secret")?;
            (made["id"].as_str().map(str::to_owned), secret.to_owned())
        };
        eprintln!("listening on {url}; Ctrl-C ends it");
        let secret = Secret::parse(&secret).context("that is no signing secret")?;
        let ended = receive(listener, secret, self.count, json).await;
        if let Some(webhook) = webhook {
            client.delete(&format!("{webhooks}/{webhook}")).await.context("the webhook is still there")?;
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
        // Cancel safe: what was not accepted or received stays where it is.
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
                        eprintln!("a delivery was refused: {refused}");
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
        // Told before it is answered: whoever counts deliveries may end here.
        let _ = deliveries.send(delivery).await;
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() = status;
        Ok::<_, Infallible>(response)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    // Whoever hangs up in the middle ends here; there is nobody to tell.
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
