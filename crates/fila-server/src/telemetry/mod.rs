//! Log lines on standard error, and traces by OTLP.
//!
//! No thread waits for a reader of the log: lines go through a buffer to a thread of their own, and are dropped and counted
//! while the reader is stuck.
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
mod log_gate;
mod log_writer;
mod panics;
mod start;
mod trace_context;
mod trace_state;

pub use error::TelemetryError;
pub(crate) use log_gate::LogGate;
pub(crate) use log_writer::log_lines_dropped;
pub use log_writer::{flush_log, print_last_line};
pub use panics::log_panics;
pub use start::Telemetry;
pub use trace_context::{TRACEPARENT, TRACESTATE, TraceContext};
