//! Traces: the server takes the trace context of a call, puts it into the headers of its messages, and exports spans.
//!
//! A span names the queue and the message. It has nothing of the message's content.

use fila_proto::v1;
use tonic::metadata::MetadataMap;
use tracing::Span;
use tracing::field::Empty;

use crate::telemetry::{TRACEPARENT, TRACESTATE, TraceContext};

/// Whether the server makes spans. Without an exporter they would cost time for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracing {
    On,
    Off,
}

impl Tracing {
    /// Returns the span of a call that enqueues. It is part of the caller's trace.
    pub(super) fn enqueue(self, queue: &str, call: &CallTrace) -> Span {
        if self == Self::Off {
            return Span::none();
        }
        let span = tracing::info_span!("enqueue", queue, message_id = Empty);
        if let Some(context) = &call.0 {
            context.set_parent_of(&span);
        }
        span
    }

    /// Records the delivery of a message that belongs to a sampled trace.
    pub(super) fn deliver(self, queue: &str, delivery: &v1::Delivery) {
        if self == Self::Off {
            return;
        }
        let headers = delivery.headers.iter();
        let headers = headers.map(|(name, value)| (name.as_str(), value.as_str()));
        if let Some(context) = TraceContext::from_headers(headers)
            && context.is_sampled()
        {
            let message_id = delivery.message_id.as_str();
            let span = tracing::info_span!("deliver", queue, message_id);
            context.set_parent_of(&span);
            drop(span.entered());
        }
    }
}

/// The trace that a call belongs to, if any.
#[derive(Clone, Debug, Default)]
pub(super) struct CallTrace(Option<TraceContext>);

impl CallTrace {
    /// Reads it from a call's metadata. A malformed context counts as absent.
    pub(super) fn of(metadata: &MetadataMap) -> Self {
        let entries = [TRACEPARENT, TRACESTATE].into_iter().flat_map(|name| {
            let values = metadata.get_all(name).iter();
            values.filter_map(move |value| Some((name, value.to_str().ok()?)))
        });
        Self(TraceContext::from_headers(entries))
    }

    /// Adds it to a message's headers, unless they have a trace context.
    pub(super) fn add_to(&self, headers: &mut Vec<(String, String)>) {
        let Some(context) = &self.0 else {
            return;
        };
        let is = |name: &str, other: &str| name.eq_ignore_ascii_case(other);
        if headers.iter().any(|(name, _)| is(name, TRACEPARENT)) {
            return;
        }
        // A `tracestate` without its `traceparent` has no meaning.
        headers.retain(|(name, _)| !is(name, TRACESTATE));
        headers.extend(
            context
                .headers()
                .map(|(name, value)| (name.to_owned(), value)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn call(parent: &str) -> CallTrace {
        let mut metadata = MetadataMap::new();
        metadata.insert(TRACEPARENT, parent.parse().unwrap());
        metadata.insert(TRACESTATE, "vendor=1".parse().unwrap());
        CallTrace::of(&metadata)
    }

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn a_call_hands_its_trace_to_messages_that_have_none() {
        let mut headers = vec![header("a", "b"), header("Tracestate", "other=2")];
        call(PARENT).add_to(&mut headers);
        let expected = [
            header("a", "b"),
            header(TRACEPARENT, PARENT),
            header(TRACESTATE, "vendor=1"),
        ];
        assert_eq!(headers, expected);

        let own = [header("Traceparent", "own")];
        let mut headers = own.to_vec();
        call(PARENT).add_to(&mut headers);
        assert_eq!(headers, own);
    }

    #[test]
    fn what_is_no_trace_is_not_carried() {
        let mut headers = Vec::new();
        call("certainly not").add_to(&mut headers);
        CallTrace::of(&MetadataMap::new()).add_to(&mut headers);
        assert_eq!(headers, []);
    }
}
