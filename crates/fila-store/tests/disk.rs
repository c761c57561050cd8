//! What only an engine on disk can get wrong: locks, damage, formats, journals, full disks.
#![cfg(test)] // helpers may unwrap, as tests do

mod child;
mod places;

use std::path::Path;
use std::time::{Duration, Instant};

use fila_store::record::DecodeError;
use fila_store::rows::Table;
use fila_store::{
    Batch, CommitError, Cursor, Durability, Engine, FairnessKey, Limit, Loaded, Locator, MessageId,
    Meta, OpenError, Payload, QueueName, ReadError, Rejected, RememberedName, Shard, Timestamp,
    Writes,
};
use places::{InLsm, OnDisk};

/// Makes one test for every promise, for an engine on disk.
macro_rules! on_disk {
    ($engine:ident: $place:ty) => {
        on_disk! { @tests $engine: $place =>
            a_store_is_open_once,
            a_damaged_payload_is_reported_and_not_served,
            a_damaged_message_is_reported_and_does_not_hide_the_others,
            a_message_whose_payload_is_gone_is_reported_and_gets_no_other_payload,
            damaged_definitions_and_deduplication_ids_are_refused,
            a_deleted_queue_leaves_no_row_behind,
            another_format_is_refused_with_what_to_do,
            epochs_end_with_a_refusal_and_damage_is_named,
            data_of_another_program_is_left_alone,
            idle_tables_keep_no_journals,
            every_level_of_durability_outlives_a_close,
        }
    };
    (@tests $engine:ident: $place:ty => $($promise:ident,)*) => {
        mod $engine {
            $(
                #[test]
                fn $promise() {
                    super::$promise::<$place>();
                }
            )*

            #[test]
            fn a_full_disk_stops_writes_and_loses_nothing() {
                let child = concat!(stringify!($engine), "::writes_until_the_disk_is_full");
                super::a_full_disk_stops_writes_and_loses_nothing::<$place>(child);
            }

            #[test]
            #[ignore = "the other process of `a_full_disk_stops_writes_and_loses_nothing`"]
            fn writes_until_the_disk_is_full() {
                super::writes_until_the_disk_is_full::<$place>();
            }
        }
    };
}

on_disk! { lsm: crate::InLsm }

#[cfg(feature = "rocksdb")]
on_disk! { rocks: crate::places::InRocks }

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn key() -> FairnessKey {
    FairnessKey::new("k").unwrap()
}

fn open_if_allowed<P: OnDisk>(path: &Path) -> Result<P::Engine, OpenError> {
    P::open(path, Durability::Os, 32 << 20)
}

fn open<P: OnDisk>(path: &Path) -> P::Engine {
    open_if_allowed::<P>(path).unwrap()
}

fn claim<E: Engine>(engine: &E) -> E::Shard {
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

/// Changes rows of a table in place.
fn tamper<P: OnDisk>(path: &Path, table: Table, mut change: impl FnMut(&[u8], &mut Vec<u8>)) {
    P::tamper(path, table, |key, mut value| {
        change(key, &mut value);
        Some(value)
    });
}

fn flip_last_byte(value: &mut [u8]) {
    if let Some(last) = value.last_mut() {
        *last ^= 1;
    }
}

fn a_store_is_open_once<P: OnDisk>() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open::<P>(directory.path());
    let shard = claim(&engine);
    let refused = open_if_allowed::<P>(directory.path()).unwrap_err();
    assert!(matches!(&refused, OpenError::Locked(path) if path == directory.path()));
    assert!(refused.to_string().contains("is in use; stop the other"));
    drop(engine);
    let refused = open_if_allowed::<P>(directory.path());
    assert!(refused.is_err(), "its shard may still commit");
    drop(shard);
    open::<P>(directory.path());
}

fn a_damaged_payload_is_reported_and_not_served<P: OnDisk>() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open::<P>(directory.path());
    let place = put(&claim(&engine), 1, b"body".to_vec()).unwrap();
    drop(engine);
    tamper::<P>(directory.path(), Table::Payloads, |_, value| {
        flip_last_byte(value);
    });
    let engine = open::<P>(directory.path());
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
fn three_messages<P: OnDisk>() -> (tempfile::TempDir, Vec<Locator>) {
    let directory = tempfile::tempdir().unwrap();
    let engine = open::<P>(directory.path());
    let shard = claim(&engine);
    let places = (0..3)
        .map(|counter| put(&shard, counter, vec![counter as u8]).unwrap())
        .collect();
    (directory, places)
}

fn a_damaged_message_is_reported_and_does_not_hide_the_others<P: OnDisk>() {
    let (directory, places) = three_messages::<P>();
    let mut row = 0;
    tamper::<P>(directory.path(), Table::Messages, |_, value| {
        if row == 1 {
            flip_last_byte(value);
        }
        row += 1;
    });
    let engine = open::<P>(directory.path());
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
    let bodies: Vec<_> = page
        .items
        .iter()
        .map(|m| m.payload.as_ref().unwrap().body()[0])
        .collect();
    assert_eq!(bodies, [0, 2], "every payload stays with its message");
    assert_eq!(page.damaged.len(), 1);
}

fn a_message_whose_payload_is_gone_is_reported_and_gets_no_other_payload<P: OnDisk>() {
    let (directory, places) = three_messages::<P>();
    let mut row = 0;
    P::tamper(directory.path(), Table::Payloads, |_, value| {
        row += 1;
        (row != 2).then_some(value)
    });
    let engine = open::<P>(directory.path());
    let shard = claim(&engine);
    let limit = Limit {
        messages: 9,
        bytes: 9,
    };
    let page = shard.backlog(&key(), None, limit).unwrap();
    let bodies: Vec<_> = page
        .items
        .iter()
        .map(|m| m.payload.as_ref().unwrap().body()[0])
        .collect();
    assert_eq!(bodies, [0, 2]);
    assert_eq!(page.damaged.len(), 1);
    assert_eq!(page.damaged[0].message.as_ref(), Some(&places[1]));
    assert_eq!(page.damaged[0].error, DecodeError::Missing);
}

fn damaged_definitions_and_deduplication_ids_are_refused<P: OnDisk>() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open::<P>(directory.path());
    let shard = claim(&engine);
    let once = RememberedName::new("once").unwrap();
    let mut batch = Batch::new();
    let id = MessageId::new(shard.epoch(), 1).unwrap();
    batch.remember(once.clone(), id, at(100));
    shard.commit(&batch).unwrap();
    drop((shard, engine));
    tamper::<P>(directory.path(), Table::Deduplication, |_, value| {
        flip_last_byte(value);
    });
    tamper::<P>(directory.path(), Table::Catalog, |key, value| {
        if key[0] == b'q' {
            flip_last_byte(value);
        }
    });
    let engine = open::<P>(directory.path());
    let refused = engine.queues();
    assert!(matches!(refused, Err(ReadError::Damaged { .. })));
    let shard = engine.claim(fila_store::QueueId::new(1)).unwrap();
    let refused = shard.deduplicated(&once, at(1));
    assert!(matches!(refused, Err(ReadError::Damaged { .. })));
    let page = shard.remembered(None, 10).unwrap();
    assert_eq!((page.items.len(), page.damaged.len()), (0, 1));
}

fn a_deleted_queue_leaves_no_row_behind<P: OnDisk>() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open::<P>(directory.path());
    let shard = claim(&engine);
    for turn in 1..=2 {
        let place = put(&shard, turn, b"body".to_vec()).unwrap();
        let mut batch = Batch::new();
        let once = RememberedName::new(vec![turn as u8]).unwrap();
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
    for (table, rows) in Table::ALL.into_iter().zip([P::NUMBERS, 0, 0, 0]) {
        let mut found = 0;
        tamper::<P>(directory.path(), table, |_, _| found += 1);
        // The numbers of the catalogue are the store's own.
        assert_eq!(found, rows, "{table:?}");
    }
}

/// Writes a number of the catalogue the way the format says.
fn set_number<P: OnDisk>(path: &Path, row: u8, number: u64) {
    tamper::<P>(path, Table::Catalog, |key, value| {
        if key == [row] {
            let mut record = vec![1, 1];
            record.extend_from_slice(&number.to_be_bytes());
            let checksum = crc32c::crc32c(&[key, &record].concat());
            record.extend_from_slice(&checksum.to_be_bytes());
            *value = record;
        }
    });
}

fn another_format_is_refused_with_what_to_do<P: OnDisk>() {
    let directory = tempfile::tempdir().unwrap();
    drop(open::<P>(directory.path()));
    set_number::<P>(directory.path(), b's', 4);
    let refused = open_if_allowed::<P>(directory.path()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "stored format 4 is newer than 3, the newest known here; start the version that wrote it, \
         or restore a copy"
    );
    for older in [1, 2] {
        set_number::<P>(directory.path(), b's', older);
        let refused = open_if_allowed::<P>(directory.path()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "stored format {older} is older than 3, the oldest known here; move its messages with the version \
                 that wrote it"
            )
        );
    }
}

fn epochs_end_with_a_refusal_and_damage_is_named<P: OnDisk>() {
    let directory = tempfile::tempdir().unwrap();
    drop(open::<P>(directory.path()));
    set_number::<P>(directory.path(), b'e', u64::from(u32::MAX >> 8));
    let refused = open_if_allowed::<P>(directory.path()).unwrap_err();
    assert!(matches!(refused, OpenError::Exhausted));
    set_number::<P>(directory.path(), b'e', u64::MAX);
    let refused = open_if_allowed::<P>(directory.path()).unwrap_err();
    assert!(matches!(
        refused,
        OpenError::Damaged {
            what: "the epoch",
            ..
        }
    ));
}

fn data_of_another_program_is_left_alone<P: OnDisk>() {
    let directory = tempfile::tempdir().unwrap();
    P::insert(directory.path(), Table::Catalog, "somebody", "else");
    let refused = open_if_allowed::<P>(directory.path()).unwrap_err();
    assert!(matches!(refused, OpenError::Unrecognised));
}

/// The catalogue is written once and then idle, and must not keep the journals of everything after it.
fn idle_tables_keep_no_journals<P: OnDisk>() {
    let directory = tempfile::tempdir().unwrap();
    let engine = P::open(directory.path(), Durability::Os, 4 << 20).unwrap();
    let journals = || engine.health().unwrap().journals;
    let shard = claim(&engine);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut counter = 0;
    while journals() < 2 {
        put(&shard, counter, vec![7; 1 << 20]).unwrap();
        counter += 1;
        assert!(Instant::now() < deadline, "no journal was ever sealed");
    }
    while journals() > 1 {
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
        "and their contents are flushed"
    );
}

/// The disk is full from the first megabyte of journal on.
fn a_full_disk_stops_writes_and_loses_nothing<P: OnDisk>(child: &str) {
    let directory = tempfile::tempdir().unwrap();
    // The child does not create the store, only fills it.
    drop(claim(&open::<P>(directory.path())));
    let mut child = child::run(child, directory.path(), Some(1 << 20));
    let said: Vec<String> = child.lines().collect();
    assert!(child.succeeded(), "{said:?}");
    let confirmed: Vec<MessageId> = said
        .iter()
        .map(|number| MessageId::from_number(number.parse().unwrap()))
        .collect();
    assert!(!confirmed.is_empty());
    let engine = open::<P>(directory.path());
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

fn writes_until_the_disk_is_full<P: OnDisk>() {
    let directory = child::directory();
    let engine = open::<P>(&directory);
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

/// Closing a store is no accident, so even what was confirmed in memory only is there afterwards.
fn every_level_of_durability_outlives_a_close<P: OnDisk>() {
    for durability in Durability::ALL {
        let directory = tempfile::tempdir().unwrap();
        let engine = P::open(directory.path(), durability, 32 << 20).unwrap();
        assert_eq!(engine.health().unwrap().durability, durability);
        let place = put(&claim(&engine), 1, b"body".to_vec()).unwrap();
        drop(engine);
        let engine = P::open(directory.path(), durability, 32 << 20).unwrap();
        let loaded = claim(&engine).load(&[place]).unwrap();
        assert!(matches!(loaded[..], [Loaded::Found(_)]), "{durability}");
    }
}

/// Also while the log is flushed again and again, with nothing left in it to flush.
#[test]
fn messages_that_come_and_go_leave_no_files_in_the_database() {
    let directory = tempfile::tempdir().unwrap();
    let engine = InLsm::open(directory.path(), Durability::Os, 0).unwrap();
    let shard = claim(&engine);
    for counter in 1..=100 {
        let place = put(&shard, counter, vec![7; 1 << 10]).unwrap();
        let mut batch = Batch::new();
        batch.delete(place);
        shard.commit(&batch).unwrap();
    }
    drop((shard, engine));
    let log = std::fs::read_dir(directory.path().join("log")).unwrap();
    assert!(log.count() > 1, "segments have been flushed");
    let mut places = vec![directory.path().join("tables")];
    while let Some(place) = places.pop() {
        for entry in std::fs::read_dir(&place).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                places.push(entry.path());
            } else {
                let length = entry.metadata().unwrap().len();
                assert!(length > 0, "{} is empty", entry.path().display());
            }
        }
    }
    for table in [Table::Messages, Table::Payloads] {
        let mut found = 0;
        tamper::<InLsm>(directory.path(), table, |_, _| found += 1);
        assert_eq!(found, 0);
    }
}

#[test]
fn the_default_engine_leaves_a_database_of_rocksdb_alone() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("CURRENT"), "MANIFEST-000001\n").unwrap();
    let refused = open_if_allowed::<InLsm>(directory.path()).unwrap_err();
    assert!(matches!(refused, OpenError::Unrecognised));
    let files = std::fs::read_dir(directory.path()).unwrap();
    assert_eq!(files.count(), 1, "nothing is written");
}

#[cfg(feature = "rocksdb")]
mod foreign {
    use super::*;
    use places::InRocks;

    #[test]
    fn rocksdb_leaves_a_store_of_the_default_engine_alone() {
        let directory = tempfile::tempdir().unwrap();
        let place = put(&claim(&open::<InLsm>(directory.path())), 1, vec![7]).unwrap();
        let refused = open_if_allowed::<InRocks>(directory.path()).unwrap_err();
        assert!(matches!(refused, OpenError::Unrecognised));
        let shard = claim(&open::<InLsm>(directory.path()));
        let loaded = shard.load(&[place]).unwrap();
        assert!(matches!(loaded[..], [Loaded::Found(_)]));
    }

    #[test]
    fn column_families_of_another_program_are_left_as_they_are() {
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        for families in [&[][..], &["theirs"], &["theirs", "messages"]] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path();
            let database = rocksdb::DB::open_cf(&options, path, families).unwrap();
            database.put("somebody", "else").unwrap();
            drop(database);
            let before = rocksdb::DB::list_cf(&options, path).unwrap();
            let refused = open_if_allowed::<InRocks>(path).unwrap_err();
            assert!(matches!(refused, OpenError::Unrecognised), "{families:?}");
            assert_eq!(rocksdb::DB::list_cf(&options, path).unwrap(), before);
        }
    }

    #[test]
    fn a_creation_that_was_cut_short_is_finished() {
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        for families in [&[][..], &["catalog", "messages"]] {
            let directory = tempfile::tempdir().unwrap();
            drop(rocksdb::DB::open_cf(&options, directory.path(), families).unwrap());
            put(&claim(&open::<InRocks>(directory.path())), 1, vec![7]).unwrap();
        }
    }
}
