//! Clients that behave, and what they notice while another client misbehaves.
//!
//! Each tenant sends single messages at a steady rate over a connection of its own, whether or not the server keeps up.
//! One worker takes the messages of all tenants. The books count refusals and keep the duration of every call and of
//! every way from a producer to the worker.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use fila_proto::v1::{Delivery, EnqueueRequest, LeaseNack, Message, WorkRequest, WorkResponse};
use lab::Latencies;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

use crate::client;

/// The queue of the honest tenants.
pub(crate) const QUEUE: &str = "shared";

/// The number that noisy messages have in the place of their tenant's.
pub(crate) const NOISE: u64 = u64::MAX;
/// The number of the tenant that connects anew for every message.
const NEWCOMER: u64 = u64::MAX - 1;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many unanswered calls a tenant has at most.
const UNANSWERED_MAX: usize = 1_024;
/// The interval between two newcomers, and how long one waits.
const NEWCOMER_PAUSE: Duration = Duration::from_millis(500);
const NEWCOMER_PATIENCE: Duration = Duration::from_secs(2);
/// How long the delayed ones among the messages wait. One in [`DELAYED_ONE_IN`] is delayed.
const DELAY: Duration = Duration::from_millis(50);
const DELAYED_ONE_IN: u64 = 10;

const CREDIT: u32 = 256;

#[derive(Clone, Copy, Debug)]
pub(crate) struct HonestPlan {
    pub(crate) tenants: u64,
    /// Messages a second of each tenant.
    pub(crate) rate: f64,
    /// Whether there are also newcomers, which connect, send one message and leave.
    pub(crate) has_newcomers: bool,
    /// How the work on messages of the noisy tenant ends.
    pub(crate) noisy_work: NoisyWork,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoisyWork {
    Succeeds,
    Fails,
}

/// The clients of one server. Dropping them ends them.
#[derive(Debug)]
pub(crate) struct Honest {
    books: Arc<Mutex<HonestBooks>>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct HonestBooks {
    /// Older messages do not count.
    since: Instant,
    /// Messages that have not been delivered, and calls that have no answer: when they began.
    under_way: HashMap<(u64, u64), Instant>,
    unanswered: HashMap<(u64, u64), Instant>,
    enqueue: Latencies,
    deliver: Latencies,
    refusals: BTreeMap<String, u64>,
    lost_keys: u64,
    newcomers: Newcomers,
}

/// The clients that connected anew.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Newcomers {
    pub(crate) served: u64,
    pub(crate) locked_out: u64,
    /// When the first was served, counted from the beginning of the measurement.
    pub(crate) first_served: Option<Duration>,
}

/// The results of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct HonestFigures {
    pub(crate) enqueue: Latencies,
    /// From the call to the worker.
    pub(crate) deliver: Latencies,
    /// By code. A call without an answer and a lost stream count, too.
    pub(crate) refusals: BTreeMap<String, u64>,
    /// Messages that came under another fairness key than their tenant's.
    pub(crate) lost_keys: u64,
    pub(crate) newcomers: Newcomers,
}

impl HonestFigures {
    pub(crate) fn refused(&self) -> u64 {
        self.refusals.values().sum()
    }
}

type SharedBooks = Arc<Mutex<HonestBooks>>;

fn open(books: &SharedBooks) -> MutexGuard<'_, HonestBooks> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Honest {
    /// Connects all clients and starts them. The queue must exist.
    pub(crate) async fn start(address: &str, plan: HonestPlan) -> anyhow::Result<Self> {
        let books = Arc::new(Mutex::new(HonestBooks::new()));
        let mut tasks = JoinSet::new();
        let address = address.to_owned();
        tasks.spawn(work(address.clone(), plan.noisy_work, books.clone()));
        for tenant in 0..plan.tenants {
            let channel = client::connect(&address).await?;
            tasks.spawn(send(channel, tenant, plan, books.clone()));
        }
        if plan.has_newcomers {
            tasks.spawn(newcomers(address, books.clone()));
        }
        Ok(Self {
            books,
            _tasks: tasks,
        })
    }

    /// Begins a measurement, and forgets the one before.
    pub(crate) fn begin(&self) {
        let mut books = open(&self.books);
        let under_way = std::mem::take(&mut books.under_way);
        let unanswered = std::mem::take(&mut books.unanswered);
        *books = HonestBooks {
            under_way,
            unanswered,
            ..HonestBooks::new()
        };
    }

    /// Returns the figures since the measurement began. A call or a message that has waited for more than a second counts
    /// with its wait so far.
    pub(crate) fn figures(&self) -> HonestFigures {
        let books = open(&self.books);
        HonestFigures {
            enqueue: books.with_waiting(&books.enqueue, &books.unanswered),
            deliver: books.with_waiting(&books.deliver, &books.under_way),
            refusals: books.refusals.clone(),
            lost_keys: books.lost_keys,
            newcomers: books.newcomers,
        }
    }
}

impl HonestBooks {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            under_way: HashMap::new(),
            unanswered: HashMap::new(),
            enqueue: Latencies::default(),
            deliver: Latencies::default(),
            refusals: BTreeMap::new(),
            lost_keys: 0,
            newcomers: Newcomers::default(),
        }
    }

    fn with_waiting(&self, ended: &Latencies, begun: &HashMap<(u64, u64), Instant>) -> Latencies {
        let mut all = ended.clone();
        let begun = begun.values().filter(|begun| **begun >= self.since);
        let waits = begun.map(Instant::elapsed);
        waits
            .filter(|wait| *wait > Duration::from_secs(1))
            .for_each(|wait| all.record(wait));
        all
    }

    fn refuse(&mut self, code: &str) {
        *self.refusals.entry(code.to_owned()).or_default() += 1;
    }

    fn answered(&mut self, id: (u64, u64), sent: Instant, answer: Result<(), String>) {
        self.unanswered.remove(&id);
        if let Err(code) = answer {
            self.under_way.remove(&id);
            if sent >= self.since {
                self.refuse(&code);
            }
        } else if sent >= self.since {
            self.enqueue.record(sent.elapsed());
        }
    }

    fn delivered(&mut self, id: (u64, u64), delivery: &Delivery) {
        let Some(sent) = self.under_way.remove(&id) else {
            return;
        };
        if sent < self.since {
            return;
        }
        self.lost_keys += u64::from(delivery.fairness_key != key(id.0));
        if !id.1.is_multiple_of(DELAYED_ONE_IN) {
            self.deliver.record(sent.elapsed());
        }
    }
}

fn key(tenant: u64) -> String {
    match tenant {
        NEWCOMER => "newcomer".to_owned(),
        _ => format!("quiet-{tenant}"),
    }
}

/// Returns the payload of a message: its tenant, its number, and as much more as it needs.
pub(crate) fn payload(tenant: u64, number: u64, size: usize) -> bytes::Bytes {
    let mut payload = vec![0x5a; size.max(16)];
    payload[..8].copy_from_slice(&tenant.to_be_bytes());
    payload[8..16].copy_from_slice(&number.to_be_bytes());
    payload.into()
}

/// Returns a message that uses every pool of its queue: the delayed messages, the deduplication ids, the hooks.
fn message(tenant: u64, number: u64) -> Message {
    let is_delayed = number.is_multiple_of(DELAYED_ONE_IN);
    let headers = [
        ("tenant", key(tenant)),
        ("priority", "1".to_owned()),
        ("endpoint", "quiet".to_owned()),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value));
    Message {
        fairness_key: key(tenant),
        payload: payload(tenant, number, 256),
        deduplication_id: format!("{tenant}-{number}"),
        delay_ms: if is_delayed {
            DELAY.as_millis() as u64
        } else {
            0
        },
        headers: headers.into(),
        ..Message::default()
    }
}

async fn send(channel: Channel, tenant: u64, plan: HonestPlan, books: SharedBooks) {
    let pause = Duration::from_secs_f64(1.0 / plan.rate);
    // The tenants do not send at the same moment.
    sleep(pause.mul_f64(tenant as f64 / plan.tenants as f64)).await;
    let mut ticks = interval(pause);
    let mut calls = JoinSet::new();
    for number in 0.. {
        ticks.tick().await;
        while calls.try_join_next().is_some() {}
        if calls.len() >= UNANSWERED_MAX {
            open(&books).refuse("1,024 calls without an answer");
            continue;
        }
        calls.spawn(enqueue(channel.clone(), (tenant, number), books.clone()));
    }
}

/// Sends one message of a tenant and enters it into the books.
async fn enqueue(channel: Channel, id: (u64, u64), books: SharedBooks) {
    let sent = Instant::now();
    open(&books).under_way.insert(id, sent);
    open(&books).unanswered.insert(id, sent);
    let answer = call(&channel, id, PATIENCE).await;
    open(&books).answered(id, sent, answer);
}

/// Sends one message. The error is the code of the refusal.
async fn call(channel: &Channel, id: (u64, u64), patience: Duration) -> Result<(), String> {
    let request = EnqueueRequest {
        queue: QUEUE.to_owned(),
        message: Some(message(id.0, id.1)),
    };
    let mut service = client::service(channel);
    match timeout(patience, service.enqueue(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(code(&status)),
        Err(_) => Err("no answer".to_owned()),
    }
}

/// Returns the code of a refusal, or of a failed call.
pub(crate) fn code(status: &Status) -> String {
    let code = status.metadata().get("fila-error");
    let code = code.and_then(|code| code.to_str().ok());
    code.map_or_else(|| format!("{:?}", status.code()), str::to_owned)
}

async fn newcomers(address: String, books: SharedBooks) {
    let mut ticks = interval(NEWCOMER_PAUSE);
    let mut calls = JoinSet::new();
    for number in 0.. {
        ticks.tick().await;
        while calls.try_join_next().is_some() {}
        calls.spawn(newcomer(address.clone(), number, books.clone()));
    }
}

async fn newcomer(address: String, number: u64, books: SharedBooks) {
    let came = Instant::now();
    let visit = async {
        let channel = client::connect(&address).await.ok()?;
        let answer = call(&channel, (NEWCOMER, number), NEWCOMER_PATIENCE).await;
        answer.ok()
    };
    let served = timeout(NEWCOMER_PATIENCE, visit).await;
    let mut books = open(&books);
    if came < books.since {
        return;
    }
    let since = books.since;
    match served {
        Ok(Some(())) => {
            books.newcomers.served += 1;
            books
                .newcomers
                .first_served
                .get_or_insert_with(|| since.elapsed());
        }
        Ok(None) | Err(_) => books.newcomers.locked_out += 1,
    }
}

/// Takes the messages of all tenants, and takes up its work again after its stream broke.
async fn work(address: String, noisy_work: NoisyWork, books: SharedBooks) {
    loop {
        let ended = work_once(&address, noisy_work, &books).await;
        if ended.is_err() {
            open(&books).refuse("the worker's stream ended");
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn work_once(
    address: &str,
    noisy_work: NoisyWork,
    books: &SharedBooks,
) -> anyhow::Result<()> {
    let channel = client::connect(address).await?;
    let (requests, receiver) = mpsc::channel(64);
    let first = WorkRequest {
        queue: QUEUE.to_owned(),
        credit: CREDIT,
        ..WorkRequest::default()
    };
    requests.send(first).await?;
    let mut service = client::service(&channel);
    let call = service.work(ReceiverStream::new(receiver));
    let mut frames = call.await?.into_inner();
    loop {
        let frame = frames.message().await?.context("the stream has ended")?;
        let report = results(&frame, noisy_work, &mut open(books))?;
        if report.credit > 0 {
            requests.send(report).await?;
        }
    }
}

/// Enters the deliveries of a frame into the books, and returns the results of the work on them.
fn results(
    frame: &WorkResponse,
    noisy_work: NoisyWork,
    books: &mut HonestBooks,
) -> anyhow::Result<WorkRequest> {
    let mut report = WorkRequest {
        credit: frame.deliveries.len() as u32,
        ..WorkRequest::default()
    };
    for delivery in &frame.deliveries {
        let (tenant, number) = client::numbers(&delivery.payload)?;
        if tenant == NOISE && noisy_work == NoisyWork::Fails {
            report.nacks.push(LeaseNack {
                lease_id: delivery.lease_id,
                error: "as always".to_owned(),
                delay_ms: None,
            });
            continue;
        }
        report.acks.push(delivery.lease_id);
        if tenant != NOISE {
            books.delivered((tenant, number), delivery);
        }
    }
    Ok(report)
}
