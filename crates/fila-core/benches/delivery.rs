//! What fairness costs the broker: the whole life of a message (enqueued, delivered, acknowledged) with its neighbours
//! spread over many fairness keys, flat and in groups, beside the same in a raw FIFO: no keys, and a `VecDeque` in place of
//! the engine.
//!
//! The state machine alone, where a round is done as soon as it is sealed: a store would hide what is measured. Samples
//! of both sides alternate, and count processor time where the system tells it, so that other work on the machine disturbs
//! them less. The medians of both, and of the ratios of neighbours, are printed.
//!
//! `cargo bench -p fila-core --features fifo` prints the table; `-- --quick` takes a tenth of the time.

use std::time::{Duration, Instant};

use fila_core::{
    Beginnings, Broker, Command, Committed, ConsumerId, ConsumerKind, Delivery, Demand, NewMessage,
    QueueSettings, Recovery, Settings, Settlement, Verdict,
};
use fila_store::{Epoch, FairnessKey, Generation, Payload, QueueId, Timestamp};

/// Messages that wait all the time, and at least two of each key.
const BACKLOG: usize = 20_000;
/// Messages in one command.
const BATCH: usize = 256;
const SAMPLES: usize = 51;
const SHAPES: [Shape; 7] = [
    Shape::flat(1),
    Shape::flat(10),
    Shape::flat(1_000),
    Shape::new("1,000 in 10 groups", 1_000, &[100]),
    Shape::new("1,000 groups of one", 1_000, &[1]),
    Shape::new("1,000 on 4 levels", 1_000, &[200, 40, 8]),
    Shape::flat(100_000),
];

/// Fairness keys, and the groups that they are in.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    keys: usize,
    /// How many keys a group of each level has, from the top.
    groups: &'static [usize],
}

impl Shape {
    const fn new(name: &'static str, keys: usize, groups: &'static [usize]) -> Self {
        Self { name, keys, groups }
    }

    const fn flat(keys: usize) -> Self {
        Self::new("", keys, &[])
    }

    fn name(self) -> String {
        match self.name {
            "" => self.keys.to_string(),
            name => name.to_owned(),
        }
    }

    /// Returns the path of a key: its number, below the numbers of its groups.
    fn path(self, key: usize) -> String {
        let groups = self
            .groups
            .iter()
            .map(|size| format!("group-{}/", key / size));
        groups.collect::<String>() + &format!("tenant-{key}")
    }
}

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let cycles = if quick { 20 } else { 100 };
    Lifecycle::new(Shape::flat(10), BACKLOG, true)?.check_order()?;
    println!(
        "{:>20} | {:>12} {:>12} | {:>14}",
        "keys", "ns/message", "FIFO", "ratio to FIFO"
    );
    for shape in SHAPES {
        let backlog = BACKLOG.max(2 * shape.keys);
        let mut fair = Lifecycle::new(shape, backlog, false)?;
        let mut fifo = Lifecycle::new(Shape::flat(1), backlog, true)?;
        let mut figures: [Vec<f64>; 3] = Default::default();
        for _ in 0..SAMPLES {
            let (fair, fifo) = (fair.measure(cycles)?, fifo.measure(cycles)?);
            for (figure, sample) in figures.iter_mut().zip([fair, fifo, fair / fifo]) {
                figure.push(sample);
            }
        }
        let [fair, fifo, ratio] = figures.map(median);
        let name = shape.name();
        println!("{name:>20} | {fair:>12.0} {fifo:>12.0} | {ratio:>14.3}");
    }
    Ok(())
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Returns the processor time of this thread so far, if the system tells it.
fn processor_time() -> Option<Duration> {
    std::thread::yield_now(); // brings the figure up to date
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos = text.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
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
    fn new(shape: Shape, backlog: usize, is_fifo: bool) -> Result<Self, Failure> {
        let (queue, epoch) = (QueueId::new(1), Epoch::FIRST);
        let generation = Generation::new(0);
        let now = Timestamp::from_millis(1);
        let mut settings = Settings::default();
        settings.memory_budget = 1 << 30;
        settings.is_fifo = is_fifo;
        let mut broker = Broker::new(settings);
        let definition = QueueSettings::default();
        broker.open(now, Recovery::new(queue, epoch, generation, definition));
        let names = (0..shape.keys).map(|key| FairnessKey::new(shape.path(key)));
        let mut lifecycle = Self {
            broker,
            queue,
            keys: names.collect::<Result<_, _>>()?,
            next: 0,
            body: vec![0; 128].into(),
            now,
        };
        for _ in 0..backlog / BATCH {
            lifecycle.enqueue()?;
        }
        let demand = Demand {
            credit: 0,
            in_flight_max: u32::MAX,
            kind: ConsumerKind::Stream(Beginnings::Reported),
        };
        lifecycle
            .broker
            .subscribe(now, queue, ConsumerId::new(1), demand)?;
        Ok(lifecycle)
    }

    /// Returns the nanoseconds that a message takes.
    fn measure(&mut self, cycles: usize) -> Result<f64, Failure> {
        let (begun, used) = (Instant::now(), processor_time());
        for _ in 0..cycles {
            self.enqueue()?;
            self.deliver()?;
        }
        let took = match (processor_time(), used) {
            (Some(after), Some(before)) => after - before,
            _ => begun.elapsed(),
        };
        Ok(took.as_nanos() as f64 / (cycles * BATCH) as f64)
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

    /// Checks that the messages of all keys come in the order of their arrival: that the baseline is a FIFO.
    fn check_order(&mut self) -> Result<(), Failure> {
        let deliveries = self.take()?;
        if deliveries.is_sorted_by_key(|delivery| delivery.message) {
            return Ok(());
        }
        Err("the baseline is not a FIFO".into())
    }

    fn deliver(&mut self) -> Result<(), Failure> {
        let results = self.take()?.into_iter().map(|delivery| Settlement {
            lease: delivery.lease,
            message: None,
            verdict: Verdict::Ack,
        });
        let (queue, results) = (self.queue, results.collect());
        self.tell(Command::Settle {
            queue,
            results,
            by: None,
            ticket: (),
        });
        self.commit();
        Ok(())
    }

    /// Takes the next messages.
    fn take(&mut self) -> Result<Vec<Delivery>, Failure> {
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
            deliveries.extend(more.into_iter().map(|(_, delivery)| delivery));
        }
        Ok(deliveries)
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
