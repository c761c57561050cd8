//! The latency of live traffic during other work: a redrive of many dead letters, and a key whose messages all fail.
//!
//! The producer sends a message every two milliseconds, with several fairness keys in turns. The latency of a message ends
//! when its acknowledgement is confirmed. The store has its defaults. The producer, the consumer and the redrive have a
//! connection each.

use lab::Latencies;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::{
    LeaseNack, Message, ProduceRequest, RedriveRequest, WorkRequest, WorkResponse,
};
use fila_sdk::{KeyChange, QueueSettings};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;

use crate::client::{self, StreamLoad};
use crate::key_shape::KeyShape;
use crate::policies::Rig;

/// The interval between two messages.
const INTERVAL: Duration = Duration::from_millis(2);

/// Fairness keys of live traffic, and of dead letters.
const KEYS: u64 = 10;

/// The number of rounds.
const ROUNDS: u32 = 3;

/// The key whose messages all fail.
const FAILING: &str = "failing";

/// The latencies of live messages.
#[derive(Debug, Default)]
struct LiveTimes {
    /// When each message was sent, and its latency.
    taken: Vec<(Instant, Duration)>,
}

impl LiveTimes {
    /// Returns the times of the messages sent within a window.
    fn within(&self, window: &Window) -> Latencies {
        let within = self.taken.iter().filter(|(sent, _)| window.has(*sent));
        within.map(|(_, time)| *time).collect()
    }
}

/// When the other work began, and when it ended.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    from: Option<Instant>,
    to: Option<Instant>,
}

impl Window {
    fn has(&self, moment: Instant) -> bool {
        self.from.is_none_or(|from| moment >= from) && self.to.is_none_or(|to| moment <= to)
    }
}

/// The traffic, with the part of it that is not measured.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    messages: u64,
    /// Every second message has the failing key, and is not measured.
    is_mixed: bool,
    fails: bool,
}

impl Traffic {
    fn key(self, number: u64) -> String {
        match self.is_mixed && number % 2 == 1 {
            true => FAILING.to_owned(),
            false => format!("live-{}", number / 2 % KEYS),
        }
    }

    fn measured(self) -> u64 {
        match self.is_mixed {
            true => self.messages.div_ceil(2),
            false => self.messages,
        }
    }
}

/// Sends messages at the fixed rate, and takes and acknowledges all messages until these have been acknowledged.
async fn pass(address: &str, queue: &str, traffic: Traffic) -> anyhow::Result<LiveTimes> {
    let sent = RefCell::new(Vec::new());
    let ((), times) = tokio::try_join!(
        produce(address, queue, traffic, &sent),
        consume(address, queue, traffic, &sent)
    )?;
    Ok(times)
}

async fn produce(
    address: &str,
    queue: &str,
    traffic: Traffic,
    sent: &RefCell<Vec<Instant>>,
) -> anyhow::Result<()> {
    let channel = client::connect(address).await?;
    let mut service = client::service(&channel);
    let (sender, frames) = mpsc::channel(64);
    let call = service.produce(ReceiverStream::new(frames));
    let mut responses = call.await?.into_inner();
    responses.message().await?.context("the window")?;
    let send = async {
        let mut pace = tokio::time::interval(INTERVAL);
        pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for number in 0..traffic.messages {
            pace.tick().await;
            let frame = ProduceRequest {
                frame_id: number,
                queue: queue.to_owned(),
                messages: vec![Message {
                    fairness_key: traffic.key(number),
                    payload: number.to_be_bytes().to_vec().into(),
                    ..Message::default()
                }],
                batch_id: None,
            };
            sent.borrow_mut().push(Instant::now());
            sender.send(frame).await.context("the stream has ended")?;
        }
        drop(sender);
        anyhow::Ok(())
    };
    let read = async {
        while let Some(response) = responses.message().await? {
            for result in &response.results {
                if let Some(error) = &result.error {
                    bail!("refused: {}", error.message);
                }
            }
        }
        Ok(())
    };
    tokio::try_join!(send, read)?;
    Ok(())
}

async fn consume(
    address: &str,
    queue: &str,
    traffic: Traffic,
    sent: &RefCell<Vec<Instant>>,
) -> anyhow::Result<LiveTimes> {
    let channel = client::connect(address).await?;
    let (sender, requests) = mpsc::channel(64);
    let first = WorkRequest {
        queue: queue.to_owned(),
        // A small credit, so that few deliveries are in flight before a message whose turn it is.
        credit: 32,
        ..WorkRequest::default()
    };
    sender.send(first).await?;
    let mut service = client::service(&channel);
    let call = service.work(ReceiverStream::new(requests));
    let mut responses = call.await?.into_inner();
    let mut times = LiveTimes::default();
    let mut leases = HashMap::new();
    while (times.taken.len() as u64) < traffic.measured() {
        let response = responses.message().await?.context("the stream has ended")?;
        ensure!(response.refused.is_empty(), "{:?}", response.refused);
        let now = Instant::now();
        for lease in &response.confirmed {
            if let Some(number) = leases.remove(lease) {
                let sent = sent.borrow()[number];
                times.taken.push((sent, now.duration_since(sent)));
            }
        }
        let report = results(&response, traffic, &mut leases)?;
        if report.credit > 0 {
            sender.send(report).await.context("the stream has ended")?;
        }
    }
    Ok(times)
}

/// Returns the results for deliveries, and records the leases of measured messages.
fn results(
    response: &WorkResponse,
    traffic: Traffic,
    leases: &mut HashMap<u64, usize>,
) -> anyhow::Result<WorkRequest> {
    let mut report = WorkRequest {
        credit: u32::try_from(response.deliveries.len())?,
        ..WorkRequest::default()
    };
    for delivery in &response.deliveries {
        let lease_id = delivery.lease_id;
        if delivery.fairness_key == FAILING && traffic.fails {
            report.nacks.push(LeaseNack {
                lease_id,
                error: "it always does".to_owned(),
                delay_ms: None,
            });
            continue;
        }
        report.acks.push(lease_id);
        if delivery.fairness_key.starts_with("live-") {
            let number: Result<[u8; 8], _> = delivery.payload.as_ref().try_into();
            let number = u64::from_be_bytes(number.context("a number")?);
            leases.insert(lease_id, usize::try_from(number)?);
        }
    }
    Ok(report)
}

/// Makes dead letters, in a queue that allows one attempt.
async fn kill_all(rig: &Rig, queue: &str, letters: u64) -> anyhow::Result<()> {
    let load = StreamLoad {
        messages: letters,
        keys: KeyShape::flat(KEYS),
        size: 256,
        outstanding: 1000,
        frame: 100,
    };
    client::produce(&rig.channel, queue, load, |_| {}).await?;
    let (sender, requests) = mpsc::channel(64);
    let first = WorkRequest {
        queue: queue.to_owned(),
        credit: 1024,
        ..WorkRequest::default()
    };
    sender.send(first).await?;
    let mut service = client::service(&rig.channel);
    let call = service.work(ReceiverStream::new(requests));
    let mut responses = call.await?.into_inner();
    let mut confirmed = 0;
    while confirmed < letters {
        let response = responses.message().await?.context("the stream has ended")?;
        confirmed += response.confirmed.len() as u64;
        let nack = |delivery: &fila_proto::v1::Delivery| LeaseNack {
            lease_id: delivery.lease_id,
            error: "as planned".to_owned(),
            delay_ms: None,
        };
        let nacks: Vec<LeaseNack> = response.deliveries.iter().map(nack).collect();
        if !nacks.is_empty() {
            let report = WorkRequest {
                credit: u32::try_from(nacks.len())?,
                nacks,
                ..WorkRequest::default()
            };
            sender.send(report).await.context("the stream has ended")?;
        }
    }
    // One round of the broker moves a limited number; the others follow.
    let dead_letters = format!("{queue}.dlq");
    while client::stats(&rig.channel, &dead_letters).await?.depth < letters {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// The progress of a redrive during the traffic.
#[derive(Clone, Copy, Debug, Default)]
struct Redriven {
    window: Window,
    messages: u64,
}

/// Moves all dead letters back, beginning shortly after the traffic.
async fn redrive(address: &str, queue: &str, progress: &Cell<Redriven>) -> anyhow::Result<()> {
    let mut admin = FilaAdminClient::new(client::connect(address).await?);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let from = Some(Instant::now());
    let request = RedriveRequest {
        queue: format!("{queue}.dlq"),
        ..RedriveRequest::default()
    };
    let mut steps = admin.redrive(request).await?.into_inner();
    while let Some(step) = steps.message().await? {
        let to = Some(Instant::now());
        progress.set(Redriven {
            window: Window { from, to },
            messages: step.redriven,
        });
    }
    Ok(())
}

/// Measures live traffic alone and during redrives: of messages that wait, and of messages that are delivered.
pub(crate) async fn beside_a_redrive(letters: u64, time: Duration) -> anyhow::Result<()> {
    println!(
        "\nlive traffic beside a redrive of {letters} dead letters into the same queue; from sent to acknowledged, in ms, \
         the least of {ROUNDS} rounds"
    );
    heading();
    let traffic = Traffic {
        messages: (time.as_millis() / INTERVAL.as_millis()) as u64,
        is_mixed: false,
        fails: false,
    };
    let mut rows = ["alone", "redriven, and waiting", "redriven, and delivered"].map(Row::new);
    for _ in 0..ROUNDS {
        for (number, row) in rows.iter_mut().enumerate() {
            let mut rig = Rig::start_with(&[]).await?;
            let address = rig.server.address.clone();
            let queue = rig
                .queue(QueueSettings::new().retry_attempts_max(1))
                .await?;
            kill_all(&rig, &queue, letters).await?;
            if number == 1 {
                for key in 0..KEYS {
                    let key = format!("tenant-{key}");
                    let admin = rig.client.admin();
                    admin.update_key(&queue, &key, KeyChange::pause()).await?;
                }
            }
            let progress = Cell::new(Redriven::default());
            let live = Box::pin(pass(&address, &queue, traffic));
            let times = match number {
                0 => live.await?,
                _ => Box::pin(beside(live, redrive(&address, &queue, &progress))).await?,
            };
            let Redriven { window, messages } = progress.get();
            row.add(&times, &window);
            if let (Some(from), Some(to)) = (window.from, window.to) {
                row.beside = messages as f64 / to.duration_since(from).as_secs_f64();
            }
        }
    }
    print(&rows);
    for row in &rows[1..] {
        println!("{}: {:.0} redriven/s", row.what, row.beside);
    }
    Ok(())
}

/// Waits for the first future while it drives the second.
async fn beside<T>(
    first: impl Future<Output = anyhow::Result<T>>,
    second: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<T> {
    let mut first = std::pin::pin!(first);
    tokio::select! {
        done = &mut first => return done,
        done = second => done?,
    }
    first.await
}

/// Measures traffic while another key makes half of the load and all its messages fail.
pub(crate) async fn beside_a_failing_key(time: Duration) -> anyhow::Result<()> {
    println!(
        "\nlive traffic beside a key that makes half of the load; from sent to acknowledged, in ms, the least of {ROUNDS} \
         rounds"
    );
    heading();
    let mut rows = ["all succeed", "all of that key fail"].map(Row::new);
    for _ in 0..ROUNDS {
        for (row, fails) in rows.iter_mut().zip([false, true]) {
            let mut rig = Rig::start_with(&[]).await?;
            let address = rig.server.address.clone();
            let queue = rig.queue(QueueSettings::new()).await?;
            let traffic = Traffic {
                messages: (time.as_millis() / INTERVAL.as_millis()) as u64,
                is_mixed: true,
                fails,
            };
            let times = Box::pin(pass(&address, &queue, traffic)).await?;
            row.add(&times, &Window::default());
        }
    }
    print(&rows);
    Ok(())
}

/// One line of the output: the minimum of all rounds, which other programs on the machine disturb least.
#[derive(Debug)]
struct Row {
    what: &'static str,
    messages: usize,
    p50: f64,
    p99: f64,
    /// The rate of the other work, in messages per second.
    beside: f64,
}

impl Row {
    fn new(what: &'static str) -> Self {
        Self {
            what,
            messages: 0,
            p50: f64::MAX,
            p99: f64::MAX,
            beside: 0.0,
        }
    }

    fn add(&mut self, times: &LiveTimes, window: &Window) {
        let times = times.within(window);
        self.messages += times.len();
        self.p50 = self.p50.min(times.p50().as_secs_f64() * 1e3);
        self.p99 = self.p99.min(times.p99().as_secs_f64() * 1e3);
    }
}

fn heading() {
    println!(
        "{:<32} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "", "messages", "p50", "p99", "p50 x", "p99 x"
    );
}

/// Prints lines, each with its ratio to the first.
fn print(rows: &[Row]) {
    for row in rows {
        let Row {
            what,
            messages,
            p50,
            p99,
            ..
        } = row;
        println!(
            "{what:<32} {messages:>8} {p50:>8.2} {p99:>8.2} {:>8.2} {:>8.2}",
            p50 / rows[0].p50,
            p99 / rows[0].p99
        );
    }
}
