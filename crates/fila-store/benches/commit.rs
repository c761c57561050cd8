//! Messages per second through a durable commit, beside a bare log that can do nothing else.
//!
//! A commit puts, or deletes, as many messages of 1 KiB as there are outstanding, and is synced. The floor appends
//! the same payloads with a checksum to one file and calls `fdatasync` once: it cannot find a message again, let
//! alone forget one. (It grows its file as it goes, which the database does in large steps: with one outstanding
//! that costs the floor more than the database costs.) Disks are shared and noisy, so the two are measured in alternating samples, the best sample of
//! each counts, and what is reported is their ratio. CPU is of all threads, flushing and compaction included.
//!
//! Reading back is measured on a backlog that is partly in memory and partly flushed: all of it in pages of 256 whole
//! messages, beside reading the log and checking its sums.
//!
//! `cargo bench -p fila-store` prints the table; `-- --quick` takes a tenth of the time. With `--features rocksdb` there
//! is a second table, for that engine.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fila_store::{
    Batch, DiskOptions, Engine, FairnessKey, Limit, Locator, MessageId, Meta, Payload, QueueName,
    Shard, Timestamp,
};

/// Messages in one commit, and commits in one sample.
const LOADS: [(u64, u64); 3] = [(1, 1_000), (16, 1_000), (256, 200)];

const SAMPLES: usize = 3;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    compare("lsm", quick, |path| Ok(DiskOptions::new(path).open()?))?;
    #[cfg(feature = "rocksdb")]
    compare("rocksdb", quick, |path| {
        Ok(DiskOptions::new(path).open_rocksdb()?)
    })?;
    Ok(())
}

/// Prints the table of one engine.
fn compare<E: Engine>(
    name: &str,
    quick: bool,
    open: impl Fn(&Path) -> Result<E, Failure>,
) -> Result<(), Failure> {
    println!("{name}, commits synced");
    let directory = tempfile::tempdir()?;
    let mut log = Log::open(&directory.path().join("log"))?;
    let mut store = Store::new(open(&directory.path().join("store"))?)?;
    println!(
        "{:<8} {:>11} | {:>10} {:>10} {:>6} | {:>9} {:>9}",
        "1 KiB", "outstanding", "store/s", "log/s", "ratio", "store µs", "log µs"
    );
    for (outstanding, commits) in LOADS {
        let commits = if quick { commits / 10 } else { commits };
        let mut best = [[None; 2]; 2];
        for _ in 0..SAMPLES {
            for (operation, best) in [Operation::Put, Operation::Delete].iter().zip(&mut best) {
                keep(
                    &mut best[0],
                    measure(&mut store, operation, outstanding, commits)?,
                );
                keep(
                    &mut best[1],
                    measure(&mut log, operation, outstanding, commits)?,
                );
            }
        }
        for (name, best) in ["put", "delete"].iter().zip(best) {
            if let [Some(store), Some(log)] = best {
                report(name, outstanding, store, log);
            }
        }
    }
    let pages = if quick { 20 } else { 200 };
    let directory = tempfile::tempdir()?;
    let mut log = Log::open(&directory.path().join("log"))?;
    let mut store = Store::new(open(&directory.path().join("store"))?)?;
    for _ in 0..pages {
        store.put(PAGE as u64)?;
        log.put(PAGE as u64)?;
    }
    let mut best = [None; 2];
    for _ in 0..SAMPLES {
        keep(&mut best[0], timed(pages * PAGE, || store.read_back())?);
        keep(&mut best[1], timed(pages * PAGE, || log.read_back())?);
    }
    if let [Some(store), Some(log)] = best {
        report("read", PAGE as u64, store, log);
    }
    Ok(())
}

/// Messages that are read back at a time.
const PAGE: usize = 256;

/// Measures the cost of reading `messages` messages, which must all be found.
fn timed(messages: usize, read: impl FnOnce() -> Result<usize, Failure>) -> Result<Cost, Failure> {
    let (start, cpu) = (Instant::now(), cpu_time()?);
    let found = read()?;
    let (wall, cpu) = (start.elapsed(), cpu_time()? - cpu);
    if found != messages {
        return Err(format!("{found} of {messages} messages read").into());
    }
    let messages = u32::try_from(messages)?;
    Ok(Cost {
        wall: wall / messages,
        cpu: cpu / messages,
    })
}

/// One sample: what one message took.
#[derive(Clone, Copy)]
struct Cost {
    wall: Duration,
    cpu: Duration,
}

fn keep(best: &mut Option<Cost>, sample: Cost) {
    if best.is_none_or(|best| sample.wall < best.wall) {
        *best = Some(sample);
    }
}

fn report(name: &str, outstanding: u64, store: Cost, log: Cost) {
    let rate = |cost: Cost| 1.0 / cost.wall.as_secs_f64();
    let micros = |cost: Cost| cost.cpu.as_secs_f64() * 1e6;
    println!(
        "{name:<8} {outstanding:>11} | {:>10.0} {:>10.0} {:>6.2} | {:>9.1} {:>9.1}",
        rate(store),
        rate(log),
        rate(store) / rate(log),
        micros(store),
        micros(log),
    );
}

enum Operation {
    Put,
    Delete,
}

trait Contender {
    /// Puts `count` messages in one commit.
    fn put(&mut self, count: u64) -> Result<(), Failure>;

    /// Deletes as many of the oldest in one commit.
    fn delete(&mut self, count: u64) -> Result<(), Failure>;
}

fn measure(
    contender: &mut impl Contender,
    operation: &Operation,
    outstanding: u64,
    commits: u64,
) -> Result<Cost, Failure> {
    let (start, cpu) = (Instant::now(), cpu_time()?);
    for _ in 0..commits {
        match operation {
            Operation::Put => contender.put(outstanding)?,
            Operation::Delete => contender.delete(outstanding)?,
        }
    }
    let messages = u32::try_from(outstanding * commits)?;
    Ok(Cost {
        wall: start.elapsed() / messages,
        cpu: (cpu_time()? - cpu) / messages,
    })
}

/// Returns how long the threads of this process have run.
fn cpu_time() -> Result<Duration, Failure> {
    let mut nanos = 0;
    for thread in fs::read_dir("/proc/self/task")? {
        let line = fs::read_to_string(thread?.path().join("schedstat"))?;
        let ran = line.split_whitespace().next().ok_or("an empty schedstat")?;
        nanos += ran.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

fn body() -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let bytes = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    bytes.take(1 << 10).collect::<Vec<_>>().into()
}

struct Store<E: Engine> {
    engine: E,
    shard: E::Shard,
    batch: Batch,
    body: Bytes,
    key: FairnessKey,
    next: u64,
    oldest: u64,
}

impl<E: Engine> Store<E> {
    fn new(engine: E) -> Result<Self, Failure> {
        let queue = engine.create_queue(&QueueName::parse("bench")?, Bytes::new())?;
        Ok(Self {
            shard: engine.claim(queue.id)?,
            engine,
            batch: Batch::new(),
            body: body(),
            key: FairnessKey::new("tenant")?,
            next: 0,
            oldest: 0,
        })
    }

    fn id(&self, counter: u64) -> MessageId {
        MessageId::new(self.shard.epoch(), counter).expect("a bench ends before a trillion")
    }
}

impl<E: Engine> Store<E> {
    fn read_back(&self) -> Result<usize, Failure> {
        let limit = Limit {
            messages: PAGE,
            bytes: usize::MAX,
        };
        let (mut found, mut after) = (0, None);
        loop {
            let page = self.shard.backlog(&self.key, after, limit)?;
            found += page.items.len();
            after = page.next;
            if after.is_none() {
                return Ok(found);
            }
        }
    }
}

impl<E: Engine> Contender for Store<E> {
    fn put(&mut self, count: u64) -> Result<(), Failure> {
        self.batch.clear();
        for counter in self.next..self.next + count {
            let meta = Meta::new(self.key.clone(), Timestamp::from_millis(counter));
            let payload = Payload::new(Vec::new(), self.body.clone())?;
            self.batch.put(self.id(counter), meta, payload);
        }
        self.next += count;
        Ok(self.engine.commit(&[(&self.shard, &self.batch)])?)
    }

    fn delete(&mut self, count: u64) -> Result<(), Failure> {
        self.batch.clear();
        for counter in self.oldest..self.oldest + count {
            self.batch.delete(Locator {
                fairness_key: self.key.clone(),
                id: self.id(counter),
            });
        }
        self.oldest += count;
        Ok(self.engine.commit(&[(&self.shard, &self.batch)])?)
    }
}

/// The floor: records one after the other.
struct Log {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    body: Bytes,
    next: u64,
    oldest: u64,
}

impl Log {
    fn open(path: &Path) -> Result<Self, Failure> {
        Ok(Self {
            path: path.to_owned(),
            file: OpenOptions::new().create(true).append(true).open(path)?,
            buffer: Vec::new(),
            body: body(),
            next: 0,
            oldest: 0,
        })
    }

    fn record(&mut self, counter: u64, body: &[u8]) {
        let id = counter.to_be_bytes();
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&id), body);
        self.buffer
            .extend_from_slice(&(body.len() as u32).to_be_bytes());
        self.buffer.extend_from_slice(&checksum.to_be_bytes());
        self.buffer.extend_from_slice(&id);
        self.buffer.extend_from_slice(body);
    }

    fn sync(&mut self) -> Result<(), Failure> {
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(self.file.sync_data()?)
    }
}

impl Log {
    fn read_back(&self) -> Result<usize, Failure> {
        let bytes = fs::read(&self.path)?;
        let (mut rest, mut found) = (&bytes[..], 0);
        while let Some((head, tail)) = rest.split_first_chunk::<8>() {
            let [a, b, c, d, sum @ ..] = *head;
            let length = 8 + u32::from_be_bytes([a, b, c, d]) as usize;
            let record = tail.get(..length).ok_or("a torn record")?;
            if crc32c::crc32c(record) != u32::from_be_bytes(sum) {
                return Err("a damaged record".into());
            }
            found += 1;
            rest = &tail[length..];
        }
        Ok(found)
    }
}

impl Contender for Log {
    fn put(&mut self, count: u64) -> Result<(), Failure> {
        let body = self.body.clone();
        for counter in self.next..self.next + count {
            self.record(counter, &body);
        }
        self.next += count;
        self.sync()
    }

    fn delete(&mut self, count: u64) -> Result<(), Failure> {
        for counter in self.oldest..self.oldest + count {
            self.record(counter, &[]);
        }
        self.oldest += count;
        self.sync()
    }
}
