//! The session of `docs/quickstart.md`, typed into a real shell, command by command, with the real program.
//!
//! Lines that begin with `$ ` are typed; what follows is what must come back. Words in angle brackets stand for what
//! differs from run to run, and a word stands for the same text wherever it is repeated. The port differs, too: it is a
//! free one, which reads as 5555 here.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../grpc_session/matching.rs"]
#[allow(dead_code, reason = "messages are compared in the other session only")]
mod matching;
mod session;

use session::{Shell, steps};

const BOOK: &str = include_str!("../../../../docs/quickstart.md");

#[test]
fn the_quick_start_goes_as_it_is_printed() {
    let steps = steps(BOOK);
    assert!(steps.len() >= 20, "the session was not found");
    let mut shell = Shell::start();
    for step in &steps {
        shell.play(step);
    }
}
