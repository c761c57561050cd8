//! The commands of the documents, typed into a real shell, with the real program.
//!
//! The books are sessions: they say what comes back, and are played by `tests/books`. A sheet is a block of commands that
//! stand for themselves, as a reference has them. For each there is a list here: what has to be there before, and for every
//! command how it ends and something that it prints. A block that is in no list fails the test of its document, and so
//! does a command. Blocks of nothing but `cargo` and scripts are not run: `scripts/check-docs` checks them.
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
#[path = "../books/session.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod session;
mod sheet;
