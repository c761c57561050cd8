//! Log lines on standard error, and traces by OTLP.
//!
//! Log lines and spans name queues, counts, sizes and times. They never contain a payload or the value of a header, which
//! may be secret: logs travel further than messages.
//!
//! A message carries its trace in the headers `traceparent` and `tracestate` of [W3C Trace Context]. [`TraceContext`] reads
//! and writes them. Clients send them, so the parser is strict and bounded, and treats a malformed context as absent. The
//! propagator of `opentelemetry` is neither: it takes ids of other lengths, spaces, and lists without a bound.
//!
//! [W3C Trace Context]: https://www.w3.org/TR/trace-context-1/

mod error;
mod export;
mod log;
mod start;
mod trace_context;
mod trace_state;

pub use error::TelemetryError;
pub use start::Telemetry;
pub use trace_context::{TRACEPARENT, TRACESTATE, TraceContext};
