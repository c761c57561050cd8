//! The sessions of the books, typed into a real shell, command by command, with the real program.
//!
//! In blocks that are marked as `console`, lines that begin with `$ ` are typed; what follows is what must come back. Words
//! in angle brackets stand for what differs from run to run, and a word stands for the same text wherever it is repeated.
//! The port differs, too: it is a free one, which reads as 5555 here. A block that is marked as `lua hooks.lua` or so is
//! a file of that name, which lies there from then on.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../grpc_session/matching.rs"]
#[allow(dead_code, reason = "messages are compared in the other session only")]
mod matching;
#[allow(dead_code, reason = "each test program uses some of it")]
mod session;

use session::{Shell, Step};

/// Runs the commands of a document, which must have at least this many.
fn play(name: &'static str, book: &str, commands: usize) {
    let steps = session::steps(book);
    let typed = steps.iter().filter(|it| matches!(it, Step::Command { .. }));
    assert!(typed.count() >= commands, "the session was not found");
    let mut shell = Shell::start(name);
    for step in &steps {
        shell.play(step);
    }
}

macro_rules! book {
    ($test:ident, $name:literal, $commands:literal) => {
        #[test]
        fn $test() {
            let book = include_str!(concat!("../../../../docs/", $name));
            play($name, book, $commands);
        }
    };
}

book!(the_quick_start_goes_as_it_is_printed, "quickstart.md", 20);
book!(the_concepts_go_as_they_are_printed, "concepts.md", 20);
book!(throttling_goes_as_it_is_printed, "throttling.md", 10);
