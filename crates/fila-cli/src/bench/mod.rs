//! `fila bench`: measures the speed of a server, through the public SDK.

mod phases;

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use fila_sdk::QueueSettings;
use serde::Serialize;

use self::phases::{Latency, Load, Measured};
use crate::failure::Failure;
use crate::general::{General, Session};
use crate::output::{Align, Table, count, duration, rate};
use crate::signals;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila bench
  fila bench --messages 1000000 --size 100 --tasks 256
  fila bench --json | jq .produce.per_second

The command creates its own queue and deletes it at the end, also after Ctrl-C. It has three phases:
  produce   --tasks tasks send all messages, and each task waits for every answer
  drain     --consumers consumers consume and acknowledge all messages
  through   both at once
p50 and p99 are the time of a send, until the server has stored the message.")]
pub(crate) struct BenchArguments {
    /// Number of messages in each phase
    #[arg(long, value_name = "NUMBER", default_value = "100000")]
    messages: NonZeroU64,

    /// Size of a payload in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    size: usize,

    /// Number of fairness keys that the messages use
    #[arg(long, value_name = "NUMBER", default_value = "10")]
    keys: NonZeroU64,

    /// Number of tasks that send at once
    #[arg(long, value_name = "NUMBER", default_value = "256")]
    tasks: NonZeroUsize,

    /// Number of consumers
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    consumers: NonZeroU32,
}

/// Results for programs.
#[derive(Debug, Serialize)]
struct BenchJson {
    messages: u64,
    size: usize,
    keys: u64,
    tasks: usize,
    consumers: u32,
    durability: String,
    produce: PhaseJson,
    drain: PhaseJson,
    through: PhaseJson,
}

#[derive(Debug, Serialize)]
struct PhaseJson {
    seconds: f64,
    per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    send_p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    send_p99_ms: Option<f64>,
}

pub(crate) fn run(general: &General, arguments: &BenchArguments) -> Result<(), Failure> {
    general.talk(None, async |session| {
        let admin = session.client.admin();
        let name = name();
        let durability = admin.server().await?.durability;
        admin.create_queue(&name, QueueSettings::new()).await?;
        // Held until the queue is deleted: the first signal must not leave it behind.
        let mut stop = pin!(signals::shutdown());
        let measured = tokio::select! {
            measured = measure(session, &name, arguments) => measured,
            () = &mut stop => Err(Failure::Interrupted),
        };
        // The queue is deleted even if a phase has failed.
        let deleted = admin.delete_queue(&name).await;
        let [produce, drain, through] = measured?;
        deleted?;
        let results = [
            ("produce", &produce),
            ("drain", &drain),
            ("through", &through),
        ];
        let json = BenchJson {
            messages: arguments.messages.get(),
            size: arguments.size,
            keys: arguments.keys.get(),
            tasks: arguments.tasks.get(),
            consumers: arguments.consumers.get(),
            durability,
            produce: PhaseJson::new(arguments, &produce),
            drain: PhaseJson::new(arguments, &drain),
            through: PhaseJson::new(arguments, &through),
        };
        session.output.result(&json, || table(arguments, &results))
    })
}

async fn measure(
    session: &Session,
    name: &str,
    arguments: &BenchArguments,
) -> Result<[Measured; 3], Failure> {
    let load = Load {
        queue: session.client.queue(name),
        messages: arguments.messages.get(),
        payload: vec![b'x'; arguments.size].into(),
        keys: arguments.keys.get(),
        tasks: arguments.tasks.get(),
        consumers: arguments.consumers.get(),
    };
    let produce = load.produce().await?;
    let drain = load.drain().await?;
    let through = load.through().await?;
    Ok([produce, drain, through])
}

fn table(arguments: &BenchArguments, results: &[(&str, &Measured)]) -> Table {
    let mut table = Table::new([
        ("PHASE", Align::Left),
        ("MESSAGES", Align::Right),
        ("TIME", Align::Right),
        ("RATE", Align::Right),
        ("SEND P50", Align::Right),
        ("SEND P99", Align::Right),
    ]);
    let messages = arguments.messages.get();
    for (phase, measured) in results {
        let latency = |quantile: fn(&Latency) -> Duration| match &measured.latency {
            Some(latency) => duration(quantile(latency)),
            None => String::new(),
        };
        table.row([
            (*phase).to_owned(),
            count(messages),
            duration(measured.time),
            rate(messages, measured.time),
            latency(|latency| latency.p50),
            latency(|latency| latency.p99),
        ]);
    }
    table
}

impl PhaseJson {
    fn new(arguments: &BenchArguments, measured: &Measured) -> Self {
        let seconds = measured.time.as_secs_f64();
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        Self {
            seconds,
            per_second: arguments.messages.get() as f64 / seconds.max(1e-9),
            send_p50_ms: measured.latency.map(|latency| millis(latency.p50)),
            send_p99_ms: measured.latency.map(|latency| millis(latency.p99)),
        }
    }
}

/// Returns a queue name for this run.
fn name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos();
    format!("fila-bench-{}-{now}", std::process::id())
}
