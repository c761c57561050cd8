//! Producers and consumers: at a fixed rate or as fast as possible, to the last message or until they are told to stop.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use fila_proto::v1::{
    EnqueueResult, ErrorCode, Message, ProduceRequest, ProduceResponse, WorkRequest, WorkResponse,
};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::books::Books;
use crate::client;

/// How long a producer waits after a refusal before it tries again.
const BACK_OFF: Duration = Duration::from_millis(20);

/// How often a producer checks whether messages are due.
const GLANCE: Duration = Duration::from_millis(2);

/// Messages in one frame.
const FRAME: u64 = 64;

pub(super) type Shared<T> = Rc<T>;

/// The fairness keys of a producer's messages.
#[derive(Clone, Debug)]
pub(super) enum Keys {
    One(&'static str),
    /// Every message has its own key.
    Own,
}

/// The task of a producer.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Its number in the ledger.
    pub(super) producer: u64,
    pub(super) queue: &'static str,
    pub(super) keys: Keys,
    pub(super) size: usize,
    /// The number of messages to send, unless the producer is stopped before.
    pub(super) messages: u64,
    /// Messages a second; None for as fast as possible.
    pub(super) rate: Option<f64>,
}

/// Sends messages, and returns how many were due by the end. Messages that are due and cannot be sent wait in the producer.
pub(super) async fn produce(
    address: String,
    plan: Plan,
    books: Shared<RefCell<Books>>,
    stop: Shared<Cell<bool>>,
) -> anyhow::Result<u64> {
    let channel = client::connect(&address).await?;
    let (sender, frames) = mpsc::channel(4);
    let mut service = client::service(&channel);
    let call = service.produce(ReceiverStream::new(frames));
    let mut responses = call.await?.into_inner();
    let window = responses.message().await?.context("the window")?.window;
    let window = u64::from(window);
    let begun = Instant::now();
    let (mut sent, mut answered) = (0, 0);
    let mut frames: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut again_at = begun;
    loop {
        let due = plan.due(begun);
        let has_more = sent < plan.messages && !stop.get();
        if !has_more && sent == answered {
            return Ok(due);
        }
        let room = window - (sent - answered);
        let count = FRAME.min(room).min(due.saturating_sub(sent));
        if has_more && count > 0 && Instant::now() >= again_at {
            let frame = plan.frame(sent, count, &books);
            frames.insert(frame.frame_id, (sent, count));
            sent += count;
            // A stream that does not take the frame may wait until the producer reads its responses.
            let mut sending = std::pin::pin!(sender.send(frame));
            loop {
                tokio::select! {
                    ended = &mut sending => { ended.context("the stream has ended")?; break }
                    response = responses.message() => {
                        let response = response?.context("the stream has ended")?;
                        answered += plan.answer(&response, &mut frames, &books, &mut again_at)?;
                    }
                }
            }
            continue;
        }
        if let Ok(response) = tokio::time::timeout(GLANCE, responses.message()).await {
            let response = response?.context("the stream has ended")?;
            answered += plan.answer(&response, &mut frames, &books, &mut again_at)?;
        }
    }
}

impl Plan {
    fn due(&self, begun: Instant) -> u64 {
        let due = self
            .rate
            .map(|rate| (begun.elapsed().as_secs_f64() * rate) as u64 + 1);
        due.unwrap_or(self.messages).min(self.messages)
    }

    fn frame(&self, from: u64, count: u64, books: &RefCell<Books>) -> ProduceRequest {
        let mut body = vec![0x5a; self.size.max(16)];
        body[..8].copy_from_slice(&self.producer.to_be_bytes());
        let messages = (from..from + count).map(|number| {
            body[8..16].copy_from_slice(&number.to_be_bytes());
            books.borrow_mut().sent(self.producer, number);
            Message {
                fairness_key: match self.keys {
                    Keys::One(key) => key.to_owned(),
                    Keys::Own => format!("key-{number}"),
                },
                payload: body.clone().into(),
                ..Message::default()
            }
        });
        ProduceRequest {
            frame_id: from,
            queue: self.queue.to_owned(),
            messages: messages.collect(),
            batch_id: None,
        }
    }

    fn answer(
        &self,
        response: &ProduceResponse,
        frames: &mut HashMap<u64, (u64, u64)>,
        books: &RefCell<Books>,
        again_at: &mut Instant,
    ) -> anyhow::Result<u64> {
        let frame = frames.remove(&response.frame_id);
        let (first, count) = frame.context("an answer to no frame")?;
        anyhow::ensure!(
            response.results.len() as u64 == count,
            "a result is missing"
        );
        let mut books = books.borrow_mut();
        for (number, result) in (first..).zip(&response.results) {
            match code(result) {
                None => books.confirm(self.producer, number),
                Some(code) => {
                    books.refuse(self.producer, code);
                    *again_at = Instant::now() + BACK_OFF;
                }
            }
        }
        Ok(count)
    }
}

fn code(result: &EnqueueResult) -> Option<&'static str> {
    let error = result.error.as_ref()?;
    let code = ErrorCode::try_from(error.code).unwrap_or_default();
    Some(code.name())
}

/// A stream of deliveries, and the sender that keeps it open.
pub(super) struct Worker {
    pub(super) requests: mpsc::Sender<WorkRequest>,
    pub(super) responses: Streaming<WorkResponse>,
}

impl Worker {
    pub(super) async fn open(address: &str, queue: &str, credit: u32) -> anyhow::Result<Self> {
        Self::on(&client::connect(address).await?, queue, credit).await
    }

    pub(super) async fn on(channel: &Channel, queue: &str, credit: u32) -> anyhow::Result<Self> {
        let (requests, receiver) = mpsc::channel(64);
        let first = WorkRequest {
            queue: queue.to_owned(),
            credit,
            ..WorkRequest::default()
        };
        requests.send(first).await?;
        let mut service = client::service(channel);
        let call = service.work(ReceiverStream::new(receiver));
        let responses = call.await?.into_inner();
        Ok(Self {
            requests,
            responses,
        })
    }
}

/// Takes and acknowledges messages until it is told to stop, each after its processing time.
pub(super) async fn consume(
    address: String,
    queue: &'static str,
    pace: Shared<Cell<Duration>>,
    books: Shared<RefCell<Books>>,
    stop: Shared<Cell<bool>>,
) -> anyhow::Result<()> {
    const CREDIT: u32 = 256;
    let mut worker = Worker::open(&address, queue, 1).await?;
    let mut credit = 1;
    let mut leased: HashMap<u64, (u64, u64)> = HashMap::new();
    while !stop.get() || !leased.is_empty() {
        let next = tokio::time::timeout(GLANCE, worker.responses.message()).await;
        let Ok(next) = next else {
            continue;
        };
        let frame = next?.context("the stream has ended")?;
        let acks = take(frame, &mut leased, &mut books.borrow_mut())?;
        if acks.is_empty() {
            continue;
        }
        let time = pace.get() * acks.len() as u32;
        if !time.is_zero() {
            sleep(time).await;
        }
        // One at a time if each has a processing time, many otherwise.
        let target = if time.is_zero() { CREDIT } else { 1 };
        credit = u32::saturating_sub(credit, acks.len() as u32);
        let given = target.saturating_sub(credit);
        credit += given;
        let report = WorkRequest {
            credit: given,
            acks,
            ..WorkRequest::default()
        };
        worker
            .requests
            .send(report)
            .await
            .context("the stream has ended")?;
    }
    Ok(())
}

/// Records what a frame confirms, refuses and delivers. Returns the leases of its deliveries.
fn take(
    frame: WorkResponse,
    leased: &mut HashMap<u64, (u64, u64)>,
    books: &mut Books,
) -> anyhow::Result<Vec<u64>> {
    for lease in frame.confirmed {
        if let Some((producer, number)) = leased.remove(&lease) {
            books.ack(producer, number);
        }
    }
    for refusal in frame.refused {
        // The lease has expired: the broker delivers the message again.
        leased.remove(&refusal.lease_id);
        let code = refusal.error.map(|error| error.code()).unwrap_or_default();
        *books.refusals.entry(code.name().to_owned()).or_default() += 1;
    }
    let mut acks = Vec::with_capacity(frame.deliveries.len());
    for delivery in &frame.deliveries {
        let (producer, number) = client::numbers(&delivery.payload)?;
        books.deliver(producer, number)?;
        leased.insert(delivery.lease_id, (producer, number));
        acks.push(delivery.lease_id);
    }
    Ok(acks)
}
