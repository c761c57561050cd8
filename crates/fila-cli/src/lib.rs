//! The reading and printing of messages by the command `fila`, as a library for the fuzzer and the test of its corpus.
//!
//! It is not a public interface.
#![doc(hidden)]

pub mod lines;
pub mod message_json;
mod printable;

pub use printable::{printable, printable_json, printable_lines};
