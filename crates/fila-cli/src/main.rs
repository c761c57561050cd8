//! The command `fila`.
//!
//! Ends with 0 if all went well, with 1 if something failed, and with 2 if the command or the configuration is wrong.

mod bars;
mod demo;
mod failure;
mod server;
mod signals;
mod terminal;
mod top;
mod units;
mod wrap;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;

/// Messages are allocated by one thread and freed by another, and those that wait lie between them: an allocator that
/// keeps a heap for every thread holds on to a quarter more memory than is in use.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Fila: a durable queue server that is fair to every tenant.
#[derive(Debug, Parser)]
#[command(name = "fila", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server.
    Server(server::Arguments),
    /// See what fairness is, in under a minute: FIFO beside Fila, on a broker of its own.
    Demo(demo::Arguments),
    /// Watch the queues and fairness keys of a server, live.
    Top(top::Arguments),
}

fn main() -> ExitCode {
    // Clap prints what is wrong with a command by itself, and ends with 2.
    let ended = match Arguments::parse().command {
        Command::Server(arguments) => server::run(arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            failure.exit_code()
        }
    }
}
