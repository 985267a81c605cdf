//! HTTP of a connection: every request with the access of the server, counted towards the share of its organization.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use futures::stream::BoxStream;
use http::{HeaderName, HeaderValue};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest},
    transport::streamable_http_client::{
        SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
        StreamableHttpResponseLimits,
    },
};
use sse_stream::Sse;
use tokio::time::sleep;

use super::{Access, AccessSource, failure::NoAccess};
use crate::{
    base::{
        ExposeSecret, SecretString,
        limit::{MCP_STREAM_INTERVAL, MCP_STREAMS_MAX},
    },
    domain::OrgId,
    net,
};

/// Error of a request.
type Fault = StreamableHttpError<reqwest::Error>;

/// The HTTP client of one connection.
#[derive(Clone)]
pub(super) struct Http {
    pub client: reqwest::Client,
    pub org: OrgId,
    pub access: Arc<dyn AccessSource>,
    /// Event streams that were opened.
    pub streams: Arc<AtomicU32>,
}

/// Token and headers of one request.
struct Authorized {
    token: Option<SecretString>,
    bearer: Option<String>,
    headers: HashMap<HeaderName, HeaderValue>,
}

impl Http {
    async fn authorize(
        &self,
        mut headers: HashMap<HeaderName, HeaderValue>,
        refused: Option<&SecretString>,
    ) -> Result<Authorized, Fault> {
        let no_access = |words: String| StreamableHttpError::Io(io::Error::other(NoAccess(words)));
        let Access { token, key_header, headers: own } =
            self.access.access(refused).await.map_err(no_access)?;
        let named = key_header.zip(token.clone());
        let bearer = if named.is_some() { None } else { token.as_ref() };
        let bearer = bearer.map(|token| token.expose_secret().to_owned());
        if bearer.as_ref().is_some_and(|token| HeaderValue::from_str(token).is_err()) {
            return Err(no_access("the token cannot be sent in a header".to_owned()));
        }
        for (name, value) in own.into_iter().chain(named) {
            let name = HeaderName::try_from(name).map_err(|error| no_access(error.to_string()))?;
            let mut value = HeaderValue::from_str(value.expose_secret())
                .map_err(|_| no_access(format!("the value of the header {name} cannot be sent")))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(Authorized { token, bearer, headers })
    }
}

/// Takes the capability to be asked out of the message that begins a session: the versions with sessions would ask while a call is
/// held.
pub(super) fn not_for_sessions(message: &mut ClientJsonRpcMessage) {
    if let ClientJsonRpcMessage::Request(request) = message
        && let ClientRequest::InitializeRequest(initialize) = &mut request.request
    {
        initialize.params.capabilities.elicitation = None;
    }
}

/// Whether the server answered 401, with or without a challenge.
fn is_unauthorized(error: &Fault) -> bool {
    match error {
        StreamableHttpError::AuthRequired(_) => true,
        StreamableHttpError::UnexpectedServerResponse(words) => words.starts_with("HTTP 401"),
        _ => false,
    }
}

impl StreamableHttpClient for Http {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session_id, auth_header, custom_headers, limits)
            .await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        mut message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        not_for_sessions(&mut message);
        let post = async |authorized: Authorized| {
            let Authorized { bearer, headers, .. } = authorized;
            let (uri, message, session) = (Arc::clone(&uri), message.clone(), session_id.clone());
            net::for_org(
                self.org,
                self.client.post_message_with_response_limits(uri, message, session, bearer, headers, limits),
            )
            .await
        };
        let authorized = self.authorize(custom_headers.clone(), None).await?;
        let Some(token) = authorized.token.clone() else { return post(authorized).await };
        match post(authorized).await {
            // It was not processed: once more with another token, if there is one.
            Err(error) if is_unauthorized(&error) => {
                post(self.authorize(custom_headers, Some(&token)).await?).await
            }
            answered => answered,
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Fault> {
        let Authorized { bearer, headers, .. } = self.authorize(custom_headers, None).await?;
        net::for_org(self.org, self.client.delete_session(uri, session_id, bearer, headers)).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Fault> {
        let bytes_max = StreamableHttpResponseLimits::default().max_sse_event_size;
        self.get_stream_with_max_sse_event_size(
            uri,
            session_id,
            last_event_id,
            auth_header,
            custom_headers,
            bytes_max,
        )
        .await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        max_sse_event_size: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Fault> {
        // The library opens a stream again at once when a server ends it.
        let opened = self.streams.fetch_add(1, Ordering::Relaxed);
        if opened >= MCP_STREAMS_MAX {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if opened > 0 {
            sleep(MCP_STREAM_INTERVAL).await;
        }
        let Authorized { bearer, headers, .. } = self.authorize(custom_headers, None).await?;
        let stream = self.client.get_stream_with_max_sse_event_size(
            uri,
            session_id,
            last_event_id,
            bearer,
            headers,
            max_sse_event_size,
        );
        net::for_org(self.org, stream).await
    }
}
