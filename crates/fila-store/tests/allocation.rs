//! Counts the allocations of a commit: they are of the commit, and not of each message.

#![cfg(test)] // helpers may unwrap, as tests do

use allocation_counter::measure;
use bytes::Bytes;
use fila_store::{
    Batch, DiskOptions, Durability, Engine, FairnessKey, Locator, LsmEngine, MessageId, Meta,
    Payload, QueueName, Shard, Timestamp,
};

/// Messages in a commit.
const MESSAGES: u64 = 256;

struct World {
    shard: <LsmEngine as Engine>::Shard,
    /// How many messages were put.
    put: u64,
    _engine: LsmEngine,
    _directory: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = DiskOptions::new(directory.path()).durability(Durability::Os);
        let engine = options.open().unwrap();
        let name = QueueName::parse("queue").unwrap();
        let queue = engine.create_queue(&name, Bytes::new()).unwrap();
        Self {
            shard: engine.claim(queue.id).unwrap(),
            put: 0,
            _engine: engine,
            _directory: directory,
        }
    }

    fn id(&self, number: u64) -> MessageId {
        MessageId::new(self.shard.epoch(), number + 1).unwrap()
    }

    /// Returns a batch of new messages of this size.
    fn puts(&mut self, bytes: usize) -> Batch {
        let mut batch = Batch::new();
        let meta = Meta::new(key(), Timestamp::from_millis(1));
        for number in self.put..self.put + MESSAGES {
            let payload = Payload::new(Vec::new(), vec![7; bytes]).unwrap();
            batch.put(self.id(number), meta.clone(), payload);
        }
        self.put += MESSAGES;
        batch
    }

    /// Returns a batch that removes the last messages.
    fn removals(&self) -> Batch {
        let mut batch = Batch::new();
        for number in self.put - MESSAGES..self.put {
            let (fairness_key, id) = (key(), self.id(number));
            batch.delete(Locator { fairness_key, id });
        }
        batch
    }

    /// Returns how often a commit of this batch allocates.
    fn allocations(&self, batch: &Batch) -> u64 {
        measure(|| self.shard.commit(batch).unwrap()).count_total
    }
}

fn key() -> FairnessKey {
    FairnessKey::new("tenant").unwrap()
}

#[test]
fn a_commit_allocates_less_than_once_for_two_messages() {
    for bytes in [64, 1_024] {
        let mut world = World::new();
        for _ in 0..4 {
            let batch = world.puts(bytes);
            world.allocations(&batch);
        }
        let batch = world.puts(bytes);
        let put = world.allocations(&batch);
        let removed = world.allocations(&world.removals());
        println!("{MESSAGES} messages of {bytes} bytes: {put} to put them, {removed} to remove");
        assert!(put <= MESSAGES / 2, "{put} allocations");
        assert!(removed <= MESSAGES / 2, "{removed} allocations");
    }
}
