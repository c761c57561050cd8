//! Confirmed means kept: a writer is killed at any moment, and everything it was told is true.
//!
//! `FILA_STORE_KILLS` sets how often (default 5); each round goes on with what the rounds before have left.
#![cfg(test)] // helpers may unwrap, as tests do

mod child;
mod places;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;

use fila_store::{
    Batch, Cursor, Durability, Engine, FairnessKey, Loaded, Locator, MessageId, Meta, OpenError,
    Origin, Payload, QueueName, Shard, StoredMessage, Timestamp,
};
use places::OnDisk;

/// Makes the tests of one engine.
macro_rules! killed {
    ($engine:ident: $place:ty) => {
        mod $engine {
            use fila_store::Durability;

            #[test]
            fn confirmed_messages_survive_kill_9_when_synced() {
                let writer = concat!(stringify!($engine), "::writes_and_syncs_until_killed");
                super::kill_and_check::<$place>(writer, Durability::Fsync);
            }

            #[test]
            fn confirmed_messages_survive_kill_9_when_given_to_the_system() {
                let writer = concat!(stringify!($engine), "::writes_until_killed");
                super::kill_and_check::<$place>(writer, Durability::Os);
            }

            #[test]
            fn moving_messages_survive_kill_9_in_one_queue_each() {
                let mover = concat!(stringify!($engine), "::moves_until_killed");
                super::kill_and_count::<$place>(mover);
            }

            #[test]
            #[ignore = "the other process of `moving_messages_survive_kill_9_in_one_queue_each`"]
            fn moves_until_killed() {
                super::move_about::<$place>();
            }

            #[test]
            #[ignore = "the other process of `confirmed_messages_survive_kill_9_when_synced`"]
            fn writes_and_syncs_until_killed() {
                super::write::<$place>(Durability::Fsync);
            }

            #[test]
            #[ignore = "the other process of `confirmed_messages_survive_kill_9_when_given_to_the_system`"]
            fn writes_until_killed() {
                super::write::<$place>(Durability::Os);
            }
        }
    };
}

killed! { lsm: crate::places::InLsm }

#[cfg(feature = "rocksdb")]
killed! { rocks: crate::places::InRocks }

type Messages = BTreeSet<MessageId>;

/// Small memtables, so that the writer is killed while tables are flushed and merged, too.
///
/// A process that another test starts meanwhile holds the lock of a store, too, until it runs its program.
fn open<P: OnDisk>(path: &Path, durability: Durability) -> P::Engine {
    loop {
        match P::open(path, durability, 1 << 20) {
            Err(OpenError::Locked(_)) => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

fn claim<E: Engine>(engine: &E) -> E::Shard {
    claim_named(engine, "orders")
}

fn claim_named<E: Engine>(engine: &E, name: &str) -> E::Shard {
    let name = QueueName::parse(name).unwrap();
    let found = engine.queue(&name).unwrap();
    let found = found.unwrap_or_else(|| engine.create_queue(&name, "".into()).unwrap());
    engine.claim(found.id).unwrap()
}

fn key(id: MessageId) -> FairnessKey {
    FairnessKey::new(vec![b'a' + (id.counter() % 3) as u8]).unwrap()
}

fn place(id: MessageId) -> Locator {
    Locator {
        fairness_key: key(id),
        id,
    }
}

/// The payload of a message follows from its id, so that the test notices a mix-up.
fn payload(id: MessageId) -> Payload {
    let length = (id.counter() * 37 % 2_000) as usize;
    let headers = vec![("id".to_owned(), id.to_string())];
    Payload::new(headers, vec![id.counter() as u8; length]).unwrap()
}

/// Returns all messages in order, having checked what they carry.
fn found(shard: &impl Shard) -> Vec<StoredMessage> {
    let mut entries = Vec::new();
    let mut cursor = Some(Cursor::start());
    while let Some(from) = cursor {
        let page = shard.scan(&from, 500).unwrap();
        assert_eq!(page.damaged, []);
        let places: Vec<_> = page.items.iter().map(StoredMessage::locator).collect();
        for (entry, loaded) in page.items.iter().zip(shard.load(&places).unwrap()) {
            assert_eq!(loaded, Loaded::Found(payload(entry.id)));
            assert_eq!(entry.meta.schedule.fairness_key, key(entry.id));
        }
        entries.extend(page.items);
        cursor = page.next;
    }
    entries
}

/// The reports of the writer so far.
#[derive(Default)]
struct Told {
    /// The messages that are there after all confirmed commits.
    confirmed: Messages,
    /// A commit that may or may not have happened.
    announced: Option<String>,
}

impl Told {
    /// Hears one line, and tells whether it confirmed a commit.
    fn hear(&mut self, line: String) -> bool {
        if line != "confirmed" {
            self.announced = Some(line);
            return false;
        }
        let commit = self.announced.take().expect("announced before");
        self.confirmed = apply(&self.confirmed, &commit);
        true
    }
}

/// Applies a commit as the writer announces it: `+id` for a put, `-id` for a delete.
fn apply(messages: &Messages, commit: &str) -> Messages {
    let mut messages = messages.clone();
    for change in commit.split_whitespace() {
        let (sign, number) = change.split_at(1);
        let id = MessageId::from_number(number.parse().unwrap());
        match sign {
            "+" => assert!(messages.insert(id), "an id is given once"),
            _ => assert!(messages.remove(&id), "deleted is what was there"),
        }
    }
    messages
}

fn kill_and_check<P: OnDisk>(writer: &str, durability: Durability) {
    let directory = tempfile::tempdir().unwrap();
    let mut told = Told::default();
    for round in 0..rounds() {
        let mut process = child::run(writer, directory.path(), None);
        // The moment is random because the test does not wait for the writer; the rounds differ in how far it gets.
        let mut commits = 20 + round * 7919 % 300;
        while commits > 0 {
            let line = process.lines().next().expect("the writer goes on writing");
            if told.hear(line) {
                commits -= 1;
            }
        }
        process.kill();
        for line in process.lines() {
            told.hear(line);
        }
        let engine = open::<P>(directory.path(), durability);
        let entries = found(&claim(&engine));
        assert!(entries.is_sorted_by_key(StoredMessage::locator));
        let found: Messages = entries.iter().map(|entry| entry.id).collect();
        let last = told.announced.take();
        if found != told.confirmed {
            // The last one was not confirmed: all of it may have happened, or nothing.
            let last = last.expect("nothing but a commit under way can differ");
            assert_eq!(found, apply(&told.confirmed, &last), "round {round}");
            told.confirmed = found;
        }
    }
}

/// Puts up to sixteen messages and deletes about as many of the oldest in every commit, until it is killed.
fn write<P: OnDisk>(durability: Durability) {
    let engine = open::<P>(&child::directory(), durability);
    let shard = claim(&engine);
    let mut entries = found(&shard);
    entries.sort_by_key(|entry| entry.id);
    let mut alive: VecDeque<MessageId> = entries.iter().map(|entry| entry.id).collect();
    let mut counter = 0;
    for turn in 1_u64.. {
        let mut batch = Batch::new();
        let mut announcement = String::new();
        if alive.len() > 100 {
            for id in alive.drain(..(turn % 19) as usize) {
                batch.delete(place(id));
                announcement += &format!("-{} ", id.get());
            }
        }
        for _ in 0..=turn % 16 {
            let id = MessageId::new(shard.epoch(), counter).unwrap();
            counter += 1;
            batch.put(
                id,
                Meta::new(key(id), Timestamp::from_millis(1)),
                payload(id),
            );
            announcement += &format!("+{} ", id.get());
            alive.push_back(id);
        }
        child::say(announcement.trim_end());
        shard.commit(&batch).unwrap();
        child::say("confirmed");
    }
}

/// How many messages move about.
const MOVING: u64 = 200;

fn rounds() -> u64 {
    let rounds = std::env::var("FILA_STORE_KILLS").ok();
    rounds.map_or(5, |rounds| rounds.parse().unwrap())
}

/// Kills a process that moves messages between two queues. Each of them has to be in one, with what it carries.
fn kill_and_count<P: OnDisk>(mover: &str) {
    let directory = tempfile::tempdir().unwrap();
    let engine = open::<P>(directory.path(), Durability::Os);
    let shard = claim_named(&engine, "here");
    let mut batch = Batch::new();
    for number in 0..MOVING {
        let id = MessageId::new(shard.epoch(), number).unwrap();
        let carried = Payload::new(Vec::new(), number.to_be_bytes().to_vec()).unwrap();
        batch.put(id, Meta::new(key(id), Timestamp::from_millis(1)), carried);
    }
    shard.commit(&batch).unwrap();
    drop((shard, engine));
    for round in 0..rounds() {
        let mut process = child::run(mover, directory.path(), None);
        let moves = 20 + (round * 7919 % 300) as usize;
        assert_eq!(process.lines().take(moves).count(), moves);
        process.kill();
        process.lines().for_each(drop);
        let engine = open::<P>(directory.path(), Durability::Os);
        let mut numbers = Vec::new();
        for queue in ["here", "there"] {
            let shard = claim_named(&engine, queue);
            numbers.extend(carried(&shard).into_iter().map(|(_, number)| number));
        }
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..MOVING), "round {round}");
    }
}

/// Returns all messages with the numbers that they carry.
fn carried(shard: &impl Shard) -> Vec<(StoredMessage, u64)> {
    let page = shard.scan(&Cursor::start(), usize::MAX).unwrap();
    assert_eq!(page.damaged, []);
    let places: Vec<_> = page.items.iter().map(StoredMessage::locator).collect();
    let loaded = shard.load(&places).unwrap().into_iter();
    let numbers = loaded.map(|loaded| match loaded {
        Loaded::Found(payload) => u64::from_be_bytes(payload.body()[..].try_into().unwrap()),
        lost => panic!("{lost:?}"),
    });
    page.items.into_iter().zip(numbers).collect()
}

/// Moves some messages from one queue to the other in every commit, to and fro, until it is killed.
fn move_about<P: OnDisk>() {
    let engine = open::<P>(&child::directory(), Durability::Os);
    let shards = ["here", "there"].map(|queue| claim_named(&engine, queue));
    let mut counter = 0;
    for turn in 0_usize.. {
        let (from, to) = (&shards[turn % 2], &shards[(turn + 1) % 2]);
        let (mut leaving, mut coming) = (Batch::new(), Batch::new());
        for (entry, _) in carried(from).into_iter().skip(turn % 7).step_by(3) {
            let origin = Origin {
                queue: from.queue(),
                generation: from.generation(),
                locator: entry.locator(),
            };
            leaving.delete(entry.locator());
            let id = MessageId::new(to.epoch(), counter).unwrap();
            counter += 1;
            coming.adopt(id, entry.meta, origin);
        }
        engine.commit(&[(from, &leaving), (to, &coming)]).unwrap();
        child::say("moved");
    }
}
