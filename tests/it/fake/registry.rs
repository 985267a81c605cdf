//! A registry on loopback: the part of the OCI distribution API that pulls, strictly.
//!
//! It serves one repository. Blobs are served through redirects to another host, as registries with a bucket do.
//! A request that no registry understands is refused and recorded.

use std::{
    collections::HashMap,
    net::TcpListener,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;
use sojourn::base::{seal::sha256, text::hex};
use tokio::runtime::Runtime;

/// The repository that it serves.
pub const REPOSITORY: &str = "team/tools";
/// Its tokens.
const TOKEN: &str = "a-token-of-the-registry";
/// Its name for the token service.
const SERVICE: &str = "the registry";

/// A running registry.
pub struct Registry {
    pub port: u16,
    shared: Arc<Shared>,
    _runtime: Runtime,
}

#[derive(Default)]
struct Shared {
    port: u16,
    /// Manifests and indexes with their media types, by digest.
    documents: Mutex<HashMap<String, (String, Vec<u8>)>>,
    blobs: Mutex<HashMap<String, Vec<u8>>>,
    access: Mutex<Access>,
    /// Runs before a blob is served.
    before_blob: Mutex<Option<Box<dyn FnMut() + Send>>>,
    requests: Mutex<Vec<String>>,
    wrong: Mutex<Vec<String>>,
}

/// Callers that may pull.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Access {
    /// Anyone, without a token.
    #[default]
    Open,
    /// Anyone, with a token.
    Token,
    /// These credentials, with a token: `user:password`.
    Credentials(&'static str),
}

/// Digest of content.
pub fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex(&sha256(content)))
}

impl Registry {
    pub fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared { port, ..Shared::default() });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            axum::serve(listener, router).await.expect("it serves");
        });
        Self { port, shared, _runtime: runtime }
    }

    pub fn restrict(&self, access: Access) {
        *self.shared.access.lock().unwrap() = access;
    }

    /// Stores a blob; returns its digest.
    pub fn blob(&self, content: impl Into<Vec<u8>>) -> String {
        let content = content.into();
        let digest = digest(&content);
        self.blob_as(&digest, content);
        digest
    }

    /// Serves content under any digest.
    pub fn blob_as(&self, digest: &str, content: impl Into<Vec<u8>>) {
        self.shared.blobs.lock().unwrap().insert(digest.to_owned(), content.into());
    }

    pub fn remove_blob(&self, digest: &str) {
        self.shared.blobs.lock().unwrap().remove(digest).expect("it is there");
    }

    /// Stores a manifest or an index; returns its digest.
    pub fn document(&self, media_type: &str, content: &serde_json::Value) -> String {
        let content = content.to_string().into_bytes();
        let digest = digest(&content);
        self.document_as(&digest, media_type, content);
        digest
    }

    /// Serves a document under any digest.
    pub fn document_as(&self, digest: &str, media_type: &str, content: Vec<u8>) {
        let document = (media_type.to_owned(), content);
        self.shared.documents.lock().unwrap().insert(digest.to_owned(), document);
    }

    /// Calls `run` before each blob is served.
    pub fn before_blob(&self, run: impl FnMut() + Send + 'static) {
        *self.shared.before_blob.lock().unwrap() = Some(Box::new(run));
    }

    /// The reference of a digest.
    pub fn reference(&self, digest: &str) -> String {
        format!("127.0.0.1:{}/{REPOSITORY}@{digest}", self.port)
    }

    /// Requests so far, as method and path.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Fails if a request was none of the API.
    pub fn assert_understood(&self) {
        assert_eq!(*self.shared.wrong.lock().unwrap(), Vec::<String>::new());
    }
}

impl Shared {
    /// Refuses a request that no client should send.
    fn wrong(&self, why: &str, path: &str) -> Response {
        self.wrong.lock().unwrap().push(format!("{why}: {path}"));
        (StatusCode::BAD_REQUEST, why.to_owned()).into_response()
    }

    /// Answers the token service.
    fn token(&self, headers: &HeaderMap, query: &str) -> Response {
        let given: Vec<(String, String)> =
            url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let has = |name: &str, value: &str| given.iter().any(|pair| (&*pair.0, &*pair.1) == (name, value));
        if !has("scope", &format!("repository:{REPOSITORY}:pull")) || !has("service", SERVICE) {
            return self.wrong("a token has another scope or service", query);
        }
        let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let allowed = match &*self.access.lock().unwrap() {
            Access::Open => return self.wrong("a token is not needed", query),
            Access::Token => authorization.is_none(),
            Access::Credentials(pair) => {
                authorization == Some(format!("Basic {}", STANDARD.encode(pair)).as_str())
            }
        };
        match allowed {
            true => axum::Json(json!({ "token": TOKEN, "expires_in": 300 })).into_response(),
            false => refusal(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "incorrect username or password"),
        }
    }

    fn is_allowed(&self, headers: &HeaderMap) -> bool {
        let token = format!("Bearer {TOKEN}");
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        *self.access.lock().unwrap() == Access::Open || given == Some(token.as_str())
    }

    fn challenge(&self) -> Response {
        let mut response = refusal(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "authentication required");
        let realm = format!(
            r#"Bearer realm="http://127.0.0.1:{}/token",service="{SERVICE}",scope="repository:{REPOSITORY}:pull""#,
            self.port
        );
        response.headers_mut().insert(header::WWW_AUTHENTICATE, realm.parse().expect("a header"));
        response
    }

    fn manifest(&self, headers: &HeaderMap, reference: &str, path: &str) -> Response {
        if !reference.starts_with("sha256:") {
            return self.wrong("a manifest was requested by a tag", path);
        }
        let documents = self.documents.lock().unwrap();
        let Some((media_type, content)) = documents.get(reference) else {
            return refusal(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "manifest unknown");
        };
        let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        if !accepted.flat_map(|value| value.split(',')).any(|one| one.trim() == media_type) {
            return self.wrong("the type of a manifest is not accepted", path);
        }
        let headers = [(header::CONTENT_TYPE.as_str(), &**media_type), ("docker-content-digest", reference)];
        (headers, content.clone()).into_response()
    }

    fn blob(&self, digest: &str) -> Response {
        if let Some(run) = &mut *self.before_blob.lock().unwrap() {
            run();
        }
        if !self.blobs.lock().unwrap().contains_key(digest) {
            return refusal(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", "blob unknown to registry");
        }
        let place = format!("http://localhost:{}/bucket/{digest}", self.port);
        (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, place)]).into_response()
    }

    /// Answers the host with the blobs. Like a bucket, it refuses a token that is not its own.
    fn bucket(&self, headers: &HeaderMap, digest: &str) -> Response {
        if headers.contains_key(header::AUTHORIZATION) {
            return self.wrong("a token was sent to another host", digest);
        }
        match self.blobs.lock().unwrap().get(digest) {
            Some(content) => {
                ([(header::CONTENT_TYPE, "application/octet-stream")], content.clone()).into_response()
            }
            None => StatusCode::NOT_FOUND.into_response(),
        }
    }
}

fn refusal(status: StatusCode, code: &str, message: &str) -> Response {
    let envelope = json!({ "errors": [{ "code": code, "message": message, "detail": {} }] });
    (status, axum::Json(envelope)).into_response()
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    let (uri, headers) = (request.uri().clone(), request.headers());
    let path = uri.path();
    shared.requests.lock().unwrap().push(format!("{} {path}", request.method()));
    if request.method() != Method::GET {
        return shared.wrong("a pull only reads", path);
    }
    if path == "/token" {
        return shared.token(headers, uri.query().unwrap_or_default());
    }
    if let Some(digest) = path.strip_prefix("/bucket/") {
        return shared.bucket(headers, digest);
    }
    let Some(rest) = path.strip_prefix("/v2/") else { return shared.wrong("an unknown path", path) };
    if !shared.is_allowed(headers) {
        return shared.challenge();
    }
    if rest.is_empty() {
        let version = [("docker-distribution-api-version", "registry/2.0")];
        return (version, axum::Json(json!({}))).into_response();
    }
    let Some(inner) = rest.strip_prefix(REPOSITORY).and_then(|rest| rest.strip_prefix('/')) else {
        return refusal(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "repository name not known to registry");
    };
    match inner.split_once('/') {
        Some(("manifests", reference)) => shared.manifest(headers, reference, path),
        Some(("blobs", digest)) => shared.blob(digest),
        _ => shared.wrong("an unknown path", path),
    }
}
