//! A disk that fills up beneath a real store: the store says so in time, is drained, and goes on by itself; nothing confirmed
//! is lost, and no commit has an unknown outcome.
#![cfg(test)] // helpers may unwrap, as tests do

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use fastrand::Rng;
use fila_faults::cuts::{self, Store, StoreShard};
use fila_faults::{Disk, FileSystem, Op, Recording, Watch};
use fila_store::{
    Batch, Cursor, Engine, FairnessKey, Loaded, Locator, MessageId, Meta, OpenError, Payload,
    QueueName, Shard, Timestamp, Writes,
};
use tempfile::{TempDir, tempdir};

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(60);

const MIB: u64 = 1 << 20;

/// Messages whose payloads stay in the log, and messages whose payloads go to the tables.
const SIZES: [usize; 2] = [9_000, 90];

struct World {
    _place: TempDir,
    watch: Watch,
    store: Store,
    shard: StoreShard,
    bytes: usize,
    /// Messages that are confirmed and not deleted.
    held: BTreeSet<MessageId>,
    next: u64,
}

fn open(watch: &Watch) -> Result<(Store, StoreShard), OpenError> {
    let store = cuts::open(watch.root())?;
    let name = QueueName::parse("orders").unwrap();
    let queue = store.queue(&name).unwrap();
    let queue = queue.unwrap_or_else(|| store.create_queue(&name, "".into()).unwrap());
    let shard = store.claim(queue.id).unwrap();
    Ok((store, shard))
}

fn body(counter: u64, bytes: usize) -> Vec<u8> {
    let mut body = vec![0; bytes];
    Rng::with_seed(counter).fill(&mut body);
    body
}

fn place(id: MessageId) -> Locator {
    Locator {
        fairness_key: FairnessKey::new("k").unwrap(),
        id,
    }
}

/// Adds messages with these numbers, in one commit.
fn put(shard: &StoreShard, counters: Range<u64>, bytes: usize) -> Vec<MessageId> {
    let mut batch = Batch::new();
    let mut ids = Vec::new();
    for counter in counters {
        let id = MessageId::new(shard.epoch(), counter).unwrap();
        let meta = Meta::new(FairnessKey::new("k").unwrap(), Timestamp::from_millis(1));
        let payload = Payload::new(Vec::new(), body(counter, bytes)).unwrap();
        batch.put(id, meta, payload);
        ids.push(id);
    }
    shard.commit(&batch).unwrap();
    ids
}

impl World {
    fn new(bytes: usize, watch: impl FnOnce(&std::path::Path) -> std::io::Result<Watch>) -> Self {
        let place = tempdir().unwrap();
        let watch = watch(place.path()).unwrap();
        let (store, shard) = open(&watch).unwrap();
        Self {
            _place: place,
            watch,
            store,
            shard,
            bytes,
            held: BTreeSet::new(),
            next: 0,
        }
    }

    /// Adds some messages, in one commit.
    fn put(&mut self, count: u64) {
        let ids = put(&self.shard, self.next..self.next + count, self.bytes);
        self.next += count;
        for id in ids {
            self.watch.mark(3 * id.counter());
            self.held.insert(id);
        }
    }

    /// Adds messages as long as the store has room for them, as the broker does.
    fn fill(&mut self) {
        let count = if self.bytes > 1_000 { 1 } else { 100 };
        while self.store.writes() == Writes::Taken {
            self.put(count);
            assert!(self.held.len() < 1_000_000, "the disk is not full");
        }
        assert_eq!(self.store.writes(), Writes::Full);
        assert_eq!(self.store.health().unwrap().writes, Writes::Full);
    }

    /// Deletes some messages, in one commit, and does what the sweeper of the broker does.
    fn delete(&mut self, count: usize) {
        let ids: Vec<MessageId> = self.held.iter().take(count).copied().collect();
        let mut batch = Batch::new();
        for &id in &ids {
            self.watch.mark(3 * id.counter() + 1);
            batch.delete(place(id));
        }
        self.shard.commit(&batch).unwrap();
        for id in ids {
            self.watch.mark(3 * id.counter() + 2);
            self.held.remove(&id);
        }
        self.store.sweep(Timestamp::from_millis(1), 1_000).unwrap();
    }

    /// Returns what takes the room.
    fn describe(&self) -> String {
        let folders = ["log", "tables/messages/tables", "tables/payloads/tables"];
        let of = |folder: &str| {
            let files = std::fs::read_dir(self.watch.root().join(folder)).unwrap();
            let files = files.map(|file| file.unwrap());
            let sizes = files.map(|file| (file.file_name(), file.metadata().unwrap().len()));
            format!("{folder}: {:?}", sizes.collect::<Vec<_>>())
        };
        let files = folders.map(of).join("\n");
        let (room, health) = (self.watch.room(), self.store.health());
        format!(
            "{} bytes each, room {room:?}, {health:?}\n{files}",
            self.bytes
        )
    }

    /// Makes room as an operator does, if the tables hold the payloads.
    fn make_room_for_merges(&self) {
        if self.bytes < 1_000 {
            self.watch.set_room(Some(24 * MIB));
        }
    }

    /// Waits until the store says this; it has threads of its own.
    fn await_writes(&self, writes: Writes) {
        let began = Instant::now();
        while self.store.writes() != writes {
            assert!(began.elapsed() < PATIENCE, "{}", self.describe());
            self.store.sweep(Timestamp::from_millis(1), 1_000).unwrap();
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Closes the store, and opens it again.
    fn reopen(self) -> Self {
        let Self {
            _place,
            watch,
            store,
            shard,
            bytes,
            held,
            next,
        } = self;
        drop((store, shard));
        let (store, shard) = open(&watch).unwrap();
        Self {
            _place,
            watch,
            store,
            shard,
            bytes,
            held,
            next,
        }
    }

    /// Compares what is there with what should be.
    fn check(&self) {
        assert_eq!(found(&self.shard, self.bytes), self.held);
    }
}

/// Returns the messages that are there. Their bodies are what they were.
fn found(shard: &StoreShard, bytes: usize) -> BTreeSet<MessageId> {
    let mut ids = BTreeSet::new();
    let mut cursor = Cursor::start();
    loop {
        let page = shard.scan(&cursor, 5_000).unwrap();
        assert_eq!(page.damaged, []);
        let places: Vec<Locator> = page.items.iter().map(|it| place(it.id)).collect();
        for (loaded, item) in shard.load(&places).unwrap().into_iter().zip(&page.items) {
            let Loaded::Found(payload) = loaded else {
                panic!("{:?}: {loaded:?}", item.id);
            };
            assert_eq!(payload.body(), &body(item.id.counter(), bytes));
            ids.insert(item.id);
        }
        match page.next {
            Some(next) => cursor = next,
            None => return ids,
        }
    }
}

#[test]
fn a_full_disk_is_drained_and_takes_messages_again_without_a_restart() {
    for bytes in SIZES {
        let mut world = World::new(bytes, Watch::new);
        world.watch.set_room(Some(40 * MIB));
        for _ in 0..3 {
            world.fill();
            // It may count as full once more before all of the last round's messages have left the disk.
            while world.held.len() * bytes < 5 << 20 {
                world.await_writes(Writes::Taken);
                world.fill();
            }
            let most = world.held.len();
            world.check();
            while !world.held.is_empty() {
                world.delete(most.div_ceil(20));
            }
            world.await_writes(Writes::Taken);
        }
        world.put(10);
        world.check();
    }
}

/// Few large messages: their deletions would never fill a segment of the log.
#[test]
fn a_single_deletion_makes_room_in_time() {
    let mut world = World::new(900_000, Watch::new);
    world.watch.set_room(Some(40 * MIB));
    world.fill();
    world.delete(world.held.len() / 2);
    world.await_writes(Writes::Taken);
    world.check();
}

#[test]
fn room_that_an_operator_makes_is_found_without_a_restart() {
    let mut world = World::new(9_000, Watch::new);
    world.watch.set_room(Some(40 * MIB));
    world.fill();
    world.watch.set_room(Some(400 * MIB));
    world.await_writes(Writes::Taken);
    world.put(1);
    world.check();
}

/// Another program takes the last byte: messages are still removed, as far as the reserve goes, and that makes room. A
/// merge of tables with payloads in them needs more than the reserve: it waits until the operator makes room.
#[test]
fn a_disk_without_a_byte_left_can_still_be_drained() {
    for bytes in SIZES {
        let mut world = World::new(bytes, Watch::new);
        world.watch.set_room(Some(40 * MIB));
        world.fill();
        world.watch.set_room(Some(0));
        let parts = world.held.len().div_ceil(20);
        for _ in 0..3 {
            world.delete(100);
        }
        world.make_room_for_merges();
        while !world.held.is_empty() {
            world.delete(parts);
        }
        world.await_writes(Writes::Taken);
        world.put(10);
        world.check();
    }
}

/// Without warning, with no reserve yet: commits wait for room, and none is unknown.
#[test]
fn a_disk_that_is_full_at_once_makes_commits_wait_and_fails_none() {
    let mut world = World::new(9_000, Watch::new);
    world.put(1);
    world.watch.set_room(Some(0));
    let numbers = world.next..world.next + 600; // more than five megabytes in all
    std::thread::scope(|scope| {
        let (shard, bytes) = (&world.shard, world.bytes);
        let puts = numbers.clone().map(move |n| put(shard, n..n + 1, bytes));
        let writing = scope.spawn(move || puts.flatten().collect::<Vec<_>>());
        let began = Instant::now();
        while world.store.writes() != Writes::Full {
            assert!(began.elapsed() < PATIENCE);
            std::thread::park_timeout(Duration::from_millis(5));
        }
        assert!(!writing.is_finished());
        world.watch.set_room(None);
        world.held.extend(writing.join().unwrap());
    });
    world.check();
}

#[test]
fn a_store_on_a_full_disk_is_opened_and_drained() {
    for bytes in SIZES {
        let mut world = World::new(bytes, Watch::new);
        world.watch.set_room(Some(40 * MIB));
        world.fill();
        world.watch.set_room(Some(0));
        for _ in 0..10 {
            world = world.reopen();
            world.check();
            world.await_writes(Writes::Full);
            world.delete(100);
        }
        world.make_room_for_merges();
        while !world.held.is_empty() {
            world.delete(2_000);
        }
        world.await_writes(Writes::Taken);
        world.put(1);
        world.check();
    }
}

/// Without the reserve: the error says what to do, and nothing is harmed.
#[test]
fn a_store_that_cannot_be_opened_for_want_of_room_says_how_much_it_needs() {
    let mut world = World::new(9_000, Watch::new);
    world.put(300);
    let World {
        _place,
        watch,
        store,
        shard,
        mut held,
        ..
    } = world;
    drop((store, shard));
    for file in std::fs::read_dir(watch.root().join("log")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|it| it == "spare") {
            std::fs::remove_file(path).unwrap();
        }
    }
    watch.set_room(Some(0));
    let (store, shard) = open(&watch).unwrap();
    // More than half a segment: the next opening needs another one.
    held.extend(put(&shard, 300..360, 9_000));
    drop((store, shard));
    let refused = cuts::open(watch.root()).map(drop);
    let said = refused.expect_err("the opening needs room").to_string();
    assert!(said.contains("is full; free 1 MiB of it"), "{said}");
    watch.set_room(None);
    let (_store, shard) = open(&watch).unwrap();
    assert_eq!(found(&shard, 9_000), held);
}

/// What a recording says about the messages at one moment.
#[derive(Debug, Default)]
struct Account {
    /// Confirmed, and not being deleted.
    held: BTreeSet<u64>,
    /// Deleted.
    gone: BTreeSet<u64>,
}

fn account(recording: &Recording, moment: usize) -> Account {
    let mut states: BTreeMap<u64, u64> = BTreeMap::new();
    for op in &recording.ops[..moment] {
        if let Op::Mark(mark) = op {
            states.insert(mark / 3, mark % 3);
        }
    }
    let of = |state| {
        let with = states.iter().filter(move |(_, is)| **is == state);
        with.map(|(counter, _)| *counter).collect()
    };
    Account {
        held: of(0),
        gone: of(2),
    }
}

#[test]
fn power_cuts_on_a_full_disk_lose_nothing_that_was_confirmed() {
    let mut world = World::new(9_000, Watch::recording);
    world.watch.set_room(Some(16 * MIB));
    world.fill();
    world.watch.set_room(Some(0));
    let parts = world.held.len().div_ceil(10);
    while !world.held.is_empty() {
        world.delete(parts);
    }
    world.await_writes(Writes::Taken);
    world.put(50);
    let World {
        watch,
        store,
        shard,
        ..
    } = world;
    let recording = watch.finish();
    drop((store, shard));
    let mut rng = Rng::with_seed(7);
    for file_system in [FileSystem::Strict, FileSystem::Ordered] {
        let mut moments: Vec<usize> = (0..20).map(|_| rng.usize(..=recording.ops.len())).collect();
        moments.sort_unstable();
        let mut disk = Disk::new(&recording, file_system);
        for moment in moments {
            disk.advance(moment);
            let expected = account(&recording, moment);
            if expected.held.is_empty() {
                continue;
            }
            let place = tempdir().unwrap();
            disk.cut(&mut rng, place.path()).unwrap();
            let watch = Watch::new(place.path()).unwrap();
            let (_store, shard) = open(&watch).unwrap();
            let there = found(&shard, 9_000);
            let there: BTreeSet<u64> = there.iter().map(|id| id.counter()).collect();
            assert!(expected.held.is_subset(&there), "lost after {moment}");
            assert!(expected.gone.is_disjoint(&there), "back after {moment}");
        }
    }
}
