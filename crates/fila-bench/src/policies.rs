//! The cost of hooks, throttles and groups, the accuracy of rates, and the latency of live traffic during failures and
//! redrives.
//!
//! A cost is the server's processor time for each message, which other programs on the machine disturb less than real
//! time. Each is measured with and without the feature in the same run. The server syncs nothing, so the comparison is
//! about computing.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use fila_proto::v1::{Message, WorkRequest};
use fila_sdk::{Client, Expected, QueueSettings};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::client::{self, StreamLoad};
use crate::key_shape::KeyShape;
use crate::live;
use crate::server::Server;

/// The hook of `docs/concepts.md`: it sets everything that a hook can set.
const SCRIPT: &str = r#"
function on_enqueue(msg)
  return {
    fairness_key = msg.headers["tenant"] or "default",
    weight = tonumber(msg.headers["priority"]) or 1,
    throttle_keys = { msg.headers["endpoint"] }
  }
end
"#;

/// A rate that no load reaches.
const BOUNDLESS: &str = "1000000000000";

const RATES: [u32; 4] = [1, 10, 1_000, 100_000];

#[derive(Debug, clap::Args)]
pub(crate) struct PoliciesArguments {
    /// A tenth of the messages and of the time
    #[arg(long)]
    quick: bool,
    /// Only the latency of live traffic during redrives and with a failing key
    #[arg(long)]
    live: bool,
}

/// A server and its clients.
pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) channel: Channel,
    pub(crate) client: Client,
    queues: u32,
    _directory: tempfile::TempDir,
}

impl Rig {
    async fn start() -> anyhow::Result<Self> {
        Self::start_with(&["storage.durability=memory", "storage.memory_budget=1 GiB"]).await
    }

    pub(crate) async fn start_with(settings: &[&str]) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let server = Server::start(directory.path(), &settings)?;
        Ok(Self {
            channel: client::connect(&server.address).await?,
            client: Client::connect(&server.address).await?,
            server,
            queues: 0,
            _directory: directory,
        })
    }

    pub(crate) async fn queue(&mut self, settings: QueueSettings) -> anyhow::Result<String> {
        self.queues += 1;
        let name = format!("queue-{}", self.queues);
        self.client.admin().create_queue(&name, settings).await?;
        Ok(name)
    }

    async fn throttle(&self, key: &str, rate: &str, burst: &str) -> anyhow::Result<()> {
        let admin = self.client.admin();
        for (what, value) in [("burst", burst), ("rate", rate)] {
            let name = format!("throttle:{key}:{what}");
            admin.set_config(&name, value, Expected::Any).await?;
        }
        Ok(())
    }

    /// Sends messages into a new queue and consumes them. Returns the processor time for each message, in microseconds: for
    /// sending and for consuming.
    async fn cost(
        &mut self,
        settings: QueueSettings,
        load: StreamLoad,
        pattern: &Message,
    ) -> anyhow::Result<(f64, f64)> {
        let queue = self.queue(settings).await?;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / load.messages as f64;
        let begun = self.server.processor_time()?;
        client::produce_as(&self.channel, &queue, load, pattern, |_| {}).await?;
        let filled = self.server.processor_time()?;
        client::consume(&self.channel, &queue, load, 256, |_| {}).await?;
        let drained = self.server.processor_time()?;
        Ok((each(filled - begun), each(drained - filled)))
    }
}

pub(crate) async fn run(arguments: PoliciesArguments) -> anyhow::Result<()> {
    let scale = if arguments.quick { 10 } else { 1 };
    if !arguments.live {
        costs(scale).await?;
        rates(Duration::from_secs(20) / scale).await?;
    }
    live::beside_a_redrive(100_000 / u64::from(scale), Duration::from_secs(10) / scale).await?;
    live::beside_a_failing_key(Duration::from_secs(10) / scale).await
}

async fn costs(scale: u32) -> anyhow::Result<()> {
    let load = StreamLoad {
        messages: 200_000 / u64::from(scale),
        keys: KeyShape::flat(10),
        size: 256,
        outstanding: 1000,
        frame: 100,
    };
    let rounds = 3;
    let mut rig = Rig::start().await?;
    for key in ["a", "b", "c"] {
        rig.throttle(key, BOUNDLESS, BOUNDLESS).await?;
    }
    println!(
        "processor time of the server in µs per message, the least of {rounds} rounds; {} messages, 3 headers, nothing synced",
        load.messages
    );
    println!(
        "{:<44} {:>8} {:>8} {:>8} {:>8}",
        "", "in", "out", "more", "times"
    );
    let mut base = 0.0;
    for case in cost_cases(load) {
        let mut least = (f64::MAX, f64::MAX);
        for _ in 0..rounds {
            let settings = case.settings.clone();
            let (into, out) = rig.cost(settings, case.load, &case.pattern).await?;
            least = (least.0.min(into), least.1.min(out));
        }
        let sum = least.0 + least.1;
        if case.name.starts_with("plain") {
            base = sum;
        }
        println!(
            "{:<44} {:>8.2} {:>8.2} {:>8.2} {:>8.3}",
            case.name,
            least.0,
            least.1,
            sum - base,
            sum / base
        );
    }
    Ok(())
}

/// One row of the costs. A row whose name begins with "plain" is the base of the rows below it.
struct CostCase {
    name: &'static str,
    settings: QueueSettings,
    load: StreamLoad,
    pattern: Message,
}

fn cost_cases(load: StreamLoad) -> [CostCase; 9] {
    let headers = [("tenant", "acme"), ("priority", "3"), ("endpoint", "/mail")];
    let plain = |throttle_keys: &[&str]| Message {
        headers: headers
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
        throttle_keys: throttle_keys.iter().map(ToString::to_string).collect(),
        ..Message::default()
    };
    let case = |name, throttle_keys: &[&str]| CostCase {
        name,
        settings: QueueSettings::new(),
        load,
        pattern: plain(throttle_keys),
    };
    let one_key = StreamLoad {
        keys: KeyShape::flat(1),
        ..load
    };
    let shaped = |name, keys| CostCase {
        load: StreamLoad { keys, ..load },
        ..case(name, &[])
    };
    [
        case("plain", &[]),
        case("with a throttle key", &["a"]),
        case("with three throttle keys", &["a", "b", "c"]),
        CostCase {
            load: one_key,
            ..case("plain, one fairness key", &[])
        },
        CostCase {
            load: one_key,
            settings: QueueSettings::new().script(SCRIPT),
            ..case("with a hook that names key, weight, throttle", &[])
        },
        shaped("plain, 1,000 flat keys", KeyShape::THOUSAND),
        shaped(KeyShape::TEN_GROUPS.name, KeyShape::TEN_GROUPS),
        shaped(KeyShape::GROUPS_OF_ONE.name, KeyShape::GROUPS_OF_ONE),
        shaped(KeyShape::FOUR_LEVELS.name, KeyShape::FOUR_LEVELS),
    ]
}

async fn rates(time: Duration) -> anyhow::Result<()> {
    println!("\na backlog at a throttle, {time:?} each; messages/s");
    println!(
        "{:>12} {:>8} {:>12} {:>8}",
        "configured", "burst", "achieved", "of it"
    );
    for rate in RATES {
        let mut rig = Rig::start().await?;
        let burst = (rate / 10).max(1);
        let queue = rig.queue(QueueSettings::new()).await?;
        let wanted = u64::from(burst) + (f64::from(rate) * time.as_secs_f64() * 1.2) as u64 + 10;
        let load = StreamLoad {
            messages: wanted,
            keys: KeyShape::flat(1),
            size: 16,
            outstanding: 1000,
            frame: 100,
        };
        let pattern = Message {
            throttle_keys: vec!["rate".to_owned()],
            ..Message::default()
        };
        client::produce_as(&rig.channel, &queue, load, &pattern, |_| {}).await?;
        rig.throttle("rate", &rate.to_string(), &burst.to_string())
            .await?;
        let taken = take_for(&rig.channel, &queue, time).await?;
        // Messages after the burst arrive at the rate.
        let mut before = 0;
        let from = taken.iter().position(|(_, count)| {
            before += count;
            before > burst as usize
        });
        let after = &taken[from.unwrap_or(taken.len())..];
        let [(first, _), .., (last, _)] = after else {
            println!("{rate:>12} {burst:>8} {:>12} {:>8}", "too few", "");
            continue;
        };
        let counted: usize = after[1..].iter().map(|(_, count)| count).sum();
        let elapsed = last.duration_since(*first).as_secs_f64();
        let achieved = counted as f64 / elapsed;
        let most = f64::from(burst) + f64::from(rate) * time.as_secs_f64();
        let total: usize = taken.iter().map(|(_, count)| count).sum();
        ensure!(
            total as f64 <= most * 1.02 + 2.0,
            "{total} came, {most} were allowed"
        );
        println!(
            "{rate:>12} {burst:>8} {achieved:>12.1} {:>7.1}%",
            achieved / f64::from(rate) * 100.0
        );
    }
    Ok(())
}

/// Takes and acknowledges messages for a time. Returns the arrival times with the number of messages.
async fn take_for(
    channel: &Channel,
    queue: &str,
    time: Duration,
) -> anyhow::Result<Vec<(Instant, usize)>> {
    let (sender, requests) = mpsc::channel(64);
    let first = WorkRequest {
        queue: queue.to_owned(),
        credit: 8192,
        ..WorkRequest::default()
    };
    sender.send(first).await?;
    let mut service = client::service(channel);
    let call = service.work(ReceiverStream::new(requests));
    let mut responses = call.await?.into_inner();
    let end = tokio::time::Instant::now() + time;
    let mut taken = Vec::new();
    while let Ok(response) = tokio::time::timeout_at(end, responses.message()).await {
        let response = response?.context("the stream has ended")?;
        if response.deliveries.is_empty() {
            continue;
        }
        let count = response.deliveries.len();
        taken.push((Instant::now(), count));
        let report = WorkRequest {
            credit: count as u32,
            acks: response.deliveries.iter().map(|it| it.lease_id).collect(),
            ..WorkRequest::default()
        };
        sender.send(report).await.context("the stream has ended")?;
    }
    Ok(taken)
}
