//! The W3C trace context of the span that is entered: taken from a caller, handed to
//! whoever is called.
//!
//! Without an exporter no span has a context: nothing is taken and nothing is sent.

use std::collections::HashMap;

use opentelemetry::{propagation::TextMapPropagator, trace::TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The header of a trace context (W3C Trace Context, level 1).
pub const TRACEPARENT: &str = "traceparent";
/// The target of spans that are exported; logs leave it out.
pub const EXPORTED: &str = "otel";

/// Makes `span` a part of the trace that a caller named. What is not well formed is
/// ignored, as the specification asks.
pub fn continue_from(span: &Span, traceparent: Option<&str>) {
    let Some(traceparent) = traceparent else { return };
    let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    let context = TraceContextPropagator::new().extract(&carrier);
    if context.span().span_context().is_valid() {
        // Fails only where no exporter looks at spans.
        span.set_parent(context).ok();
    }
}

/// What a collector is told of a request, by OpenTelemetry's conventions for HTTP; logs
/// have their own words. The route, not the path: names are groups, and ids are none.
pub fn request(span: &Span, method: &str, route: &str) {
    span.context().span().update_name(format!("{method} {route}").trim_end().to_owned());
    span.set_attribute("http.request.method", method.to_owned());
    span.set_attribute("http.route", route.to_owned());
}

/// How a request was answered.
pub fn answered(span: &Span, status: u16) {
    span.set_attribute("http.response.status_code", i64::from(status));
}

/// The context of the span that is entered, for whoever is called next.
pub fn current() -> Option<String> {
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&Span::current().context(), &mut carrier);
    carrier.remove(TRACEPARENT)
}
