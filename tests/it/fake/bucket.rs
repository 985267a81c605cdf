//! A bucket on loopback, in memory: GET, PUT, ListObjectsV2 and DeleteObjects of the S3 protocol. It can stop to answer.

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
    Method, Request, Response, StatusCode, Uri, body::Incoming, server::conn::http1, service::service_fn,
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
        Method::GET if query(&parts.uri, "list-type").is_some() => {
            let prefix = format!("{key}/{}", query(&parts.uri, "prefix").unwrap_or_default());
            let found = objects.keys().filter(|found| found.starts_with(&prefix));
            (StatusCode::OK, listing(found.filter_map(|found| found.strip_prefix(&format!("{key}/")))))
        }
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
        Method::POST if query(&parts.uri, "delete").is_some() => {
            let request = String::from_utf8_lossy(&content).into_owned();
            let removed: Vec<_> =
                request.split("<Key>").skip(1).filter_map(|rest| rest.split_once('<')).collect();
            let mut answer = String::from("<DeleteResult>");
            for (name, _) in removed {
                objects.remove(&format!("{key}/{name}"));
                answer += &format!("<Deleted><Key>{name}</Key></Deleted>");
            }
            (StatusCode::OK, (answer + "</DeleteResult>").into())
        }
        _ => (StatusCode::NOT_IMPLEMENTED, Bytes::new()),
    };
    let response = Response::builder()
        .status(status)
        .header("etag", "\"1\"")
        .header("last-modified", "Mon, 01 Jan 2024 00:00:00 GMT");
    Ok(response.body(Full::new(content)).expect("a response"))
}

/// A parameter of a request.
fn query(uri: &Uri, name: &str) -> Option<String> {
    let pairs = url::form_urlencoded::parse(uri.query()?.as_bytes());
    pairs.into_iter().find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
}

fn listing<'a>(keys: impl Iterator<Item = &'a str>) -> Bytes {
    let mut answer = String::from("<ListBucketResult>");
    for key in keys {
        answer += &format!(
            "<Contents><Key>{key}</Key><Size>1</Size><LastModified>2024-01-01T00:00:00.000Z</LastModified>\
             <ETag>\"1\"</ETag></Contents>"
        );
    }
    (answer + "</ListBucketResult>").into()
}
