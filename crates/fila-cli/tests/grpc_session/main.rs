//! The session of `docs/grpc.md`, typed into a shell that knows just enough, against the real server.
//!
//! The test needs no `grpcurl`. The module [`grpcurl`] does the same: it asks the server's reflection service for
//! descriptors, turns JSON into messages, makes the call and prints the answer as JSON. The output must be equal to the
//! document. Words in angle brackets stand for values that differ from run to run: the first occurrence takes the actual
//! value, and later ones stand for the same value, in commands too. A line that the test does not understand fails it.
#![cfg(test)] // helpers may unwrap, as tests do

mod book;
mod command;
mod describe;
mod grpcurl;
mod matching;
mod process;
#[path = "../common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;
mod shell;

use shell::Shell;

const BOOK: &str = include_str!("../../../../docs/grpc.md");

#[tokio::test]
async fn the_session_in_the_book_goes_as_it_is_printed() {
    let blocks = book::blocks(BOOK, "## A session from zero");
    assert!(blocks.len() > 20, "the session was not found");
    let mut shell = Shell::new();
    for block in &blocks {
        shell.play(block).await;
    }
    shell.end().await;
}
