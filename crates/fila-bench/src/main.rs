//! What the Fila broker does in a second, and what it takes in memory: the real server in a process of its own, driven
//! over gRPC on loopback. Server, client and disk share the machine.
//!
//! ```text
//! cargo build --release -p fila-cli && cargo run --release -p fila-bench -- speed
//! cargo run --release -p fila-bench -- flood       what a flood does to others, in one line and with shares
//! scripts/deep-backlog                 five million messages within 256 MiB
//! cargo run --release -p fila-bench --features peers -- compare        beside others, on the same work
//! scripts/profile                      where the processor time of a message goes
//! ```

mod backlog;
mod client;
mod compare;
mod flood;
mod live;
mod overload;
mod policies;
mod profile;
mod sdk;
mod server;
mod speed;

use clap::{Parser, Subcommand};
use tokio::runtime::Builder;

#[derive(Debug, Parser)]
#[command(about = "What the Fila broker does in a second, and what it takes in memory")]
struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// A backlog far beyond memory: filled, left alone, drained; in order, fairly, within the budget
    Backlog(backlog::BacklogArguments),
    /// Ourselves, NATS JetStream, Redis Streams and RabbitMQ on the same work, in the same run
    Compare(compare::CompareArguments),
    /// One tenant floods a queue: how long messages of the others wait, in one line and with a share for each
    Flood(flood::FloodArguments),
    /// More than it can take: bounded memory, refusals with a code, quiet tenants served, and all well afterwards
    Overload(overload::OverloadArguments),
    /// What hooks and throttles cost, how exactly rates are kept, and what live traffic feels of failures and redrives
    Policies(policies::PoliciesArguments),
    /// Where the server's processor time goes, message by message; needs `perf`
    Profile(profile::ProfileArguments),
    /// What the SDK makes of the streams it uses, beside the same work by hand
    Sdk(speed::SpeedArguments),
    /// Messages per second: in, out, and through
    Speed(speed::SpeedArguments),
}

fn main() -> anyhow::Result<()> {
    let scenario = Arguments::parse().scenario;
    let mut runtime = match &scenario {
        // As users of several connections have it, and the same for everybody.
        Scenario::Compare(arguments) => {
            let mut runtime = Builder::new_multi_thread();
            runtime.worker_threads(arguments.threads.max(1));
            runtime
        }
        Scenario::Backlog(_)
        | Scenario::Flood(_)
        | Scenario::Overload(_)
        | Scenario::Policies(_)
        | Scenario::Profile(_)
        | Scenario::Sdk(_)
        | Scenario::Speed(_) => Builder::new_current_thread(),
    };
    runtime.enable_all().build()?.block_on(run(scenario))
}

async fn run(scenario: Scenario) -> anyhow::Result<()> {
    match scenario {
        Scenario::Backlog(arguments) => backlog::run(arguments).await,
        Scenario::Compare(arguments) => Box::pin(compare::run(arguments)).await,
        Scenario::Flood(arguments) => flood::run(arguments).await,
        Scenario::Overload(arguments) => overload::run(arguments).await,
        Scenario::Policies(arguments) => policies::run(arguments).await,
        Scenario::Profile(arguments) => profile::run(arguments).await,
        Scenario::Sdk(arguments) => sdk::run(arguments).await,
        Scenario::Speed(arguments) => speed::run(arguments).await,
    }
}
