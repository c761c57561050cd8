//! What the command `fila` reads and prints of messages, where a fuzzer and the test of its corpus can reach it.
//!
//! Not an interface: the command is.
#![doc(hidden)]

pub mod lines;
pub mod message_json;
mod printable;

pub use printable::printable;
