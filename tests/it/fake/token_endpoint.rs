//! The token endpoint of an authorization server on loopback: the grants `refresh_token` and `client_credentials`. It
//! refuses what RFC 6749 lets it refuse, and each refresh token is good once.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle, time::sleep};

/// What the endpoint knows.
#[derive(Default)]
struct Known {
    /// Refresh token that is good now.
    refresh_token: String,
    expires_in: Option<u64>,
    /// Tokens that were given.
    given: Vec<String>,
    /// Requests, refused ones too.
    requests: usize,
    /// Status of all answers, if it is not the usual one.
    status: Option<u16>,
    /// Whether all access tokens are the same.
    is_fixed: bool,
}

/// The endpoint; stops on drop.
pub struct TokenEndpoint {
    pub url: String,
    known: Arc<Mutex<Known>>,
    task: JoinHandle<()>,
}

impl Drop for TokenEndpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TokenEndpoint {
    /// An endpoint for the client `sojourn` with the secret `secret of the test`; the first refresh token is `first`.
    pub async fn start(expires_in: Option<u64>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let url = format!("http://{}/token", listener.local_addr().expect("an address"));
        let known = Known { refresh_token: "first".to_owned(), expires_in, ..Known::default() };
        let known = Arc::new(Mutex::new(known));
        let routes = Router::new().route("/token", post(serve)).with_state(Arc::clone(&known));
        let task = tokio::spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
        Self { url, known, task }
    }

    /// The client as a credential has it, with this refresh token.
    pub fn client(&self, refresh_token: Option<&str>) -> Value {
        let mut client = json!({
            "token_url": self.url, "client_id": "sojourn", "client_secret": "secret of the test", "scope": "tools",
        });
        if let Some(refresh_token) = refresh_token {
            client["refresh_token"] = json!(refresh_token);
        }
        client
    }

    /// Makes this the only refresh token that is good.
    pub fn set_refresh_token(&self, refresh_token: &str) {
        refresh_token.clone_into(&mut self.known.lock().expect("no panic").refresh_token);
    }

    /// Answers everything with a status from now on.
    pub fn fail(&self, status: Option<u16>) {
        self.known.lock().expect("no panic").status = status;
    }

    /// Gives the same access token each time.
    pub fn fix_token(&self) {
        self.known.lock().expect("no panic").is_fixed = true;
    }

    /// Access tokens that were given, oldest first.
    pub fn given(&self) -> Vec<String> {
        self.known.lock().expect("no panic").given.clone()
    }

    /// Number of requests, refused ones too.
    pub fn requests(&self) -> usize {
        self.known.lock().expect("no panic").requests
    }
}

fn denied(error: &str) -> Response {
    (StatusCode::BAD_REQUEST, axum::Json(json!({ "error": error }))).into_response()
}

async fn serve(State(known): State<Arc<Mutex<Known>>>, headers: HeaderMap, body: Bytes) -> Response {
    // A slow endpoint, so that several processes want a token at the same time.
    sleep(Duration::from_millis(300)).await;
    let mut known = known.lock().expect("no panic");
    known.requests += 1;
    if let Some(status) = known.status {
        return StatusCode::from_u16(status).expect("a status").into_response();
    }
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let expected = BASE64_STANDARD.encode("sojourn:secret+of+the+test");
    if header("content-type") != "application/x-www-form-urlencoded" {
        return denied("invalid_request");
    }
    if header("authorization") != format!("Basic {expected}") {
        return denied("invalid_client");
    }
    let form: Vec<(String, String)> = url::form_urlencoded::parse(&body).into_owned().collect();
    let field = |name: &str| form.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    if field("scope") != Some("tools") || field("client_id").is_some() {
        return denied("invalid_request");
    }
    let refreshed = match field("grant_type") {
        Some("client_credentials") => None,
        Some("refresh_token") if field("refresh_token") == Some(&known.refresh_token) => {
            known.refresh_token = format!("refresh-{}", known.given.len() + 1);
            Some(known.refresh_token.clone())
        }
        Some("refresh_token") => return denied("invalid_grant"),
        _ => return denied("unsupported_grant_type"),
    };
    let number = if known.is_fixed { 1 } else { known.given.len() + 1 };
    let access = format!("access-{number}");
    known.given.push(access.clone());
    let mut granted = json!({ "access_token": access, "token_type": "Bearer" });
    if let Some(seconds) = known.expires_in {
        granted["expires_in"] = json!(seconds);
    }
    if let Some(refresh_token) = refreshed {
        granted["refresh_token"] = json!(refresh_token);
    }
    axum::Json(granted).into_response()
}
