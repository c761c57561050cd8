//! Writes that fail: every answer is true, the engine takes no more writes, and a retry takes effect once.
#![cfg(test)] // helpers may unwrap, as tests do

use fila_store::{
    Accident, Batch, CommitError, Cursor, Engine, EngineError, Expected, FairnessKey, Loaded,
    MemoryDisk, MemoryEngine, MessageId, Meta, Payload, QueueName, Rejected, Shard, Timestamp,
    Writes,
};

fn queue() -> QueueName {
    QueueName::parse("orders").unwrap()
}

fn meta() -> Meta {
    Meta::new(FairnessKey::new("k").unwrap(), Timestamp::from_millis(1))
}

fn put(shard: &impl Shard, counter: u64) -> (MessageId, Batch) {
    let id = MessageId::new(shard.epoch(), counter).unwrap();
    let mut batch = Batch::new();
    batch.put(id, meta(), Payload::new(Vec::new(), "body").unwrap());
    (id, batch)
}

fn ids(shard: &impl Shard) -> Vec<MessageId> {
    let page = shard.scan(&Cursor::start(), 100).unwrap();
    page.items.iter().map(|entry| entry.id).collect()
}

fn is_poisoned(result: &Result<(), CommitError>) -> bool {
    matches!(result, Err(CommitError::Rejected(Rejected::Poisoned)))
}

#[test]
fn after_a_failed_write_nothing_is_taken_and_all_is_read() {
    let disk = MemoryDisk::default();
    let engine = MemoryEngine::open(&disk).unwrap();
    let queue = engine.create_queue(&queue(), "".into()).unwrap();
    let shard = engine.claim(queue.id).unwrap();
    let (kept, batch) = put(&shard, 1);
    shard.commit(&batch).unwrap();
    disk.fail_next_write(Accident::Lost);
    let (_, batch) = put(&shard, 2);
    let unknown = shard.commit(&batch);
    assert!(matches!(unknown, Err(CommitError::Unknown(_))));
    assert!(is_poisoned(&shard.commit(&batch)));
    assert_eq!(engine.health().unwrap().writes, Writes::Poisoned);
    let refused = engine.update_queue(queue.id, Expected::Any, "".into());
    let poisoned = CommitError::Rejected(Rejected::Poisoned);
    let Err(EngineError::Commit(error)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(error.to_string(), poisoned.to_string());
    assert_eq!(ids(&shard), [kept]);
    let entry = shard.scan(&Cursor::start(), 1).unwrap().items.remove(0);
    let loaded = shard.load(&[entry.locator()]).unwrap();
    assert!(matches!(loaded[..], [Loaded::Found(_)]));
}

#[test]
fn a_commit_of_unknown_outcome_happens_once_when_repeated_after_reopening() {
    for accident in [Accident::Stored, Accident::Lost] {
        let disk = MemoryDisk::default();
        let engine = MemoryEngine::open(&disk).unwrap();
        let queue = engine.create_queue(&queue(), "".into()).unwrap();
        let shard = engine.claim(queue.id).unwrap();
        let (old, batch) = put(&shard, 1);
        shard.commit(&batch).unwrap();
        let (new, mut batch) = put(&shard, 2);
        batch.purge(shard.generation().next().unwrap());
        disk.fail_next_write(accident);
        let unknown = shard.commit(&batch);
        assert!(matches!(unknown, Err(CommitError::Unknown(_))));

        let engine = MemoryEngine::open(&disk).unwrap();
        let shard = engine.claim(queue.id).unwrap();
        let found = match accident {
            Accident::Stored => new,
            Accident::Lost => old,
        };
        assert_eq!(ids(&shard), [found], "all of it, or nothing");
        shard.commit(&batch).unwrap();
        assert_eq!(ids(&shard), [new]);
        assert_eq!(shard.generation().get(), 1);
    }
}

#[test]
fn an_engine_that_was_opened_elsewhere_writes_no_more() {
    let disk = MemoryDisk::default();
    let old = MemoryEngine::open(&disk).unwrap();
    let queue = old.create_queue(&queue(), "".into()).unwrap();
    let shard = old.claim(queue.id).unwrap();
    let new = MemoryEngine::open(&disk).unwrap();
    let (_, batch) = put(&shard, 1);
    let fenced = shard.commit(&batch);
    assert!(matches!(fenced, Err(CommitError::Fenced { queue: which }) if which == queue.id));
    let refused = old.delete_queue(queue.id);
    assert!(matches!(
        refused,
        Err(EngineError::Commit(CommitError::Rejected(
            Rejected::Superseded
        )))
    ));
    let shard = new.claim(queue.id).unwrap();
    assert_eq!(ids(&shard), []);
}
