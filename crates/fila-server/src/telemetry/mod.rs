//! What a server says of itself: log lines on the standard error, and traces by OTLP.
//!
//! Log lines and spans name queues, counts, sizes and times. They never hold a payload or the value of a header: those
//! are the users', and logs travel further than messages do.
//!
//! A message carries the trace that it belongs to in two headers of its own, `traceparent` and `tracestate`, as [W3C
//! Trace Context] has them. [`TraceContext`] reads and writes them. They come from strangers, so they are read strictly
//! and within bounds; one that is malformed is treated as absent and is nobody's error.
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
