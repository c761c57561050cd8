//! Refusals as HTTP: status, and a small JSON document whose fields are stable.
//!
//! | cause | status | `code` | `reason` | `Retry-After` |
//! |---|---|---|---|---|
//! | the tenant has too many requests queued | 429 | `tenant_full` | `TenantFull` | yes |
//! | too many requests are queued in all | 503 | `global_full` | `GlobalFull` | yes |
//! | there was no room in time | 503 | `timeout` | `Timeout` | yes |
//! | gave way to a tenant that had less | 429 | `evicted` | `Evicted` | yes |
//! | the deadline passed in the queue | 504 | `expired` | `Expired` | no |
//! | the layer is closed | 503 | `closed` | `Closed` | no |

use std::time::Duration;

use firq_async::EnqueueRejectReason;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde::Serialize;

use crate::error::{Cause, Refusal};

/// The response to a refused request.
///
/// Serialised, it has the fields `status`, `code`, `message` and `reason`, which are stable. The reason is that of a
/// request for which there was no room, or a [`Cause`], which is any of the six.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirqHttpRejection<R = EnqueueRejectReason> {
    /// The HTTP status. One that HTTP does not have is sent as 503.
    pub status: u16,
    /// What happened, for programs.
    pub code: &'static str,
    /// What happened, for people.
    pub message: &'static str,
    /// What happened, for us.
    pub reason: R,
}

impl FirqHttpRejection {
    /// Returns what clients are told by default: 429 if the tenant is at fault, 503 if not.
    #[must_use]
    pub const fn new(reason: EnqueueRejectReason) -> Self {
        FirqHttpRejection::of(Cause::Rejected(reason)).with_reason(reason)
    }
}

impl FirqHttpRejection<Cause> {
    /// Returns what clients are told of any refusal by default.
    #[must_use]
    pub const fn of(cause: Cause) -> Self {
        let (status, message) = match cause {
            Cause::Rejected(EnqueueRejectReason::TenantFull) => (429, "tenant queue saturated"),
            Cause::Rejected(EnqueueRejectReason::GlobalFull) => (503, "service queue saturated"),
            Cause::Rejected(EnqueueRejectReason::Timeout) => {
                (503, "request timed out waiting for scheduler")
            }
            Cause::Evicted => (429, "request gave way to another tenant's"),
            Cause::Expired => (504, "deadline passed before the request's turn came"),
            Cause::Closed => (503, "service is shutting down"),
        };
        Self {
            status,
            code: cause.as_str(),
            message,
            reason: cause,
        }
    }
}

impl<R: Copy> FirqHttpRejection<R> {
    /// Returns the rejection as a response, with the time to come back if there is one.
    #[must_use]
    pub fn into_http<B: From<String>>(self, retry_after: Option<Duration>) -> Response<B>
    where
        R: Into<Cause>,
    {
        let reason = match self.reason.into() {
            Cause::Rejected(EnqueueRejectReason::TenantFull) => "TenantFull",
            Cause::Rejected(EnqueueRejectReason::GlobalFull) => "GlobalFull",
            Cause::Rejected(EnqueueRejectReason::Timeout) => "Timeout",
            Cause::Evicted => "Evicted",
            Cause::Expired => "Expired",
            Cause::Closed => "Closed",
        };
        let document = Document {
            status: self.status,
            code: self.code,
            message: self.message,
            reason,
        };
        document.into_http(retry_after)
    }

    pub(crate) const fn with_reason<S: Copy>(self, reason: S) -> FirqHttpRejection<S> {
        FirqHttpRejection {
            status: self.status,
            code: self.code,
            message: self.message,
            reason,
        }
    }
}

/// The body of every refusal.
#[derive(Serialize)]
struct Document {
    status: u16,
    code: &'static str,
    message: &'static str,
    reason: &'static str,
}

impl Document {
    fn into_http<B: From<String>>(self, retry_after: Option<Duration>) -> Response<B> {
        let body = serde_json::to_string(&self).expect("strings and a number are valid JSON");
        let mut response = Response::new(B::from(body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        response
    }
}

impl Refusal {
    /// Returns the refusal as a response, where `mapper` says what clients are told.
    #[must_use]
    pub fn into_http<B: From<String>>(
        self,
        mapper: impl FnOnce(Cause) -> FirqHttpRejection<Cause>,
    ) -> Response<B> {
        mapper(self.cause).into_http(self.retry_after)
    }
}

/// Returns a wait as HTTP states it: in whole seconds, never too short, and never none.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    let begun = u64::from(wait.subsec_nanos() > 0);
    (wait.as_secs() + begun).max(1)
}

#[cfg(feature = "axum")]
mod axum {
    use axum_core::response::{IntoResponse, Response};

    use super::{Cause, FirqHttpRejection, Refusal};

    impl<R: Into<Cause> + Copy> IntoResponse for FirqHttpRejection<R> {
        fn into_response(self) -> Response {
            self.into_http(None)
        }
    }

    impl IntoResponse for Refusal {
        fn into_response(self) -> Response {
            self.into_http(FirqHttpRejection::of)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_that_of_the_specification() {
        let response: Response<String> =
            FirqHttpRejection::new(EnqueueRejectReason::TenantFull).into_http(None);
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        assert!(!response.headers().contains_key(RETRY_AFTER));
        assert_eq!(
            response.body(),
            r#"{"status":429,"code":"tenant_full","message":"tenant queue saturated","reason":"TenantFull"}"#
        );
    }

    #[test]
    fn every_cause_has_its_status_and_its_code() {
        let answer = |cause| {
            let refusal = Refusal {
                cause,
                retry_after: None,
            };
            let response: Response<String> = refusal.into_http(FirqHttpRejection::of);
            let body: serde_json::Value = serde_json::from_str(response.body()).unwrap();
            assert_eq!(body["status"], response.status().as_u16());
            assert_eq!(body["code"], cause.as_str());
            let reason = body["reason"].as_str().unwrap().to_owned();
            (response.status().as_u16(), reason)
        };
        let answers: Vec<(u16, String)> = Cause::ALL.into_iter().map(answer).collect();
        let expected = [
            (429, "TenantFull"),
            (503, "GlobalFull"),
            (503, "Timeout"),
            (429, "Evicted"),
            (504, "Expired"),
            (503, "Closed"),
        ];
        assert_eq!(
            answers,
            expected.map(|(status, reason)| (status, reason.to_owned()))
        );
    }

    #[test]
    fn a_wait_is_rounded_up() {
        for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (59_999, 60)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
    }

    #[test]
    fn a_status_that_http_does_not_have_is_sent_as_503() {
        let odd = FirqHttpRejection {
            status: 7,
            ..FirqHttpRejection::new(EnqueueRejectReason::Timeout)
        };
        assert_eq!(odd.into_http::<String>(None).status(), 503);
    }
}
