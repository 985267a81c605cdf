//! W3C trace context of the current span: read from the caller, sent to callees.
//!
//! Without an exporter no span has a context; nothing is read and nothing is sent.

use std::collections::HashMap;

use opentelemetry::{propagation::TextMapPropagator, trace::TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Header of a trace context (W3C Trace Context, level 1).
pub(crate) const TRACEPARENT: &str = "traceparent";
/// Target of spans that are exported; logs exclude it.
pub(crate) const EXPORTED: &str = "otel";

/// Makes `span` a child of the trace in the caller's `traceparent` header.
///
/// A malformed header is ignored, as the specification requires.
pub(crate) fn continue_from(span: &Span, traceparent: Option<&str>) {
    let Some(traceparent) = traceparent else { return };
    let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    let context = TraceContextPropagator::new().extract(&carrier);
    if context.span().span_context().is_valid() {
        // Fails only if no exporter observes spans.
        span.set_parent(context).ok();
    }
}

/// Sets a request's name and attributes by OpenTelemetry's HTTP conventions.
///
/// Logs use their own field names. The name is the route, not the path: span names are for grouping
/// and must not contain ids.
pub(crate) fn request(span: &Span, method: &str, route: &str) {
    span.context().span().update_name(format!("{method} {route}").trim_end().to_owned());
    span.set_attribute("http.request.method", method.to_owned());
    span.set_attribute("http.route", route.to_owned());
}

/// Sets the response status of a request.
pub(crate) fn answered(span: &Span, status: u16) {
    span.set_attribute("http.response.status_code", i64::from(status));
}

/// Returns the trace context of the current span, to send to the next service.
pub(crate) fn current() -> Option<String> {
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&Span::current().context(), &mut carrier);
    carrier.remove(TRACEPARENT)
}
