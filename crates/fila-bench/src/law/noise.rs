//! The noisy tenant: what it sends, over how many connections, and what becomes of it.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use fila_proto::v1::{ConsumeRequest, ErrorCode, Message, ProduceRequest, ProduceResponse};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use crate::client;
use crate::honest::{self, NOISE};

/// The queue that the noisy tenant has for itself.
pub(super) const OWN_QUEUE: &str = "noisy";

/// The noisy tenant's fairness key and throttle key.
pub(super) const NOISY: &str = "noisy";

/// By how much it sends more than it may.
pub(super) const TIMES: f64 = 100.0;

/// How many of its consumers read nothing.
const UNREAD: usize = 40;

/// How many fairness keys a tenant that splits itself has, all of them in one group.
const SPLIT_KEYS: u64 = 1_000;

/// The most messages of one frame.
const FRAME: u64 = 64;

/// One attack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    pub(super) kind: NoiseKind,
    pub(super) connections: usize,
    pub(super) size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoiseKind {
    /// It sends to the second server in every round: how far two rounds are apart by chance.
    None,
    /// It sends much.
    Flood,
    /// It sends as much, under a thousand keys of its own.
    Splitting,
    /// All work on its messages fails.
    Failing,
    /// It sends headers that the hook of the queue turns into invalid answers.
    HostileHeaders,
    /// It has consumers that read nothing, on a queue of its own.
    UnreadConsumers,
}

const KIB: usize = 1 << 10;
/// As large as the default limit allows, with its headers.
const MIB: usize = (1 << 20) - 64;

impl Noise {
    pub(super) const ALL: [Self; 11] = [
        Self::new(NoiseKind::None, 100, KIB),
        Self::new(NoiseKind::Flood, 1, KIB),
        Self::new(NoiseKind::Flood, 100, KIB),
        Self::new(NoiseKind::Flood, 1_000, KIB),
        Self::new(NoiseKind::Flood, 1, MIB),
        Self::new(NoiseKind::Flood, 100, MIB),
        Self::new(NoiseKind::Flood, 1_000, MIB),
        Self::new(NoiseKind::Splitting, 1, KIB),
        Self::new(NoiseKind::Failing, 100, KIB),
        Self::new(NoiseKind::HostileHeaders, 100, KIB),
        Self::new(NoiseKind::UnreadConsumers, 100, MIB),
    ];

    const fn new(kind: NoiseKind, connections: usize, size: usize) -> Self {
        Self {
            kind,
            connections,
            size,
        }
    }

    pub(super) fn name(self) -> String {
        let size = if self.size == KIB { "1-kib" } else { "1-mib" };
        let kind = match self.kind {
            NoiseKind::None => return "control".to_owned(),
            NoiseKind::Splitting => return "splitting-1000-keys".to_owned(),
            NoiseKind::Failing => return "failing".to_owned(),
            NoiseKind::HostileHeaders => return "hostile-headers".to_owned(),
            NoiseKind::UnreadConsumers => return "unread-consumers".to_owned(),
            NoiseKind::Flood => "flood",
        };
        format!("{kind}-{}-{size}", self.connections)
    }

    /// Tells whether the row is a part of a short run.
    pub(super) fn is_quick(self) -> bool {
        self.kind != NoiseKind::None && self.connections == 100
    }

    /// Returns how many messages fit into its queue: few enough that it fills its part while the load warms up, and enough
    /// for the quiet tenants.
    pub(super) fn depth(self) -> u64 {
        match (self.kind, self.size) {
            (NoiseKind::UnreadConsumers, _) | (_, KIB) => 4_000,
            _ => 160,
        }
    }

    /// Returns how many messages it sends in a second.
    pub(super) fn rate(self) -> f64 {
        if self.size == KIB { 5_000.0 } else { 40.0 }
    }

    /// Returns the queue that it sends to.
    fn queue(self) -> &'static str {
        match self.kind {
            NoiseKind::UnreadConsumers => OWN_QUEUE,
            NoiseKind::None
            | NoiseKind::Flood
            | NoiseKind::Splitting
            | NoiseKind::Failing
            | NoiseKind::HostileHeaders => honest::QUEUE,
        }
    }

    fn message(self, number: u64) -> Message {
        let mut message = Message {
            fairness_key: NOISY.to_owned(),
            payload: honest::payload(NOISE, number, self.size),
            deduplication_id: format!("noisy-{number}"),
            ..Message::default()
        };
        match self.kind {
            NoiseKind::None | NoiseKind::Flood => message.throttle_keys = vec![NOISY.to_owned()],
            NoiseKind::Splitting => {
                message.throttle_keys = vec![NOISY.to_owned()];
                message.fairness_key = format!("{NOISY}/{:04}", number % SPLIT_KEYS);
            }
            NoiseKind::Failing | NoiseKind::UnreadConsumers => {}
            NoiseKind::HostileHeaders => message.headers = hostile_headers(number).into(),
        }
        message
    }
}

/// Returns headers that the usual script copies into its answer: a weight or a key that is out of range.
fn hostile_headers(number: u64) -> [(String, String); 3] {
    let long = "x".repeat(257);
    let (tenant, priority, endpoint) = match number % 8 {
        0 => (NOISY, "0", NOISY),
        1 => (NOISY, "1.5", NOISY),
        2 => (NOISY, "70000", NOISY),
        3 => (NOISY, "-1", NOISY),
        4 => (NOISY, "nan", NOISY),
        5 => (long.as_str(), "1", NOISY),
        6 => (NOISY, "1", long.as_str()),
        _ => (NOISY, "1", ""),
    };
    let headers = [
        ("tenant", tenant),
        ("priority", priority),
        ("endpoint", endpoint),
    ];
    headers.map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// What became of the noisy messages.
#[derive(Clone, Debug, Default)]
pub(super) struct NoiseCounts {
    pub(super) sent: u64,
    pub(super) confirmed: u64,
    /// By code.
    pub(super) refused: BTreeMap<String, u64>,
}

impl NoiseCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.confirmed += other.confirmed;
        for (code, times) in other.refused {
            *self.refused.entry(code).or_default() += times;
        }
    }

    fn answer(&mut self, response: &ProduceResponse) {
        for result in &response.results {
            match &result.error {
                None => self.confirmed += 1,
                Some(error) => {
                    let code = ErrorCode::try_from(error.code).unwrap_or_default();
                    *self.refused.entry(code.name().to_owned()).or_default() += 1;
                }
            }
        }
    }
}

/// The thread of the noisy tenant.
pub(super) struct NoiseThread {
    stop: watch::Sender<bool>,
    connected: watch::Receiver<bool>,
    thread: JoinHandle<anyhow::Result<NoiseCounts>>,
}

impl NoiseThread {
    pub(super) fn start(noise: Noise, address: String) -> anyhow::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let (connecting, connected) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(LocalSet::new().run_until(make(noise, address, connecting, stopped)))
        });
        Ok(Self {
            stop,
            connected,
            thread,
        })
    }

    /// Waits until all its connections are open.
    pub(super) async fn connected(&mut self) -> anyhow::Result<()> {
        let connected = self.connected.wait_for(|connected| *connected);
        let connected = timeout(Duration::from_secs(60), connected).await;
        connected?.map(drop).context("the noisy tenant has failed")
    }

    pub(super) async fn end(self) -> anyhow::Result<NoiseCounts> {
        self.stop.send(true).ok();
        while !self.thread.is_finished() {
            sleep(Duration::from_millis(10)).await;
        }
        let counts = self.thread.join();
        counts.ok().context("the noisy tenant panicked")?
    }
}

async fn make(
    noise: Noise,
    address: String,
    connecting: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<NoiseCounts> {
    let mut channels = Vec::new();
    for _ in 0..noise.connections {
        channels.push(Endpoint::from_shared(address.clone())?.connect().await?);
    }
    let mut held = Vec::new();
    if noise.kind == NoiseKind::UnreadConsumers {
        for channel in channels.iter().cycle().take(UNREAD) {
            let request = ConsumeRequest {
                queue: OWN_QUEUE.to_owned(),
                prefetch: 64,
            };
            let mut service = client::service(channel);
            held.push(service.consume(request).await?.into_inner());
        }
    }
    connecting.send(true).ok();
    let begun = Instant::now();
    let mut producers = JoinSet::new();
    for (number, channel) in channels.into_iter().enumerate() {
        producers.spawn_local(produce(noise, number, channel, begun, stopped.clone()));
    }
    let mut counts = NoiseCounts::default();
    while let Some(produced) = producers.join_next().await {
        counts.add(produced?);
    }
    Ok(counts)
}

/// Sends one connection's part of the messages, at its part of the rate, whatever the answers are. Takes up its work again
/// after the server ended its stream.
async fn produce(
    noise: Noise,
    number: usize,
    channel: Channel,
    begun: Instant,
    mut stopped: watch::Receiver<bool>,
) -> NoiseCounts {
    let mut counts = NoiseCounts::default();
    loop {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return counts,
            _ = stream(noise, number, &channel, begun, &mut counts) => {}
        }
        *counts.refused.entry("stream ended".to_owned()).or_default() += 1;
        sleep(Duration::from_millis(20)).await;
    }
}

async fn stream(
    noise: Noise,
    number: usize,
    channel: &Channel,
    begun: Instant,
    counts: &mut NoiseCounts,
) -> anyhow::Result<()> {
    let (sender, frames) = mpsc::channel(64);
    let mut service = client::service(channel);
    let call = service.produce(ReceiverStream::new(frames));
    let mut responses = call.await?.into_inner();
    responses.message().await?.context("the window")?;
    let pause = Duration::from_secs_f64(noise.connections as f64 / noise.rate());
    // The connections do not send at the same moment.
    let offset = pause.mul_f64(number as f64 / noise.connections as f64);
    let due = || {
        let time = begun.elapsed().checked_sub(offset);
        time.map_or(0, |time| {
            (time.as_secs_f64() / pause.as_secs_f64()) as u64 + 1
        })
    };
    // Messages that were due before the stream was there are skipped, and those that it does not take.
    let mut skipped_to = due();
    loop {
        let next = begun + offset + pause.mul_f64(skipped_to as f64);
        tokio::select! {
            () = tokio::time::sleep_until(next.into()) => {
                let now = due();
                let unique = (number as u64) << 32 | skipped_to;
                let messages = now.saturating_sub(skipped_to).min(FRAME);
                let messages = (unique..unique + messages).map(|number| noise.message(number));
                let frame = ProduceRequest {
                    frame_id: skipped_to,
                    queue: noise.queue().to_owned(),
                    messages: messages.collect(),
                    batch_id: None,
                };
                let count = frame.messages.len() as u64;
                if sender.try_send(frame).is_ok() {
                    counts.sent += count;
                }
                skipped_to = now.max(skipped_to);
            }
            response = responses.message() => {
                counts.answer(&response?.context("the stream has ended")?);
            }
        }
    }
}
