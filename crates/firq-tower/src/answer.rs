//! How a refusal is told to the client.

use std::fmt;
use std::sync::Arc;

use firq_async::EnqueueRejectReason;
use http::header::{CONTENT_TYPE, HeaderValue};

use crate::error::{Cause, Refusal};
use crate::rejection::FirqHttpRejection;

/// Turns refusals into responses of the service behind the layer.
///
/// [`JsonAnswer`] is what [`Firq`](crate::Firq) makes unless told otherwise. Closures are answers, too.
pub trait Answer<Response, Error> {
    /// Returns the response to a refused request, or the error it ends with.
    ///
    /// # Errors
    /// As the service behind the layer fails, if this answer is to fail.
    fn answer(&self, refusal: Refusal) -> Result<Response, Error>;
}

impl<Response, Error, F> Answer<Response, Error> for F
where
    F: Fn(Refusal) -> Result<Response, Error>,
{
    fn answer(&self, refusal: Refusal) -> Result<Response, Error> {
        self(refusal)
    }
}

/// Answers with a status, a `Retry-After` and a small JSON document, for any body made from a string.
#[derive(Clone)]
pub struct JsonAnswer {
    mapper: Arc<dyn Fn(Cause) -> FirqHttpRejection<Cause> + Send + Sync>,
}

impl JsonAnswer {
    /// Returns an answer that says what `mapper` says of requests for which there was no room, and the default of
    /// others.
    pub fn new(
        mapper: impl Fn(EnqueueRejectReason) -> FirqHttpRejection + Send + Sync + 'static,
    ) -> Self {
        Self::of_all(move |cause| match cause {
            Cause::Rejected(reason) => {
                let rejection = mapper(reason);
                rejection.with_reason(Cause::Rejected(rejection.reason))
            }
            Cause::Evicted | Cause::Expired | Cause::Closed => FirqHttpRejection::of(cause),
        })
    }

    /// Returns an answer that says what `mapper` says of every refusal.
    pub fn of_all(
        mapper: impl Fn(Cause) -> FirqHttpRejection<Cause> + Send + Sync + 'static,
    ) -> Self {
        Self {
            mapper: Arc::new(mapper),
        }
    }
}

impl Default for JsonAnswer {
    fn default() -> Self {
        Self::of_all(FirqHttpRejection::of)
    }
}

impl<B: From<String>, E> Answer<http::Response<B>, E> for JsonAnswer {
    fn answer(&self, refusal: Refusal) -> Result<http::Response<B>, E> {
        Ok(refusal.into_http(&*self.mapper))
    }
}

impl fmt::Debug for JsonAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonAnswer").finish_non_exhaustive()
    }
}

/// Answers as gRPC does: with status 200, and `grpc-status` and `grpc-message` in the headers.
///
/// No room is `RESOURCE_EXHAUSTED`, a deadline that passed `DEADLINE_EXCEEDED`, a closed layer `UNAVAILABLE`.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcAnswer;

impl<B: Default, E> Answer<http::Response<B>, E> for GrpcAnswer {
    fn answer(&self, refusal: Refusal) -> Result<http::Response<B>, E> {
        let (status, message) = match refusal.cause {
            Cause::Rejected(EnqueueRejectReason::TenantFull) => ("8", "tenant queue saturated"),
            Cause::Rejected(EnqueueRejectReason::GlobalFull) => ("8", "service queue saturated"),
            Cause::Rejected(EnqueueRejectReason::Timeout) => ("8", "no room in time"),
            Cause::Evicted => ("8", "request gave way to another tenant's"),
            Cause::Expired => ("4", "deadline passed before the request's turn came"),
            Cause::Closed => ("14", "service is shutting down"),
        };
        let mut response = http::Response::new(B::default());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static(status));
        headers.insert("grpc-message", HeaderValue::from_static(message));
        if let Some(wait) = refusal.retry_after {
            // What gRPC clients that retry by themselves look at.
            let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            headers.insert("grpc-retry-pushback-ms", HeaderValue::from(millis));
        }
        Ok(response)
    }
}

/// Answers with the refusal as an error, for services that are not HTTP: their error type is made from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorAnswer;

impl<R, E: From<Refusal>> Answer<R, E> for ErrorAnswer {
    fn answer(&self, refusal: Refusal) -> Result<R, E> {
        Err(E::from(refusal))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use super::*;

    fn refusal(cause: Cause) -> Refusal {
        Refusal {
            cause,
            retry_after: Some(Duration::from_millis(1_500)),
        }
    }

    #[test]
    fn grpc_answers_are_trailers_only() {
        let expired: Result<http::Response<String>, Infallible> =
            GrpcAnswer.answer(refusal(Cause::Expired));
        let Ok(response) = expired;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "4");
        assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1500");
        assert!(response.body().is_empty());
    }

    #[test]
    fn errors_and_closures_are_answers() {
        let error: Result<(), Refusal> = ErrorAnswer.answer(refusal(Cause::Evicted));
        assert_eq!(error, Err(refusal(Cause::Evicted)));
        let text = |refusal: Refusal| Ok::<_, Infallible>(refusal.cause.as_str());
        assert_eq!(text.answer(refusal(Cause::Closed)), Ok("closed"));
    }
}
