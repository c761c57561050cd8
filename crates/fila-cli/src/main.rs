//! The command `fila`.
//!
//! Every command is a module with its `Arguments` and its `run`. All but `server`, `store`, `hook` and `profile` are clients:
//! they reach the server through `fila-sdk` only ([`general`]), print through [`output`], and end with the codes of [`failure`].
#![deny(clippy::print_stdout, clippy::print_stderr)] // `output` makes text safe for terminals

mod bars;
mod bench;
mod completions;
mod config;
mod confirmation;
mod consume;
mod demo;
mod dev_tls;
mod enqueue;
mod explain;
mod failure;
mod general;
mod hook;
mod key;
mod output;
mod peek;
mod profile;
mod queue;
mod redrive;
mod server;
mod signals;
mod store;
mod terminal;
mod top;
mod units;
mod values;
mod whatif;
mod wrap;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use mimalloc::MiMalloc;

use crate::general::General;

/// The version and the commit, if `build.rs` could find it.
#[cfg(not(feature = "fifo"))]
const VERSION: &str = env!("FILA_VERSION");

/// The same, of a program that is not for use.
#[cfg(feature = "fifo")]
const VERSION: &str = concat!(env!("FILA_VERSION"), ", a FIFO for benches");

/// One thread allocates a message and another frees it, and waiting messages lie between them in memory. An allocator
/// with a heap for every thread would hold a quarter more memory than is in use.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Fila: a durable queue server that is fair to every tenant.
#[derive(Debug, Parser)]
#[command(
    name = "fila",
    version = VERSION,
    arg_required_else_help = true,
    after_help = "Examples:
  fila server                                     run a server on 127.0.0.1:5555
  fila queue create orders                        create a queue
  fila enqueue orders 'hello' --key acme          send a message to it
  fila consume orders --ack                       print its messages, and delete them
  fila queue list --json --addr broker:5555       ask another server, and print JSON

Exit codes:
  0  the command succeeded
  1  the command failed; the standard error has the reason
  2  the command or the configuration is wrong
  3  the server cannot be reached, or does not answer
  4  the queue, the configuration entry or the profile does not exist
  130  stopped by Ctrl-C before the end"
)]
struct FilaArguments {
    #[command(flatten)]
    general: General,
    #[command(subcommand)]
    command: FilaCommand,
}

#[derive(Debug, Subcommand)]
enum FilaCommand {
    /// Run the server
    Server(server::ServerArguments),
    /// Create, inspect and change queues
    Queue(queue::QueueArguments),
    /// Inspect and control the fairness keys of a queue
    Key(key::KeyArguments),
    /// Change the runtime configuration: throttles, feature flags
    Config(config::ConfigArguments),
    /// Test the hooks of a queue, without a server
    Hook(hook::HookArguments),
    /// Repair or copy the directory of a server that does not run
    Store(store::StoreArguments),
    /// Send messages to a queue
    Enqueue(enqueue::EnqueueArguments),
    /// Consume messages of a queue, or run a command for each
    Consume(consume::ConsumeArguments),
    /// Inspect messages without leasing them
    Peek(peek::PeekArguments),
    /// Explain why a fairness key waits, and when its next message will come
    Explain(explain::ExplainArguments),
    /// Try other weights, caps and pauses of keys and groups before they are applied
    #[command(name = "whatif")]
    WhatIf(whatif::WhatIfArguments),
    /// Move dead letters back to the queue that they come from
    Redrive(redrive::RedriveArguments),
    /// Watch the queues and fairness keys of a server, live
    Top(top::TopArguments),
    /// Watch fairness in under a minute: FIFO beside Fila, on a broker inside the command
    Demo(demo::DemoArguments),
    /// Measure the speed of a server
    Bench(bench::BenchArguments),
    /// Name servers, and choose the one that commands talk to
    Profile(profile::ProfileArguments),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArguments),
}

fn main() -> ExitCode {
    // Clap itself prints the errors of arguments, and ends with 2.
    let matches = FilaArguments::command().try_get_matches();
    let matches = matches.unwrap_or_else(|error| refuse(&error));
    let arguments = FilaArguments::from_arg_matches(&matches);
    let arguments = arguments.unwrap_or_else(|error| refuse(&error));
    let general = arguments.general;
    general.choose_colors();
    let ended = match arguments.command {
        FilaCommand::Server(server) => {
            general::refuse_with_server(&matches).and_then(|()| server::run(server))
        }
        FilaCommand::Queue(queue) => queue::run(&general, queue),
        FilaCommand::Key(key) => key::run(&general, key),
        FilaCommand::Config(config) => config::run(&general, config),
        FilaCommand::Hook(hook) => hook::run(&general, hook),
        FilaCommand::Store(store) => store::run(&general, &store),
        FilaCommand::Enqueue(enqueue) => enqueue::run(&general, &enqueue),
        FilaCommand::Consume(consume) => consume::run(&general, consume),
        FilaCommand::Peek(peek) => peek::run(&general, &peek),
        FilaCommand::Explain(explain) => explain::run(&general, &explain),
        FilaCommand::WhatIf(whatif) => whatif::run(&general, whatif),
        FilaCommand::Redrive(redrive) => redrive::run(&general, &redrive),
        FilaCommand::Top(top) => top::run(&general, &top),
        FilaCommand::Demo(demo) => demo::run(&general, &demo),
        FilaCommand::Bench(bench) => bench::run(&general, &bench),
        FilaCommand::Profile(profile) => profile::run(&general, &profile),
        FilaCommand::Completions(completions) => completions::run(&completions),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            failure.exit_code()
        }
    }
}

/// Prints what clap says about the arguments, the help that was asked for included, and ends.
fn refuse(error: &clap::Error) -> ! {
    let is_quoted = std::env::args_os().any(|argument| {
        let argument = argument.to_string_lossy();
        output::printable(&argument) != argument
    });
    if is_quoted && error.use_stderr() {
        // Without colours: the error quotes an argument that a terminal would obey.
        output::say(&error.render().to_string());
        std::process::exit(error.exit_code());
    }
    error.exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOK: &str = include_str!("../../../docs/cli.md");

    #[test]
    fn the_commands_are_consistent() {
        FilaArguments::command().debug_assert();
    }

    #[test]
    fn the_book_describes_every_command_and_every_flag() {
        let mut root = FilaArguments::command();
        root.build();
        let mut missing = Vec::new();
        look_up(&root, "fila", &mut missing);
        assert!(missing.is_empty(), "docs/cli.md lacks {missing:#?}");
    }

    /// Adds the parts of this command and its subcommands that the book does not describe.
    fn look_up(command: &clap::Command, name: &str, missing: &mut Vec<String>) {
        for below in command.get_subcommands() {
            if below.get_name() == "help" {
                continue;
            }
            let name = format!("{name} {}", below.get_name());
            let Some(section) = section(&name) else {
                missing.push(format!("a heading `{name}`"));
                continue;
            };
            for flag in below.get_arguments() {
                let Some(long) = flag.get_long() else {
                    continue;
                };
                let is_general = flag.is_global_set() || long == "help";
                // The server's flags are values of its configuration, which docs/configuration.md describes.
                let is_elsewhere = name == "fila server";
                if !is_general && !is_elsewhere && !section.contains(&format!("`--{long}")) {
                    missing.push(format!("`--{long}` of `{name}`"));
                }
            }
            look_up(below, &name, missing);
        }
    }

    /// Returns the section of the book about a command.
    fn section(name: &str) -> Option<&'static str> {
        let heading = format!("# `{name}`\n");
        let (_, rest) = BOOK.split_once(&heading)?;
        Some(rest.split("\n#").next().unwrap_or(rest))
    }
}
