//! Request middleware: request id, log line, error format, size and time limits.

use std::time::{Duration, Instant};

use axum::{
    Json,
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt, Limited};
use tracing::Instrument;

use super::{App, error::ApiError, rate::AllowanceSlot};
use crate::{
    base::{
        limit::{
            ARCHIVE_BYTES_MAX, ARCHIVE_UPLOAD_TIMEOUT, BODY_BYTES_MAX, BODY_DRAIN_BYTES_MAX,
            CONTENT_BODY_BYTES_MAX, FILE_BYTES_MAX, FILE_WRITE_BYTES_MAX, IMPORT_BYTES_MAX, REQUEST_TIMEOUT,
            SKILL_BYTES_MAX,
        },
        trace,
    },
    domain::RequestId,
    wire::{ErrorBody, ErrorType, error::ErrorDetail},
};

/// Assigns the request id, runs the request, and writes errors in the API's format.
pub(super) async fn middleware(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let id: RequestId = app.0.journal.origin().id();
    let started = Instant::now();
    // Only the path, because a query may contain a token.
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let span = tracing::info_span!("request", otel.kind = "server", request.id = %id, method = %method, path);
    // The route instead of the path: ids would make the label's cardinality unbounded.
    let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let parent = request.headers().get(trace::TRACEPARENT).and_then(|value| value.to_str().ok());
    trace::continue_from(&span, parent);
    trace::request(&span, method.as_str(), route.as_deref().unwrap_or_default());
    let told = AllowanceSlot::default();
    request.extensions_mut().insert(told.clone());
    let response = next.run(request).instrument(span.clone()).await;
    let mut response = format_error(response, id);
    if let Some(allowance) = told.0.get() {
        allowance.write(response.headers_mut());
    }
    response.headers_mut().insert("x-request-id", header_value(id));
    let status = response.status().as_u16();
    trace::answered(&span, status);
    let status = status.to_string();
    let labels = [("method", method.to_string()), ("route", route.unwrap_or_default()), ("status", status)];
    metrics::histogram!("sojourn_http_seconds", &labels).record(started.elapsed());
    let duration_ms = started.elapsed().as_millis() as u64;
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), duration_ms, "request answered"));
    response
}

/// Rejects a body that exceeds the limit of its route: by `Content-Length` if it is present, else when
/// the read bytes exceed the limit.
pub(super) async fn limit_body(request: Request, next: Next) -> Response {
    let bytes_max = body_bytes_max(request.uri().path());
    let content_length = request.headers().get(header::CONTENT_LENGTH);
    let content_length: Option<u64> = content_length.and_then(|length| length.to_str().ok()?.parse().ok());
    if let Some(content_length) = content_length.filter(|bytes| *bytes > bytes_max as u64) {
        if content_length <= BODY_DRAIN_BYTES_MAX {
            let drained = drain(request.into_body());
            // A slower client gets the response after this timeout.
            let _ = tokio::time::timeout(REQUEST_TIMEOUT, drained).await;
        }
        let message = format!("the body is larger than {bytes_max} bytes");
        return ApiError::new(ErrorType::TooLarge, message).into_response();
    }
    next.run(request.map(|body| Body::new(Limited::new(body, bytes_max)))).await
}

async fn drain(mut body: Body) {
    while let Some(Ok(_)) = body.frame().await {}
}

fn body_bytes_max(path: &str) -> usize {
    match path {
        "/v3/sessions/import" => IMPORT_BYTES_MAX,
        path if path.starts_with("/v3/sessions/") && path.ends_with("/files") => FILE_WRITE_BYTES_MAX,
        path if is_archive(path) => ARCHIVE_BYTES_MAX as usize,
        "/v3/files" => FILE_BYTES_MAX,
        "/v3/skills" => SKILL_BYTES_MAX,
        path if may_have_files(path) => CONTENT_BODY_BYTES_MAX,
        _ => BODY_BYTES_MAX,
    }
}

/// Whether a request may have files in base64.
fn may_have_files(path: &str) -> bool {
    path == "/v3/sessions"
        || (path.starts_with("/v3/sessions/") && (path.ends_with("/messages") || path.ends_with("/events")))
}

fn is_archive(path: &str) -> bool {
    path.starts_with("/v3/sessions/") && path.ends_with("/archive.tar")
}

/// Returns 503 if no response has begun within `REQUEST_TIMEOUT`. The body of a response may take longer:
/// a stream runs for hours.
///
/// The request's work is dropped: an uncommitted transaction is rolled back; a transaction that was being
/// committed may have taken effect.
pub(super) async fn limit_time(request: Request, next: Next) -> Response {
    // The upload of an archive or a file may take long.
    let path = request.uri().path();
    let is_upload = (request.method() == Method::PUT && is_archive(path))
        || (request.method() == Method::POST && ["/v3/files", "/v3/skills"].contains(&path));
    let time_limit = if is_upload { ARCHIVE_UPLOAD_TIMEOUT } else { REQUEST_TIMEOUT };
    match tokio::time::timeout(time_limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::unavailable(Duration::from_secs(1)).into_response(),
    }
}

/// Converts an error response to the API's error format; leaves other responses unchanged.
fn format_error(mut response: Response, id: RequestId) -> Response {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let error = response.extensions_mut().remove::<ApiError>().unwrap_or_else(|| layer_error(status));
    let body = ErrorBody {
        error: ErrorDetail {
            kind: error.kind,
            message: error.message.into_owned(),
            code: error.code.map(Into::into),
            param: error.param,
            request_id: id.to_string(),
        },
    };
    let headers = std::mem::take(response.headers_mut());
    let mut format_error = (super::error::status(error.kind), Json(body)).into_response();
    for (name, value) in &headers {
        // The body was replaced.
        if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
            format_error.headers_mut().insert(name, value.clone());
        }
    }
    format_error
}

/// Error for a response that a layer produced without a handler.
fn layer_error(status: axum::http::StatusCode) -> ApiError {
    use axum::http::StatusCode;

    match status {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::new(
            ErrorType::TooLarge,
            format!("the body is larger than {} bytes", crate::base::limit::BODY_BYTES_MAX),
        ),
        StatusCode::METHOD_NOT_ALLOWED => {
            ApiError::new(ErrorType::MethodNotAllowed, "this path does not support this method")
        }
        StatusCode::NOT_FOUND => ApiError::not_found(),
        status if status.is_client_error() => {
            ApiError::new(ErrorType::Invalid, "the request is not well formed")
        }
        _ => ApiError::new(ErrorType::Internal, "internal error"),
    }
}

fn header_value(id: RequestId) -> HeaderValue {
    HeaderValue::from_str(&id.to_string()).expect("an id is ASCII")
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::Body, routing::get};
    use tower::ServiceExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_takes_too_long_is_answered_503() {
        let router = Router::new()
            .route("/", get(std::future::pending::<()>))
            .layer(axum::middleware::from_fn(limit_time));
        let request = Request::builder().uri("/").body(Body::empty()).expect("a request");
        let response = router.oneshot(request).await.expect("an answer");
        assert_eq!(response.status(), axum::http::StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert_eq!(format_error(response, crate::base::Origin::system().id()).status(), 503);
    }
}
