//! The commands of `fila`, as the shell sees them: what they print, for people and for programs, and how they end.
//!
//! Outputs are compared with the files in `snapshots/`; `INSTA_UPDATE=always` writes them anew.
#![cfg(test)] // helpers may unwrap, as tests do

mod benching;
mod config;
mod consuming;
mod enqueueing;
mod errors;
mod explaining;
mod help;
mod hooks;
mod hostile;
mod keys;
mod peeking;
mod profiles;
#[path = "../common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;
mod queues;
mod redriving;
mod rig;
mod whatif;
