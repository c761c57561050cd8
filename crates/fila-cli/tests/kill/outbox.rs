//! A producer that outlives the server: what it has no answer to, it sends again to the next one.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use fila_proto::v1::{BatchId, Message, ProduceRequest, ProduceResponse};

use super::ledger::Name;
use super::traffic::{Books, KEYS, QUEUE};

/// Messages of one frame, and frames that are not confirmed.
const FRAME: u64 = 7;
const FRAMES: usize = 12;

pub(crate) struct Outbox {
    number: u64,
    next: u64,
    /// Frames that have no answer.
    open: BTreeMap<u64, Vec<Name>>,
    places: [u64; KEYS as usize],
    queue: &'static str,
    /// The throttles that its keys take turns in going by; one without a name is none.
    throttles: &'static [&'static str],
    /// How long it waits after each new frame, and until when now.
    pace: Duration,
    due: Instant,
}

impl Outbox {
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            next: 0,
            open: BTreeMap::new(),
            places: [0; KEYS as usize],
            queue: QUEUE,
            throttles: &[],
            pace: Duration::ZERO,
            due: Instant::now(),
        }
    }

    /// Sends to this queue.
    pub(crate) fn to(self, queue: &'static str) -> Self {
        Self { queue, ..self }
    }

    /// Lets its keys go by one of these throttles each.
    pub(crate) fn throttled(self, throttles: &'static [&'static str]) -> Self {
        Self { throttles, ..self }
    }

    /// Sends no more than one new frame in this time.
    pub(crate) fn paced(self, pace: Duration) -> Self {
        Self { pace, ..self }
    }

    /// Tells whether it is time for a new frame.
    pub(crate) fn is_due(&self) -> bool {
        !self.is_full() && Instant::now() >= self.due
    }

    /// Returns when it will be time for a new frame, if there is room.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    pub(crate) fn is_full(&self) -> bool {
        self.open.len() >= FRAMES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns all frames that have no answer, in their order.
    pub(crate) fn open(&self) -> Vec<ProduceRequest> {
        self.open.keys().map(|number| self.frame(*number)).collect()
    }

    /// Returns a frame whose messages have keys of this producer only, and records that they are sent.
    pub(crate) fn next(&mut self, books: &Books) -> ProduceRequest {
        let number = self.next;
        self.next += 1;
        self.due = Instant::now() + self.pace;
        let names = (0..FRAME).map(|n| {
            let key = (number * FRAME + n) % KEYS;
            let place = &mut self.places[key as usize];
            *place += 1;
            (self.number * KEYS + key, *place - 1)
        });
        let names: Vec<Name> = names.collect();
        let mut ledger = books.lock().unwrap();
        names.iter().for_each(|name| ledger.sent(*name));
        self.open.insert(number, names);
        self.frame(number)
    }

    /// Writes down which messages are confirmed.
    pub(crate) fn answered(&mut self, response: ProduceResponse, books: &Books) {
        let names = self.open.remove(&response.frame_id);
        let names = names.expect("answered once");
        let mut ledger = books.lock().unwrap();
        for (name, result) in names.into_iter().zip(response.results) {
            match result.error {
                None => ledger.accepted(name, result.deduplicated),
                Some(error) => panic!("{name:?}: {error:?}"),
            }
        }
    }

    fn throttle(&self, key: u64) -> Option<String> {
        let number = key.checked_rem(self.throttles.len() as u64)?;
        let name = self.throttles[number as usize];
        (!name.is_empty()).then(|| name.to_owned())
    }

    fn frame(&self, number: u64) -> ProduceRequest {
        let messages = self.open[&number].iter().map(|(key, place)| Message {
            fairness_key: key.to_string(),
            payload: format!("{key} {place} {}", "x".repeat(300)).into(),
            throttle_keys: self.throttle(*key).into_iter().collect(),
            ..Message::default()
        });
        let answered_below = self.open.keys().next().copied();
        ProduceRequest {
            frame_id: number,
            queue: self.queue.to_owned(),
            messages: messages.collect(),
            batch_id: Some(BatchId {
                producer: vec![self.number as u8; 16].into(),
                sequence: number,
                answered_below: answered_below.unwrap_or(number),
                remember_ms: 0,
            }),
        }
    }
}
