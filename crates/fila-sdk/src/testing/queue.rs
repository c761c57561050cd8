//! A queue of the test broker: a plain state machine to which the time is passed in.
//!
//! Fairness keys take turns, each with as many messages as its weight says. Everything else is as a user of the real
//! broker sees it: leases, attempts, delays, deduplication, what a broken connection gives back.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, SystemTime};

use fila_proto::v1;
use fila_proto::v1::ErrorCode;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

use crate::moment::after;

/// What a queue leases for if nothing else is set.
pub(super) const VISIBILITY: Duration = Duration::from_secs(30);

pub(super) type WorkResponses = mpsc::UnboundedSender<Result<v1::WorkResponse, Status>>;

#[derive(Debug)]
pub(super) struct TestQueue {
    name: String,
    pub(super) settings: v1::QueueSettings,
    pub(super) paused: bool,
    number: u64,
    /// Keys that have ready messages, in the order of their turns.
    turns: VecDeque<String>,
    /// What is left of the first key's turn.
    left: u32,
    lanes: HashMap<String, VecDeque<Stored>>,
    delayed: BTreeMap<(Instant, u64), Stored>,
    leases: BTreeMap<u64, Leased>,
    /// Messages by their own deduplication ids, and results by the names of their batches.
    known: HashMap<String, String>,
    batches: HashMap<(Vec<u8>, u64), Vec<v1::EnqueueResult>>,
    consumers: Vec<TestConsumer>,
    next_message: u64,
    pub(super) stats: v1::QueueStats,
}

#[derive(Debug)]
struct Stored {
    id: String,
    message: v1::Message,
    attempts: u32,
    enqueued_at_ms: u64,
}

#[derive(Debug)]
struct Leased {
    stored: Stored,
    consumer: u64,
    until: Instant,
}

#[derive(Debug)]
struct TestConsumer {
    id: u64,
    credit: u64,
    responses: WorkResponses,
    is_draining: bool,
}

/// What is said of a lease.
#[derive(Clone, Copy, Debug)]
pub(super) enum TestReport {
    Ack,
    Nack(Duration),
    Extend(Duration),
    Release,
}

impl TestQueue {
    pub(super) fn new(name: &str, number: u64, settings: v1::QueueSettings) -> Self {
        Self {
            name: name.to_owned(),
            settings,
            paused: false,
            number,
            turns: VecDeque::new(),
            left: 0,
            lanes: HashMap::new(),
            delayed: BTreeMap::new(),
            leases: BTreeMap::new(),
            known: HashMap::new(),
            batches: HashMap::new(),
            consumers: Vec::new(),
            next_message: 0,
            stats: v1::QueueStats::default(),
        }
    }

    pub(super) fn info(&self) -> v1::QueueInfo {
        v1::QueueInfo {
            name: self.name.clone(),
            settings: Some(self.settings.clone()),
            paused: self.paused,
            version: 1,
            stats: Some(self.stats_now()),
            keys: Vec::new(),
            hooks: Vec::new(),
        }
    }

    fn stats_now(&self) -> v1::QueueStats {
        let ready: usize = self.lanes.values().map(VecDeque::len).sum();
        v1::QueueStats {
            depth: (ready + self.delayed.len() + self.leases.len()) as u64,
            ready: ready as u64,
            delayed: self.delayed.len() as u64,
            leased: self.leases.len() as u64,
            active_keys: self.lanes.len() as u64,
            consumers: self.consumers.len() as u64,
            ..self.stats
        }
    }

    /// Takes a batch in; once, if it has a name.
    pub(super) fn enqueue(
        &mut self,
        now: Instant,
        batch: Option<v1::BatchId>,
        messages: Vec<v1::Message>,
    ) -> Vec<v1::EnqueueResult> {
        let name = batch.map(|batch| (batch.producer.to_vec(), batch.sequence));
        if let Some(known) = name.as_ref().and_then(|name| self.batches.get(name)) {
            self.stats.deduplicated_total += known.len() as u64;
            let again = known.iter().cloned().map(|mut result| {
                result.deduplicated = true;
                result
            });
            return again.collect();
        }
        let results: Vec<_> = messages
            .into_iter()
            .map(|message| self.enqueue_one(now, message))
            .collect();
        if let Some(name) = name {
            self.batches.insert(name, results.clone());
        }
        self.dispatch(now);
        results
    }

    fn enqueue_one(&mut self, now: Instant, message: v1::Message) -> v1::EnqueueResult {
        let own = message.deduplication_id.clone();
        if let Some(id) = self.known.get(&own) {
            self.stats.deduplicated_total += 1;
            return v1::EnqueueResult {
                message_id: id.clone(),
                deduplicated: true,
                error: None,
            };
        }
        self.next_message += 1;
        let id = format!(
            "00000000-0000-8000-8{:03x}-{:012x}",
            self.number & 0xfff,
            self.next_message
        );
        if !own.is_empty() {
            self.known.insert(own, id.clone());
        }
        self.stats.enqueued_total += 1;
        let delay = Duration::from_millis(message.delay_ms);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let stored = Stored {
            id: id.clone(),
            message,
            attempts: 0,
            enqueued_at_ms: since.map_or(0, |since| since.as_millis() as u64),
        };
        self.put(now, delay, stored);
        v1::EnqueueResult {
            message_id: id,
            deduplicated: false,
            error: None,
        }
    }

    fn put(&mut self, now: Instant, delay: Duration, stored: Stored) {
        if delay.is_zero() {
            self.make_ready(stored);
        } else {
            self.next_message += 1; // Only to tell those of the same moment apart.
            self.delayed
                .insert((after(now, delay), self.next_message), stored);
        }
    }

    fn make_ready(&mut self, stored: Stored) {
        let key = key(&stored.message);
        let lane = self.lanes.entry(key.clone()).or_default();
        if lane.is_empty() {
            self.turns.push_back(key);
        }
        lane.push_back(stored);
    }

    pub(super) fn subscribe(
        &mut self,
        now: Instant,
        id: u64,
        credit: u64,
        responses: WorkResponses,
    ) {
        self.consumers.push(TestConsumer {
            id,
            credit,
            responses,
            is_draining: false,
        });
        self.dispatch(now);
    }

    pub(super) fn credit(&mut self, now: Instant, id: u64, more: u64) {
        if let Some(consumer) = self.consumers.iter_mut().find(|one| one.id == id) {
            consumer.credit += more;
        }
        self.dispatch(now);
    }

    pub(super) fn drain(&mut self, id: u64) {
        if let Some(consumer) = self.consumers.iter_mut().find(|one| one.id == id) {
            consumer.is_draining = true;
        }
    }

    /// Whether a consumer has said that it wants no more, and has nothing left.
    pub(super) fn is_drained(&self, id: u64) -> bool {
        let mut consumers = self.consumers.iter();
        consumers.any(|one| one.id == id && one.is_draining)
            && !self.leases.values().any(|leased| leased.consumer == id)
    }

    /// Removes a consumer; what it has is delivered again.
    pub(super) fn unsubscribe(&mut self, now: Instant, id: u64) {
        self.consumers.retain(|consumer| consumer.id != id);
        let gone = self.leases.iter();
        let gone = gone.filter(|(_, leased)| leased.consumer == id);
        let gone: Vec<u64> = gone.map(|(&lease, _)| lease).collect();
        for lease in gone {
            if let Some(leased) = self.leases.remove(&lease) {
                self.stats.released_total += 1;
                self.make_ready(leased.stored);
            }
        }
        self.dispatch(now);
    }

    pub(super) fn settle(
        &mut self,
        now: Instant,
        lease: u64,
        said: TestReport,
    ) -> Result<(), v1::Error> {
        let Some(mut leased) = self.leases.remove(&lease) else {
            return Err(v1::Error {
                code: ErrorCode::LeaseNotFound.into(),
                message: "the lease has ended; the message is delivered again".to_owned(),
            });
        };
        match said {
            TestReport::Ack => self.stats.acked_total += 1,
            TestReport::Nack(delay) => {
                self.stats.nacked_total += 1;
                self.put(now, delay, leased.stored);
            }
            TestReport::Extend(time) => {
                leased.until = after(now, time);
                self.leases.insert(lease, leased);
            }
            TestReport::Release => {
                self.stats.released_total += 1;
                leased.stored.attempts -= 1;
                self.make_ready(leased.stored);
            }
        }
        self.dispatch(now);
        Ok(())
    }

    pub(super) fn purge(&mut self) -> u64 {
        let purged = self.stats_now().depth;
        self.stats.purged_total += purged;
        self.turns.clear();
        self.lanes.clear();
        self.delayed.clear();
        self.leases.clear();
        purged
    }

    /// Lets time pass: leases end, delayed messages become ready.
    pub(super) fn pass(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            let stored = first.remove();
            self.make_ready(stored);
        }
        let ended = self.leases.iter();
        let ended = ended.filter(|(_, leased)| leased.until <= now);
        let ended: Vec<u64> = ended.map(|(&lease, _)| lease).collect();
        for lease in ended {
            if let Some(leased) = self.leases.remove(&lease) {
                self.stats.lease_expired_total += 1;
                self.make_ready(leased.stored);
            }
        }
        self.dispatch(now);
    }

    /// Returns when something happens next by itself.
    pub(super) fn next_moment(&self) -> Option<Instant> {
        let leases = self.leases.values().map(|leased| leased.until).min();
        let delayed = self.delayed.keys().map(|(due, _)| *due).next();
        [leases, delayed].into_iter().flatten().min()
    }

    /// Hands out what is ready to those who have credit.
    pub(super) fn dispatch(&mut self, now: Instant) {
        while !self.paused
            && let Some(place) = self.consumers.iter().position(TestConsumer::may_have_more)
            && let Some(stored) = self.next_ready()
        {
            // Consumers take turns as well.
            let mut consumer = self.consumers.remove(place);
            consumer.credit -= 1;
            self.deliver(now, &consumer, stored);
            self.consumers.push(consumer);
        }
    }

    fn deliver(&mut self, now: Instant, consumer: &TestConsumer, mut stored: Stored) {
        stored.attempts += 1;
        self.stats.delivered_total += 1;
        let time = self.settings.visibility_timeout_ms;
        let time = time.map_or(VISIBILITY, Duration::from_millis);
        let lease_id = self.number << 32 | self.stats.delivered_total;
        let message = &stored.message;
        let delivery = v1::Delivery {
            message_id: stored.id.clone(),
            lease_id,
            fairness_key: key(message),
            weight: message.weight.unwrap_or(1),
            headers: message.headers.clone(),
            payload: message.payload.clone(),
            attempt: stored.attempts,
            enqueued_at_ms: stored.enqueued_at_ms,
            lease_ms: time.as_millis() as u64,
            history: None,
        };
        self.leases.insert(
            lease_id,
            Leased {
                stored,
                consumer: consumer.id,
                until: after(now, time),
            },
        );
        // If it is gone, its end is on the way and gives the message back.
        let _ = consumer.responses.send(Ok(v1::WorkResponse {
            deliveries: vec![delivery],
            ..v1::WorkResponse::default()
        }));
    }

    fn next_ready(&mut self) -> Option<Stored> {
        let key = self.turns.front()?.clone();
        let lane = self.lanes.get_mut(&key)?;
        let stored = lane.pop_front()?;
        if self.left == 0 {
            self.left = stored.message.weight.unwrap_or(1).max(1);
        }
        self.left -= 1;
        if lane.is_empty() {
            self.lanes.remove(&key);
            self.turns.pop_front();
            self.left = 0;
        } else if self.left == 0 {
            self.turns.rotate_left(1);
        }
        Some(stored)
    }
}

impl TestConsumer {
    fn may_have_more(&self) -> bool {
        self.credit > 0 && !self.is_draining
    }
}

fn key(message: &v1::Message) -> String {
    match message.fairness_key.as_str() {
        "" => "default".to_owned(),
        key => key.to_owned(),
    }
}
