//! What only an engine on disk can get wrong: locks, damage, formats, journals, full disks.
#![cfg(test)] // helpers may unwrap, as tests do

mod child;

use std::path::Path;
use std::time::{Duration, Instant};

use fila_store::record::DecodeError;
use fila_store::rows::Table;
use fila_store::{
    Batch, CommitError, Cursor, DeduplicationId, Durability, Engine, FairnessKey, FjallEngine,
    FjallOptions, Limit, Loaded, Locator, MessageId, Meta, OpenError, Payload, QueueName,
    ReadError, Rejected, Shard, Timestamp, Writes,
};

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn key() -> FairnessKey {
    FairnessKey::new("k").unwrap()
}

fn open(path: &Path) -> FjallEngine {
    let options = FjallOptions::new(path).durability(Durability::Os);
    options.worker_threads(1).open().unwrap()
}

fn claim(engine: &FjallEngine) -> <FjallEngine as Engine>::Shard {
    let name = QueueName::parse("orders").unwrap();
    let found = engine.queue(&name).unwrap();
    let found = found.unwrap_or_else(|| engine.create_queue(&name, "definition".into()).unwrap());
    engine.claim(found.id).unwrap()
}

fn put(shard: &impl Shard, counter: u64, body: Vec<u8>) -> Result<Locator, CommitError> {
    let id = MessageId::new(shard.epoch(), counter).unwrap();
    let mut batch = Batch::new();
    batch.put(
        id,
        Meta::new(key(), at(1)),
        Payload::new(Vec::new(), body).unwrap(),
    );
    shard.commit(&batch)?;
    Ok(Locator {
        fairness_key: key(),
        id,
    })
}

/// Writes into a table behind the engine's back; `change` gets every row and says what becomes of it.
fn tamper(path: &Path, table: Table, mut change: impl FnMut(&[u8], &mut Vec<u8>)) {
    let database = fjall::Database::builder(path).open().unwrap();
    let keyspace = database.keyspace(table.name(), Default::default).unwrap();
    for row in keyspace.iter() {
        let (key, value) = row.into_inner().unwrap();
        let mut changed = value.to_vec();
        change(&key, &mut changed);
        keyspace.insert(key, changed).unwrap();
    }
}

fn flip_last_byte(value: &mut [u8]) {
    if let Some(last) = value.last_mut() {
        *last ^= 1;
    }
}

#[test]
fn a_store_is_open_once() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path());
    let shard = claim(&engine);
    let refused = FjallOptions::new(directory.path()).open().unwrap_err();
    assert!(matches!(&refused, OpenError::Locked(path) if path == directory.path()));
    assert!(refused.to_string().contains("is in use; stop the other"));
    drop(engine);
    let refused = FjallOptions::new(directory.path()).open();
    assert!(refused.is_err(), "its shard may still commit");
    drop(shard);
    open(directory.path());
}

#[test]
fn a_damaged_payload_is_reported_and_not_served() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path());
    let place = put(&claim(&engine), 1, b"body".to_vec()).unwrap();
    drop(engine);
    tamper(directory.path(), Table::Payloads, |_, value| {
        flip_last_byte(value);
    });
    let engine = open(directory.path());
    let shard = claim(&engine);
    let loaded = shard.load(std::slice::from_ref(&place)).unwrap();
    assert!(matches!(
        loaded[..],
        [Loaded::Damaged(DecodeError::Checksum { .. })]
    ));
    let limit = Limit {
        messages: 9,
        bytes: 9,
    };
    let page = shard.backlog(&key(), None, limit).unwrap();
    assert_eq!(page.items, []);
    assert_eq!(page.damaged[0].record, "payload");
    assert_eq!(page.damaged[0].message.as_ref(), Some(&place));
    // Its place is known, so it can be deleted.
    let mut batch = Batch::new();
    batch.delete(place);
    shard.commit(&batch).unwrap();
    assert_eq!(shard.scan(&Cursor::start(), 9).unwrap().items, []);
}

/// Returns a directory in which a queue has three messages, and where they are.
fn three_messages() -> (tempfile::TempDir, Vec<Locator>) {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path());
    let shard = claim(&engine);
    let places = (0..3)
        .map(|counter| put(&shard, counter, vec![counter as u8]).unwrap())
        .collect();
    (directory, places)
}

#[test]
fn a_damaged_message_is_reported_and_does_not_hide_the_others() {
    let (directory, places) = three_messages();
    let mut row = 0;
    tamper(directory.path(), Table::Messages, |_, value| {
        if row == 1 {
            flip_last_byte(value);
        }
        row += 1;
    });
    let engine = open(directory.path());
    let shard = claim(&engine);
    let page = shard.scan(&Cursor::start(), 10).unwrap();
    let found: Vec<_> = page.items.iter().map(|entry| entry.id).collect();
    assert_eq!(found, [places[0].id, places[2].id]);
    assert_eq!(page.damaged.len(), 1);
    assert_eq!(page.damaged[0].message.as_ref(), Some(&places[1]));
    let limit = Limit {
        messages: 10,
        bytes: 10,
    };
    let page = shard.backlog(&key(), None, limit).unwrap();
    let bodies: Vec<_> = page.items.iter().map(|m| m.payload.body()[0]).collect();
    assert_eq!(bodies, [0, 2], "every payload stays with its message");
    assert_eq!(page.damaged.len(), 1);
}

#[test]
fn a_message_whose_payload_is_gone_is_reported_and_gets_nobody_elses() {
    let (directory, places) = three_messages();
    {
        let database = fjall::Database::builder(directory.path()).open().unwrap();
        let name = Table::Payloads.name();
        let payloads = database.keyspace(name, Default::default).unwrap();
        let row = payloads.iter().nth(1).unwrap().key().unwrap();
        payloads.remove(row).unwrap();
    }
    let engine = open(directory.path());
    let shard = claim(&engine);
    let limit = Limit {
        messages: 9,
        bytes: 9,
    };
    let page = shard.backlog(&key(), None, limit).unwrap();
    let bodies: Vec<_> = page.items.iter().map(|m| m.payload.body()[0]).collect();
    assert_eq!(bodies, [0, 2]);
    assert_eq!(page.damaged.len(), 1);
    assert_eq!(page.damaged[0].message.as_ref(), Some(&places[1]));
    assert_eq!(page.damaged[0].error, DecodeError::Missing);
}

#[test]
fn damaged_definitions_and_deduplication_ids_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path());
    let shard = claim(&engine);
    let once = DeduplicationId::new("once").unwrap();
    let mut batch = Batch::new();
    let id = MessageId::new(shard.epoch(), 1).unwrap();
    batch.remember(once.clone(), id, at(100));
    shard.commit(&batch).unwrap();
    drop((shard, engine));
    tamper(directory.path(), Table::Deduplication, |_, value| {
        flip_last_byte(value);
    });
    tamper(directory.path(), Table::Catalog, |key, value| {
        if key[0] == b'q' {
            flip_last_byte(value);
        }
    });
    let engine = open(directory.path());
    let refused = engine.queues();
    assert!(matches!(refused, Err(ReadError::Damaged { .. })));
    let shard = engine.claim(fila_store::QueueId::new(1)).unwrap();
    let refused = shard.deduplicated(&once, at(1));
    assert!(matches!(refused, Err(ReadError::Damaged { .. })));
    let page = shard.remembered(None, 10).unwrap();
    assert_eq!((page.items.len(), page.damaged.len()), (0, 1));
}

#[test]
fn a_deleted_queue_leaves_no_row_behind() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path());
    let shard = claim(&engine);
    for turn in 1..=2 {
        let place = put(&shard, turn, b"body".to_vec()).unwrap();
        let mut batch = Batch::new();
        let once = DeduplicationId::new(vec![turn as u8]).unwrap();
        batch.remember(once, place.id, at(u64::MAX));
        shard.commit(&batch).unwrap();
        if turn == 1 {
            batch.clear();
            batch.purge(shard.generation().next().unwrap());
            shard.commit(&batch).unwrap();
        }
    }
    engine.delete_queue(shard.queue()).unwrap();
    while engine.sweep(at(1), 3).unwrap().more {}
    drop((shard, engine));
    let database = fjall::Database::builder(directory.path()).open().unwrap();
    for (table, rows) in Table::ALL.into_iter().zip([4, 0, 0, 0]) {
        let keyspace = database.keyspace(table.name(), Default::default).unwrap();
        // The four numbers of the catalogue are the store's own.
        assert_eq!(keyspace.len().unwrap(), rows, "{table:?}");
    }
}

/// Writes a number of the catalogue the way the format says.
fn set_number(path: &Path, row: u8, number: u64) {
    tamper(path, Table::Catalog, |key, value| {
        if key == [row] {
            let mut record = vec![1, 1];
            record.extend_from_slice(&number.to_be_bytes());
            let checksum = crc32c::crc32c(&[key, &record].concat());
            record.extend_from_slice(&checksum.to_be_bytes());
            *value = record;
        }
    });
}

#[test]
fn a_newer_format_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    set_number(directory.path(), b's', 2);
    let refused = FjallOptions::new(directory.path()).open().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "stored format 2 is newer than 1, the newest known here; start the version that wrote it, \
         or restore a copy"
    );
    set_number(directory.path(), b's', 1);
    open(directory.path());
}

#[test]
fn epochs_end_with_a_refusal_and_damage_is_named() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    set_number(directory.path(), b'e', u64::from(u32::MAX >> 8));
    let refused = FjallOptions::new(directory.path()).open().unwrap_err();
    assert!(matches!(refused, OpenError::Exhausted));
    set_number(directory.path(), b'e', u64::MAX);
    let refused = FjallOptions::new(directory.path()).open().unwrap_err();
    assert!(matches!(
        refused,
        OpenError::Damaged {
            what: "the epoch",
            ..
        }
    ));
}

#[test]
fn somebody_elses_data_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    {
        let database = fjall::Database::builder(directory.path()).open().unwrap();
        let name = Table::Catalog.name();
        let keyspace = database.keyspace(name, Default::default).unwrap();
        keyspace.insert("somebody", "else").unwrap();
    }
    let refused = FjallOptions::new(directory.path()).open().unwrap_err();
    assert!(matches!(refused, OpenError::Unrecognised));
}

/// fjall#288: the catalogue is written once and then idle, and must not keep the journals of everything after it.
#[test]
fn idle_tables_keep_no_journals() {
    let directory = tempfile::tempdir().unwrap();
    let options = FjallOptions::new(directory.path()).durability(Durability::Os);
    let engine = options.memtable_bytes(4 << 20).open().unwrap();
    let shard = claim(&engine);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut counter = 0;
    while engine.journal_count() < 2 {
        put(&shard, counter, vec![7; 1 << 20]).unwrap();
        counter += 1;
        assert!(Instant::now() < deadline, "no journal was ever sealed");
    }
    while engine.journal_count() > 1 {
        engine.sweep(at(1), 1).unwrap();
        std::thread::yield_now();
        assert!(Instant::now() < deadline, "a journal is kept");
    }
    let health = engine.health().unwrap();
    assert_eq!((health.journals, health.writes), (1, Writes::Taken));
    assert!(health.bytes > 0);
    assert_eq!(
        shard.scan(&Cursor::start(), 1).unwrap().items.len(),
        1,
        "and what was in them is filed"
    );
}

/// The disk is full from the first megabyte of journal on.
#[test]
fn a_full_disk_stops_writes_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    // Here, since a new journal is made as large as sixty megabytes.
    drop(claim(&open(directory.path())));
    let mut child = child::run(
        "writes_until_the_disk_is_full",
        directory.path(),
        Some(1 << 20),
    );
    let said: Vec<String> = child.lines().collect();
    assert!(child.succeeded(), "{said:?}");
    let confirmed: Vec<MessageId> = said
        .iter()
        .map(|number| MessageId::from_number(number.parse().unwrap()))
        .collect();
    assert!(!confirmed.is_empty());
    let engine = open(directory.path());
    let shard = claim(&engine);
    let page = shard.scan(&Cursor::start(), 1_000).unwrap();
    let found: Vec<_> = page.items.iter().map(|entry| entry.id).collect();
    assert_eq!(found[..confirmed.len()], confirmed);
    assert!(
        found.len() <= confirmed.len() + 1,
        "at most the unknown one"
    );
    put(&shard, 1, vec![7; 1 << 20]).unwrap();
}

#[test]
#[ignore = "the other process of `a_full_disk_stops_writes_and_loses_nothing`"]
fn writes_until_the_disk_is_full() {
    let directory = child::directory();
    let engine = open(&directory);
    let shard = claim(&engine);
    let mut places = Vec::new();
    let failure = loop {
        let counter = places.len() as u64 + 1;
        assert!(counter < 1_000, "the disk is not full");
        match put(&shard, counter, vec![7; 1 << 16]) {
            Ok(place) => {
                child::say(place.id.get());
                places.push(place);
            }
            Err(failure) => break failure,
        }
    };
    assert!(matches!(failure, CommitError::Unknown(_)), "{failure:?}");
    let failure = put(&shard, 2_000, vec![7; 1]).unwrap_err();
    let CommitError::Rejected(Rejected::Poisoned) = failure else {
        panic!("{failure:?}");
    };
    assert_eq!(engine.health().unwrap().writes, Writes::Poisoned);
    for loaded in shard.load(&places).unwrap() {
        assert!(matches!(loaded, Loaded::Found(_)));
    }
    let found = shard.scan(&Cursor::start(), 1_000).unwrap().items.len();
    assert_eq!(found, places.len());
}
