//! What the Fila broker does in a second, and what it takes in memory: the real server in a process of its own, driven
//! over gRPC on loopback. Server, client and disk share the machine.
//!
//! ```text
//! cargo build --release -p fila-cli && cargo run --release -p fila-bench -- speed
//! scripts/deep-backlog                 five million messages within 256 MiB
//! ```

mod backlog;
mod client;
mod live;
mod overload;
mod policies;
mod sdk;
mod server;
mod speed;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(about = "What the Fila broker does in a second, and what it takes in memory")]
struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// A backlog far beyond memory: filled, left alone, drained; in order, fairly, within the budget
    Backlog(backlog::Arguments),
    /// More than it can take: bounded memory, refusals with a code, quiet tenants served, and all well afterwards
    Overload(overload::Arguments),
    /// What hooks and throttles cost, how exactly rates are kept, and what live traffic feels of failures and redrives
    Policies(policies::Arguments),
    /// What the SDK makes of the streams it uses, beside the same work by hand
    Sdk(speed::Arguments),
    /// Messages per second: in, out, and through
    Speed(speed::Arguments),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().scenario {
        Scenario::Backlog(arguments) => backlog::run(arguments).await,
        Scenario::Overload(arguments) => overload::run(arguments).await,
        Scenario::Policies(arguments) => policies::run(arguments).await,
        Scenario::Sdk(arguments) => sdk::run(arguments).await,
        Scenario::Speed(arguments) => speed::run(arguments).await,
    }
}
