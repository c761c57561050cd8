//! What fairness costs the broker: the whole life of a message (enqueued, delivered, acknowledged) with its neighbours
//! spread over many fairness keys, beside the same with all of them under one key, which is first in, first out.
//!
//! The state machine alone, where a round is done as soon as it is sealed: a store would hide what is measured. Samples
//! of both sides alternate, the best of each counts, and what is reported is their ratio.
//!
//! `cargo bench -p fila-core` prints the table; `-- --quick` takes a tenth of the time.

use std::time::Instant;

use fila_core::{
    Beginnings, Broker, Command, Committed, ConsumerId, Demand, NewMessage, QueueSettings,
    Recovery, Settings, Settlement, Verdict,
};
use fila_store::{Epoch, FairnessKey, Generation, Payload, QueueId, Timestamp};

/// Messages that wait all the time.
const BACKLOG: usize = 20_000;
/// Messages in one command.
const BATCH: usize = 256;
const SAMPLES: usize = 7;
const KEYS: [usize; 4] = [10, 100, 1_000, 10_000];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let cycles = if quick { 20 } else { 400 };
    println!(
        "{:>8} | {:>12} {:>12} | {:>14}",
        "keys", "ns/message", "1 key", "ratio to 1 key"
    );
    for keys in KEYS {
        let mut fair = Lifecycle::new(keys)?;
        let mut fifo = Lifecycle::new(1)?;
        let mut best = [f64::INFINITY; 2];
        for _ in 0..SAMPLES {
            best[0] = best[0].min(fair.measure(cycles)?);
            best[1] = best[1].min(fifo.measure(cycles)?);
        }
        println!(
            "{keys:>8} | {:>12.0} {:>12.0} | {:>14.3}",
            best[0],
            best[1],
            best[0] / best[1]
        );
    }
    Ok(())
}

/// A broker with a backlog, through which messages go.
struct Lifecycle {
    broker: Broker<()>,
    queue: QueueId,
    keys: Vec<FairnessKey>,
    next: usize,
    body: bytes::Bytes,
    now: Timestamp,
}

impl Lifecycle {
    fn new(keys: usize) -> Result<Self, Failure> {
        let (queue, epoch) = (QueueId::new(1), Epoch::FIRST);
        let generation = Generation::new(0);
        let now = Timestamp::from_millis(1);
        let mut settings = Settings::default();
        settings.memory_budget = 1 << 30;
        let mut broker = Broker::new(settings);
        let definition = QueueSettings::default();
        broker.open(now, Recovery::new(queue, epoch, generation, definition));
        let names = (0..keys).map(|key| FairnessKey::new(format!("tenant-{key}")));
        let mut lifecycle = Self {
            broker,
            queue,
            keys: names.collect::<Result<_, _>>()?,
            next: 0,
            body: vec![0; 128].into(),
            now,
        };
        for _ in 0..BACKLOG / BATCH {
            lifecycle.enqueue()?;
        }
        let demand = Demand {
            credit: 0,
            in_flight_max: u32::MAX,
            beginnings: Beginnings::Reported,
        };
        lifecycle
            .broker
            .subscribe(now, queue, ConsumerId::new(1), demand)?;
        Ok(lifecycle)
    }

    /// Returns the nanoseconds that a message takes.
    fn measure(&mut self, cycles: usize) -> Result<f64, Failure> {
        let begun = Instant::now();
        for _ in 0..cycles {
            self.enqueue()?;
            self.deliver()?;
        }
        Ok(begun.elapsed().as_nanos() as f64 / (cycles * BATCH) as f64)
    }

    fn enqueue(&mut self) -> Result<(), Failure> {
        let mut messages = Vec::with_capacity(BATCH);
        for _ in 0..BATCH {
            let key = self.keys[self.next % self.keys.len()].clone();
            self.next += 1;
            let payload = Payload::new(Vec::new(), self.body.clone())?;
            messages.push(NewMessage::new(key, payload));
        }
        let queue = self.queue;
        self.tell(Command::Enqueue {
            queue,
            messages,
            batch_id: None,
            ticket: (),
        });
        self.commit();
        Ok(())
    }

    fn deliver(&mut self) -> Result<(), Failure> {
        self.tell(Command::Credit {
            consumer: ConsumerId::new(1),
            more: BATCH as u32,
        });
        let mut deliveries = Vec::with_capacity(BATCH);
        // A consumer that has not read yet gets a small window first.
        while deliveries.len() < BATCH {
            self.broker.poll(self.now);
            let more = std::mem::take(&mut self.broker.effects().deliveries);
            if more.is_empty() {
                return Err(format!("{} deliveries, not {BATCH}", deliveries.len()).into());
            }
            let bytes = more.iter().map(|(_, delivery)| delivery.bytes());
            self.tell(Command::Taken {
                consumer: ConsumerId::new(1),
                bytes: bytes.sum(),
            });
            deliveries.extend(more);
        }
        let results = deliveries
            .into_iter()
            .map(|(_, delivery)| Settlement {
                lease: delivery.lease,
                message: None,
                verdict: Verdict::Ack,
            })
            .collect();
        let queue = self.queue;
        self.tell(Command::Settle {
            queue,
            results,
            by: None,
            ticket: (),
        });
        self.commit();
        Ok(())
    }

    fn tell(&mut self, command: Command<()>) {
        self.broker.handle(self.now, command);
    }

    fn commit(&mut self) {
        if let Some(round) = self.broker.seal() {
            let fenced = Vec::new();
            let stored = Committed::Stored { round, fenced };
            self.broker.committed(self.now, stored);
        }
        self.broker.effects().answers.clear();
    }
}
