//! The commands of the documents, typed into a real shell, with the real program.
//!
//! Some documents are sessions with their output; `tests/books` runs them. A sheet is a block of independent commands, as
//! in a reference. This test has a list for each sheet: its setup, and for every command the exit code and a part of the
//! output. A block or a command that is in no list fails the test of its document. The test does not run blocks that
//! contain only `cargo` and scripts: `scripts/check-docs` checks them.
#![cfg(test)] // helpers may unwrap, as tests do

mod cli;
mod configuration;
mod dead_letters;
mod demo;
#[path = "../grpc_session/matching.rs"]
#[allow(dead_code, reason = "the shell of the books uses some of it")]
mod matching;
mod operations;
#[path = "../common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;
mod security;
#[path = "../books/session.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod session;
mod sheet;
