//! One delivery attempt: sends the request and returns the outcome.
//!
//! Called by the dispatcher; calls `net`. Never returns an error: every result is an [`Outcome`], and
//! `schedule` decides what follows.

use std::{error::Error, time::Duration};

use reqwest::{
    Method, Response,
    header::{HeaderMap, RETRY_AFTER},
};
use time::{OffsetDateTime, format_description::well_known::Rfc2822};
use tokio::time::Instant;

use super::signed_request::SignedRequest;
use crate::{
    base::{
        Timestamp,
        limit::{WEBHOOK_ERROR_BYTES_MAX, WEBHOOK_RESPONSE_BYTES_MAX, WEBHOOK_TIMEOUT},
        text::truncate,
    },
    net,
};

/// Outcome of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Status of the receiver's response, if there was one.
    pub status: Option<u16>,
    /// Reason for the failure, shown to the organization; `None` after a 2xx.
    pub error: Option<String>,
    pub duration: Duration,
    /// Delay requested by the receiver's `Retry-After`.
    pub retry_after: Option<Duration>,
}

/// Sends a delivery once, within `WEBHOOK_TIMEOUT`.
///
/// The status decides as soon as it is received: if the receiver sends 200 and then closes the
/// connection, the delivery succeeded. Dropping the future closes the connection; the receiver may or may
/// not have the delivery.
pub async fn send(client: &net::Client, signed: &SignedRequest) -> Outcome {
    let began = Instant::now();
    let (status, error, retry_after) = match post(client, signed).await {
        Ok(response) => {
            let status = response.status();
            let retry_after = retry_after(response.headers(), signed.at);
            drain(response).await;
            let error = (!status.is_success()).then(|| status_error(status.as_u16()));
            (Some(status.as_u16()), error, retry_after)
        }
        Err(error) => (None, Some(truncate(&error, WEBHOOK_ERROR_BYTES_MAX).to_owned()), None),
    };
    Outcome { status, error, duration: began.elapsed(), retry_after }
}

async fn post(client: &net::Client, signed: &SignedRequest) -> Result<Response, String> {
    let request = client.request(Method::POST, &signed.url).map_err(|refused| refused.to_string())?;
    let request = request.timeout(WEBHOOK_TIMEOUT).headers(signed.headers.clone()).body(signed.body.clone());
    request.send().await.map_err(|error| explain(&error))
}

/// Reads and discards the response body, so that the connection can be reused. A long body is cut off by
/// closing the connection.
async fn drain(mut response: Response) {
    let mut left = WEBHOOK_RESPONSE_BYTES_MAX;
    while let Ok(Some(chunk)) = response.chunk().await {
        match left.checked_sub(chunk.len()) {
            Some(rest) => left = rest,
            None => break,
        }
    }
}

fn status_error(status: u16) -> String {
    match status {
        300..400 => format!("the receiver answered {status}; redirects are not followed"),
        410 => "the receiver answered 410: the destination is disabled".to_owned(),
        _ => format!("the receiver answered {status}; only 2xx is success"),
    }
}

fn explain(error: &reqwest::Error) -> String {
    if let Some(refused) = net::refusal(error) {
        return refused.to_string();
    }
    let mut root: &dyn Error = error;
    while let Some(cause) = root.source() {
        root = cause;
    }
    if error.is_connect() {
        format!("no connection to the receiver: {root}")
    } else if error.is_timeout() {
        format!("the receiver did not answer within {} s", WEBHOOK_TIMEOUT.as_secs())
    } else {
        format!("the connection to the receiver broke: {root}")
    }
}

/// Retry-After in either form (RFC 9110, section 10.2.3): seconds or a date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    // The date format that RFC 9110 requires of senders is valid in RFC 2822; the
    // two obsolete formats are treated as absent.
    let date = OffsetDateTime::parse(text, &Rfc2822).ok()?;
    Some((date - now).try_into().unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let now = datetime!(2026-11-01 08:00:00 UTC);
        for (text, seconds) in [
            ("120", Some(120)),
            (" 5 ", Some(5)),
            ("Sun, 01 Nov 2026 08:01:30 GMT", Some(90)),
            ("Sun, 01 Nov 2026 07:00:00 GMT", Some(0)),
            ("-1", None),
            ("soon", None),
            ("1.5", None),
            ("", None),
            ("99999999999999999999999", None),
        ] {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
            assert_eq!(retry_after(&headers, now), seconds.map(Duration::from_secs), "{text:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
