//! A backlog much larger than memory. Fills a queue, kills the server, starts it again and drains the queue. Checks the
//! order, the fairness and the memory.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::client::{self, StreamLoad};
use crate::key_shape::KeyShape;
use crate::server::Server;

/// The credit of the consumer.
const CREDIT: u32 = 4096;

#[derive(Debug, clap::Args)]
pub(crate) struct BacklogArguments {
    /// Number of messages
    #[arg(long, default_value_t = 5_000_000)]
    messages: u64,
    /// Number of fairness keys
    #[arg(long, default_value_t = 100)]
    keys: u64,
    /// Bytes of a payload
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Memory budget of the server for messages
    #[arg(long, default_value = "256 MiB")]
    budget: String,
    /// The most memory that the server's process may take, in MiB
    #[arg(long, default_value_t = 512)]
    limit: u64,
}

pub(crate) async fn run(arguments: BacklogArguments) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let settings = [format!("storage.memory_budget={}", arguments.budget)];
    let load = StreamLoad {
        messages: arguments.messages / arguments.keys * arguments.keys,
        keys: KeyShape::flat(arguments.keys),
        size: arguments.size,
        outstanding: 4096,
        frame: 64,
    };
    let server = Server::start(directory.path(), &settings)?;
    let idle = server.memory()?.0;
    println!(
        "{} messages of {} bytes, {} keys, memory_budget {}, durability fsync; idle at {idle} MiB",
        load.messages, load.size, load.keys.count, arguments.budget
    );
    fill(&server, load).await?;
    let filling = server.memory()?.1;
    server.kill()?;

    let begun = Instant::now();
    let server = Server::start(directory.path(), &settings)?;
    let channel = client::connect(&server.address).await?;
    let stats = client::stats(&channel, "deep").await?;
    ensure!(stats.depth == load.messages, "{stats:?}");
    println!(
        "start after kill -9: {:.1} s, {} MiB",
        begun.elapsed().as_secs_f64(),
        server.memory()?.0
    );
    drain(&server, load).await?;
    let most = filling.max(server.memory()?.1);
    let limit = arguments.limit;
    println!("peak memory of the server: {most} MiB, {limit} allowed");
    ensure!(most <= limit, "the server took {most} MiB");
    Ok(())
}

async fn fill(server: &Server, load: StreamLoad) -> anyhow::Result<()> {
    let channel = client::connect(&server.address).await?;
    client::create(&channel, "deep").await?;
    let progress = Progress::new("filled", load.messages);
    let each = |done| progress.at(done, server);
    let filled = client::produce(&channel, "deep", load, each).await?;
    report("fill", load.messages, filled, server)?;
    let stats = client::stats(&channel, "deep").await?;
    println!(
        "      {} ready, {} of them in the store only",
        stats.ready, stats.stored_only
    );
    Ok(())
}

/// Drains the queue, and checks that the keys took turns.
async fn drain(server: &Server, load: StreamLoad) -> anyhow::Result<()> {
    let channel = client::connect(&server.address).await?;
    let progress = Progress::new("drained", load.messages);
    let each = |done| progress.at(done, server);
    let seen = client::consume(&channel, "deep", load, CREDIT, each).await?;
    report("drain", load.messages, seen.elapsed, server)?;
    let spread = seen.spread;
    println!("      in order within each key; keys apart by at most {spread} messages");
    let stats = client::stats(&channel, "deep").await?;
    ensure!(stats.depth == 0, "{stats:?}");
    // The keys take turns. But a key's part of the credit may be in flight while the broker reads as much again from the
    // disk, and the broker serves the other keys during a slow read: the bound allows 2 % of all messages for that.
    let on_the_way = 2 * u64::from(CREDIT).div_ceil(load.keys.count) + 16;
    let allowed = on_the_way.max(load.messages / load.keys.count / 50);
    ensure!(spread <= allowed, "keys were {spread} messages apart");
    Ok(())
}

fn report(what: &str, messages: u64, elapsed: Duration, server: &Server) -> anyhow::Result<()> {
    let (now, most) = server.memory()?;
    println!(
        "{what:<5} {:>8.0} messages/s; memory {now} MiB, at most {most} MiB",
        messages as f64 / elapsed.as_secs_f64()
    );
    Ok(())
}

/// Prints the progress from time to time.
struct Progress {
    what: &'static str,
    step: u64,
    next: Cell<u64>,
    begun: Instant,
}

impl Progress {
    fn new(what: &'static str, messages: u64) -> Self {
        let step = (messages / 5).max(1);
        Self {
            what,
            step,
            next: Cell::new(step),
            begun: Instant::now(),
        }
    }

    fn at(&self, done: u64, server: &Server) {
        if done >= self.next.get() {
            self.next.set(done + self.step);
            let memory = server.memory().map_or(0, |(now, _)| now);
            let seconds = self.begun.elapsed().as_secs_f64();
            println!(
                "      {} {done:>9} after {seconds:>5.1} s, {memory} MiB",
                self.what
            );
        }
    }
}
