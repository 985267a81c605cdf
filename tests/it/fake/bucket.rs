//! A bucket on loopback: GET, PUT and DELETE of the S3 protocol, in memory. It can stop to answer.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, task::JoinHandle, time::sleep};

/// A running bucket.
pub struct Bucket {
    port: u16,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    objects: Mutex<HashMap<String, Bytes>>,
    hangs: AtomicBool,
    unanswered: AtomicUsize,
}

impl Bucket {
    pub async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::<Shared>::default();
        let server = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let shared = Arc::clone(&shared);
                    let service = service_fn(move |request| answer(Arc::clone(&shared), request));
                    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
                }
            }
        });
        Self { port, shared, server }
    }

    /// Environment of a process whose blobs are in this bucket.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("SOJOURN_BLOB_STORE", "s3://sojourn/prefix".to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
        ]
    }

    /// Whether it reads requests and never answers.
    pub fn hang(&self, hangs: bool) {
        self.shared.hangs.store(hangs, Ordering::SeqCst);
    }

    /// Number of requests that it read while it did not answer.
    pub fn unanswered(&self) -> usize {
        self.shared.unanswered.load(Ordering::SeqCst)
    }

    /// Number of objects whose key contains `part`.
    pub fn objects(&self, part: &str) -> usize {
        self.shared.objects.lock().expect("no holder panics").keys().filter(|key| key.contains(part)).count()
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let content = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    if shared.hangs.load(Ordering::SeqCst) {
        shared.unanswered.fetch_add(1, Ordering::SeqCst);
        while shared.hangs.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(20)).await;
        }
    }
    let key = parts.uri.path().to_owned();
    let mut objects = shared.objects.lock().expect("no holder panics");
    let (status, content) = match parts.method {
        Method::GET => match objects.get(&key) {
            Some(content) => (StatusCode::OK, content.clone()),
            None => (StatusCode::NOT_FOUND, Bytes::new()),
        },
        Method::PUT if parts.headers.contains_key("if-none-match") && objects.contains_key(&key) => {
            (StatusCode::PRECONDITION_FAILED, Bytes::new())
        }
        Method::PUT => {
            objects.insert(key, content);
            (StatusCode::OK, Bytes::new())
        }
        Method::DELETE => {
            objects.remove(&key);
            (StatusCode::NO_CONTENT, Bytes::new())
        }
        _ => (StatusCode::NOT_IMPLEMENTED, Bytes::new()),
    };
    let response = Response::builder()
        .status(status)
        .header("etag", "\"1\"")
        .header("last-modified", "Mon, 01 Jan 2024 00:00:00 GMT");
    Ok(response.body(Full::new(content)).expect("a response"))
}
