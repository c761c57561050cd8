//! Measures the throughput, the latency and the memory of the Fila broker: the real server in its own process, driven over
//! gRPC on loopback. Server, client and disk share the machine.
//!
//! ```text
//! cargo build --release -p fila-cli && cargo run --release -p fila-bench -- speed
//! cargo run --release -p fila-bench -- alone       a broker with little to do: what one message costs
//! cargo run --release -p fila-bench -- flood       one FIFO against a fair share for each tenant
//! cargo run --release -p fila-bench -- law         a noisy tenant: what the others notice of it
//! cargo run --release -p fila-bench -- attack      hostile clients: memory, and honest clients
//! scripts/deep-backlog                 five million messages within 256 MiB
//! cargo run --release -p fila-bench --features peers -- compare        other brokers on the same work
//! scripts/profile                      where the processor time of a message goes
//! ```

mod alone;
mod attack;
mod backlog;
mod client;
mod compare;
mod flood;
mod honest;
mod key_shape;
mod law;
mod live;
mod overload;
mod policies;
mod profile;
mod sdk;
mod server;
mod speed;
mod wire;

use clap::{Parser, Subcommand};
use tokio::runtime::Builder;

#[derive(Debug, Parser)]
#[command(about = "Measures the throughput, the latency and the memory of the Fila broker")]
struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// A broker with little to do: processor time and context switches per message, and of idle queues and consumers
    Alone(alone::AloneArguments),
    /// Hostile clients: the server's memory under each attack, and what honest clients notice of it
    Attack(attack::AttackArguments),
    /// A backlog much larger than memory: fills it, restarts the server, drains it; checks order, fairness and memory
    Backlog(backlog::BacklogArguments),
    /// Fila, NATS JetStream, Redis Streams and RabbitMQ on the same work, in the same run
    Compare(compare::CompareArguments),
    /// One tenant floods a queue: how long messages of the others wait, in one FIFO and with a share for each tenant
    Flood(flood::FloodArguments),
    /// A noisy tenant beside quiet ones: their refusals, and their latency compared with the same load on another server
    Law(law::LawArguments),
    /// More load than the server can take: checks memory, refusals, the service of a quiet tenant, and the recovery
    Overload(overload::OverloadArguments),
    /// The cost of hooks, throttles and groups, the accuracy of rates, and the latency of live traffic during failures and redrives
    Policies(policies::PoliciesArguments),
    /// Where the server's processor time goes, message by message; needs `perf`
    Profile(profile::ProfileArguments),
    /// The SDK, compared with the same work by hand on the streams of gRPC
    Sdk(speed::SpeedArguments),
    /// Messages per second: produced, consumed, and both at the same time
    Speed(speed::SpeedArguments),
}

fn main() -> anyhow::Result<()> {
    let scenario = Arguments::parse().scenario;
    let mut runtime = match &scenario {
        // Several threads, as users of several connections have, and the same for every contestant.
        Scenario::Compare(arguments) => {
            let mut runtime = Builder::new_multi_thread();
            runtime.worker_threads(arguments.threads.max(1));
            runtime
        }
        Scenario::Alone(_)
        | Scenario::Attack(_)
        | Scenario::Backlog(_)
        | Scenario::Flood(_)
        | Scenario::Law(_)
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
        Scenario::Alone(arguments) => alone::run(arguments).await,
        Scenario::Attack(arguments) => attack::run(arguments).await,
        Scenario::Backlog(arguments) => backlog::run(arguments).await,
        Scenario::Compare(arguments) => Box::pin(compare::run(arguments)).await,
        Scenario::Flood(arguments) => flood::run(arguments).await,
        Scenario::Law(arguments) => law::run(arguments).await,
        Scenario::Overload(arguments) => overload::run(arguments).await,
        Scenario::Policies(arguments) => policies::run(arguments).await,
        Scenario::Profile(arguments) => profile::run(arguments).await,
        Scenario::Sdk(arguments) => sdk::run(arguments).await,
        Scenario::Speed(arguments) => speed::run(arguments).await,
    }
}
