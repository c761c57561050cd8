//! The log over a database that is a map, with segments of a few commits.

mod value_log;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Condvar;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::rows::{Table, View};

type MapTables = [BTreeMap<Bytes, Bytes>; Table::ALL.len()];

/// Rows in memory. A clone has the same rows.
#[derive(Clone, Debug, Default)]
struct Map(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    inside: Mutex<Inside>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inside {
    tables: MapTables,
    /// Flushes wait.
    is_held: bool,
    /// Flushes fail.
    is_broken: bool,
    /// The disk has no room for the end of a flush.
    is_full: bool,
    /// Flushes that have ended.
    flushes: usize,
}

impl Map {
    /// Returns a copy of the present rows, with flushes held.
    fn copied(&self) -> Self {
        let tables = self.0.inside.lock().unwrap().tables.clone();
        let copy = Self::default();
        copy.set(|inside| {
            inside.tables = tables;
            inside.is_held = true;
        });
        copy
    }

    fn set(&self, change: impl FnOnce(&mut Inside)) {
        change(&mut self.0.inside.lock().unwrap());
        self.0.changed.notify_all();
    }

    fn held() -> Self {
        let map = Self::default();
        map.set(|inside| inside.is_held = true);
        map
    }

    fn apply(&self, writes: impl Iterator<Item = (Table, Bytes, Option<Bytes>)>) {
        let inside = self.0.inside.lock().unwrap();
        let mut inside = self
            .0
            .changed
            .wait_while(inside, |inside| inside.is_held)
            .unwrap();
        for (table, key, value) in writes {
            match value {
                Some(value) => drop(inside.tables[table as usize].insert(key, value)),
                None => drop(inside.tables[table as usize].remove(&key)),
            }
        }
    }
}

struct Seen(MapTables);

impl View for Seen {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        Ok(self.0[table as usize].get(key).cloned())
    }

    fn range(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), Fault>> {
        let rows = self.0[table as usize].iter();
        let within = rows.filter(|(key, _)| key[..] >= *from && key[..] < *to);
        let rows: Vec<_> = within
            .map(|(key, value)| Ok((key.clone(), value.clone())))
            .collect();
        rows.into_iter()
    }
}

impl FlushTarget for Map {
    type View<'a> = Seen;

    fn view(&self) -> Seen {
        Seen(self.0.inside.lock().unwrap().tables.clone())
    }

    fn ingest(
        &self,
        table: Table,
        rows: &mut dyn Iterator<Item = (Bytes, Option<Bytes>)>,
    ) -> Result<(), Fault> {
        if self.0.inside.lock().unwrap().is_broken {
            return Err(Fault::new("the disk is full"));
        }
        let is_last = table == Table::Catalog;
        if is_last && self.0.inside.lock().unwrap().is_full {
            return Err(Fault::new(io::Error::from(io::ErrorKind::StorageFull)));
        }
        let rows: Vec<_> = rows.map(|(key, value)| (table, key, value)).collect();
        // The flush mark of an empty log is written while flushes are held.
        let is_empty = self.0.inside.lock().unwrap().tables[table as usize].is_empty();
        let is_mark = is_last && is_empty;
        let was_held = is_mark && std::mem::take(&mut self.0.inside.lock().unwrap().is_held);
        let is_end = rows
            .iter()
            .any(|(_, key, _)| *key == crate::keys::FLUSHED_SEGMENT);
        self.apply(rows.into_iter());
        self.set(|inside| {
            inside.is_held |= was_held;
            inside.flushes += usize::from(is_end);
        });
        Ok(())
    }

    fn is_behind(&self) -> bool {
        false
    }

    fn bytes(&self) -> u64 {
        0
    }
}

const SEGMENT: u64 = 1_024;

fn open_at(map: &Map, path: &Path) -> Result<Logged<Map>, OpenError> {
    Logged::open(map.clone(), path, SEGMENT, Durability::Fsync)
}

/// A log, with a way to see it after a crash.
struct World {
    map: Map,
    // Closed before its directory goes.
    logged: Option<Logged<Map>>,
    directory: TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        self.map.set(|inside| inside.is_held = false);
    }
}

impl World {
    fn new(map: Map) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let logged = open_at(&map, directory.path()).unwrap();
        Self {
            map,
            directory,
            logged: Some(logged),
        }
    }

    fn logged(&self) -> &Logged<Map> {
        self.logged.as_ref().unwrap()
    }

    /// Returns where the active segment ends.
    fn end(&self) -> usize {
        self.logged().writer().segment.end_after(0) as usize
    }

    fn segments(&self) -> Vec<PathBuf> {
        self.files("log")
    }

    /// Returns the files of the log with this extension, in order.
    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let files = fs::read_dir(self.directory.path().join("log")).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let is_one = |path: &PathBuf| path.extension().is_some_and(|name| name == extension);
        let mut files: Vec<_> = paths.filter(is_one).collect();
        files.sort();
        files
    }

    /// Returns the files and rows that a crash would leave now. Nothing may be running.
    fn crashed(&self) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        fs::create_dir(&log).unwrap();
        for file in [self.segments(), self.files("blob")].concat() {
            match fs::copy(&file, log.join(file.file_name().unwrap())) {
                // A segment that was flushed has just become a spare file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                copied => drop(copied.unwrap()),
            }
        }
        Self {
            map: self.map.copied(),
            directory,
            logged: None,
        }
    }

    fn open(&mut self) -> Result<(), OpenError> {
        self.logged = Some(open_at(&self.map, self.directory.path())?);
        Ok(())
    }

    fn set(&self, key: &str, value: &str) {
        set_with(self.logged(), key, Some(value), Durability::Fsync).unwrap();
    }

    fn get(&self, key: &str) -> Option<Bytes> {
        let view = self.logged().view();
        view.get(Table::Messages, key.as_bytes()).unwrap()
    }

    fn keys(&self) -> Vec<String> {
        keys(&self.logged().view())
    }

    /// Waits until everything but the active segment is flushed, and all garbage is collected.
    fn settle(&self) {
        let state = self.logged().flush.wait_while(|state| {
            let has_work = !state.frozen.is_empty() || state.wanted.is_some() || state.gc_pending;
            state.fault.is_none() && has_work
        });
        assert!(state.fault.is_none());
    }
}

fn set_with(
    logged: &Logged<Map>,
    key: &str,
    value: Option<&str>,
    durability: Durability,
) -> Result<(), WriteError> {
    logged.write(writes(Table::Messages, key, value), durability)
}

/// Returns a set that sets or removes one row.
fn writes(table: Table, key: &str, value: Option<&str>) -> WriteSet {
    let mut writes = WriteSet::new();
    match value {
        Some(value) => writes.set(table, key.as_bytes(), value.as_bytes()),
        None => writes.unset(table, key.as_bytes()),
    }
    writes
}

/// Sets or removes a payload, without a message.
fn set_payload(logged: &Logged<Map>, key: &str, value: Option<&str>) {
    let writes = writes(Table::Payloads, key, value);
    logged.write(writes, Durability::Os).unwrap();
}

fn keys(view: &impl View) -> Vec<String> {
    let rows = rows(view, Table::Messages);
    rows.into_iter().map(|(key, _)| key).collect()
}

fn rows(view: &impl View, table: Table) -> Vec<(String, String)> {
    let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let rows = view.range(table, b"", b"\xff");
    rows.map(|row| row.unwrap())
        .map(|(key, value)| (text(key), text(value)))
        .collect()
}

fn names(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("{number:04}")).collect()
}

fn fill(world: &World, numbers: std::ops::Range<usize>) {
    for name in names(numbers) {
        world.set(&name, &"v".repeat(100));
    }
}

/// Changes one byte of a file.
fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_writer_is_told_before_it_has_to_wait_for_the_flush() {
    let world = World::new(Map::held());
    let mut written = 0;
    while !world.logged().may_wait() {
        // It would wait without end at the bound.
        fill(&world, written..written + 1);
        written += 1;
    }
    assert!(written > 1);
    world.map.set(|inside| inside.is_held = false);
    world.settle();
    assert!(!world.logged().may_wait());
}

#[test]
fn what_was_committed_is_there_after_a_crash_flushed_or_not() {
    for map in [Map::default(), Map::held()] {
        let is_held = map.0.inside.lock().unwrap().is_held;
        let world = World::new(map);
        let count = if is_held { 20 } else { 200 };
        fill(&world, 0..count);
        if !is_held {
            world.settle();
            world.map.set(|inside| inside.is_held = true);
        }
        let mut after = world.crashed();
        after.open().unwrap();
        assert_eq!(after.keys(), names(0..count));
        fill(&after, count..count + 4);
        assert_eq!(after.keys(), names(0..count + 4));
    }
}

/// Sets a row that is certainly new.
fn set_new(world: &World, key: &str) {
    let mut writes = WriteSet::new();
    writes.set_new(Table::Messages, key.as_bytes(), |bytes| bytes.push(b'v'));
    world.logged().write(writes, Durability::Fsync).unwrap();
}

#[test]
fn segments_that_are_full_at_the_same_time_are_flushed_together() {
    let world = World::new(Map::held());
    let mut written = 0;
    while !world.logged().may_wait() {
        world.set(&names(written..written + 1)[0], "small");
        written += 1;
    }
    let frozen = world.logged().flush.state().frozen.len();
    assert!(frozen > 2, "{frozen} segments wait");
    let before = world.map.0.inside.lock().unwrap().flushes;
    world.map.set(|inside| inside.is_held = false);
    world.settle();
    let flushes = world.map.0.inside.lock().unwrap().flushes - before;
    assert!(flushes < frozen, "{flushes} flushes of {frozen} segments");
    assert_eq!(world.keys(), names(0..written));
}

#[test]
fn rows_that_are_removed_while_a_flush_finds_no_room_do_not_come_back() {
    let world = World::new(Map::default());
    world.map.set(|inside| inside.is_full = true);
    for name in names(0..12) {
        set_new(&world, &name);
    }
    let stuck = world.logged().flush.wait_while(|state| !state.is_stuck);
    let (lot, frozen) = (stuck.lot, stuck.frozen.len());
    drop(stuck);
    assert!(0 < lot && frozen < 4, "a lot of {lot}, {frozen} wait");
    for name in names(0..12) {
        set_with(world.logged(), &name, None, Durability::Fsync).unwrap();
    }
    fill(&world, 12..18);
    world.map.set(|inside| inside.is_full = false);
    fill(&world, 18..30);
    world.settle();
    assert_eq!(world.keys(), names(12..30));
    let flushed = keys(&world.map.view());
    let revived = flushed.iter().filter(|key| names(0..12).contains(key));
    assert_eq!(revived.count(), 0);
}

#[test]
fn after_a_close_everything_is_in_the_database() {
    let mut world = World::new(Map::default());
    fill(&world, 0..100);
    world.logged = None;
    let beneath = world.map.view();
    assert_eq!(keys(&beneath), names(0..100));
    assert_eq!(world.segments().len(), 1, "the next one, which is empty");
    world.open().unwrap();
    assert_eq!(world.keys(), names(0..100));
}

#[test]
fn a_commit_that_was_torn_is_not_there_but_reported_and_all_before_it_are() {
    let world = World::new(Map::held());
    fill(&world, 0..4);
    let before = world.end();
    fill(&world, 4..5);
    let after = world.end();
    for torn_at in (before + 8..after - 8).step_by(5) {
        let mut torn = world.crashed();
        let segment = torn.segments()[0].clone();
        let mut bytes = fs::read(&segment).unwrap();
        bytes[torn_at..].fill(0);
        fs::write(&segment, bytes).unwrap();
        torn.open().unwrap();
        assert_eq!(torn.keys(), names(0..4), "{torn_at}");
        let expected = TornLog {
            path: segment,
            commits: 1,
        };
        assert_eq!(torn.logged().torn(), Some(expected), "{torn_at}");
    }
    let mut whole = world.crashed();
    whole.open().unwrap();
    assert_eq!(whole.logged().torn(), None);
}

#[test]
fn a_segment_that_is_shorter_than_it_was_is_refused_wherever_it_is_cut() {
    let world = World::new(Map::held());
    fill(&world, 0..4);
    let length = fs::metadata(&world.segments()[0]).unwrap().len();
    for cut_at in (0..length).step_by(37) {
        let mut cut = world.crashed();
        let segment = cut.segments()[0].clone();
        let file = fs::OpenOptions::new().write(true).open(&segment);
        file.unwrap().set_len(cut_at).unwrap();
        match cut.open() {
            Err(OpenError::Damage(damage)) => assert_eq!(damage.path, segment, "{cut_at}"),
            opened => panic!("{cut_at}: {opened:?}"),
        }
    }
}

#[test]
fn the_last_segment_is_missed_if_the_one_before_it_is_not_flushed() {
    let world = World::new(Map::held());
    fill(&world, 0..20); // in four segments
    let has_frames = |path: &PathBuf| fs::read(path).unwrap()[64..].iter().any(|byte| *byte != 0);
    let segments = world.segments();
    let last = segments.iter().rposition(has_frames).unwrap();
    let mut robbed = world.crashed();
    for segment in &robbed.segments()[last..] {
        fs::remove_file(segment).unwrap();
    }
    assert!(matches!(robbed.open(), Err(OpenError::Damage(_))));
}

#[test]
fn a_flipped_bit_in_what_was_synced_is_refused_wherever_it_is() {
    let world = World::new(Map::held());
    fill(&world, 0..3);
    let synced = world.end();
    fill(&world, 3..4);
    // Hits every field of a frame.
    for at in (0..synced).step_by(7) {
        let mut flipped = world.crashed();
        let segment = flipped.segments()[0].clone();
        flip(&segment, at);
        match flipped.open() {
            Err(OpenError::Damage(damage)) => assert_eq!(damage.path, segment),
            // The padding after a frame has no meaning.
            Ok(()) => assert_eq!(flipped.keys(), names(0..4), "{at}"),
            Err(error) => panic!("{at}: {error}"),
        }
    }
}

#[test]
fn a_flipped_bit_in_an_earlier_segment_is_refused() {
    let world = World::new(Map::held());
    fill(&world, 0..20); // in four segments
    assert!(world.segments().len() > 2);
    let mut flipped = world.crashed();
    // The last frame of the first segment; no frame follows it there.
    flip(&flipped.segments()[0], 64 + 5 * 152 + 40);
    let refused = flipped.open().unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("has a frame that cannot be read"), "{said}");
    assert!(said.contains("`fila store repair "), "{said}");
}

#[test]
fn a_segment_that_was_taken_away_is_missed() {
    let world = World::new(Map::held());
    fill(&world, 0..20); // in four segments
    for segment in 0..world.segments().len() - 1 {
        let mut robbed = world.crashed();
        fs::remove_file(&robbed.segments()[segment]).unwrap();
        assert!(
            matches!(robbed.open(), Err(OpenError::Damage(_))),
            "{segment}"
        );
    }
    let mut robbed = world.crashed();
    fs::remove_dir_all(robbed.directory.path().join("log")).unwrap();
    assert!(matches!(robbed.open(), Err(OpenError::Damage(_))));
}

#[test]
fn a_gap_in_what_was_not_synced_ends_the_log_and_it_goes_on_from_there() {
    let world = World::new(Map::held());
    fill(&world, 0..2);
    let gap = world.end() + 40;
    for name in ["unsynced 1", "unsynced 2", "unsynced 3"] {
        set_with(world.logged(), name, Some("v"), Durability::Os).unwrap();
    }
    let mut cut = world.crashed();
    flip(&cut.segments()[0], gap);
    cut.open().unwrap();
    assert_eq!(cut.keys(), names(0..2));
    fill(&cut, 2..4);
    let mut again = cut.crashed();
    again.open().unwrap();
    assert_eq!(again.keys(), names(0..4));
}

#[test]
fn what_a_file_held_before_is_not_read_again() {
    let world = World::new(Map::default());
    // Enough for every file to be used several times.
    fill(&world, 0..300);
    for name in names(0..300) {
        set_with(world.logged(), &name, None, Durability::Fsync).unwrap();
    }
    world.settle();
    let spares = fs::read_dir(world.directory.path().join("log"))
        .unwrap()
        .count();
    assert!(spares < 12, "{spares} files");
    world.map.set(|inside| inside.is_held = true);
    let mut after = world.crashed();
    after.open().unwrap();
    assert_eq!(after.keys(), [""; 0]);
}

#[test]
fn a_message_that_looks_like_a_frame_is_none() {
    let world = World::new(Map::held());
    let head = FrameHead {
        salt: 1,
        sequence: 100,
        synced: 99,
    };
    let mut frame = WriteSet::new();
    frame::encode(head, &mut frame).unwrap();
    let mut writes = WriteSet::new();
    writes.set(Table::Messages, b"evil", &frame.bytes().repeat(20));
    world.logged().write(writes, Durability::Fsync).unwrap();
    let mut cut = world.crashed();
    flip(&cut.segments()[0], 64 + 30);
    cut.open().unwrap();
    assert_eq!(cut.keys(), [""; 0]);
}

#[test]
fn a_view_is_of_one_moment_however_long_it_is_looked_at() {
    let world = World::new(Map::default());
    fill(&world, 0..300);
    let view = world.logged().view();
    let mut rows = view.range(Table::Messages, b"", b"\xff");
    assert_eq!(rows.next().unwrap().unwrap().0, "0000");
    for name in names(0..300) {
        set_with(world.logged(), &name, None, Durability::Os).unwrap();
    }
    fill(&world, 300..400);
    world.settle();
    let seen = rows.map(|row| row.unwrap()).map(|(key, value)| {
        assert_eq!(value.len(), 100);
        String::from_utf8(key.to_vec()).unwrap()
    });
    assert_eq!(seen.collect::<Vec<_>>(), names(1..300));
    assert_eq!(
        view.get(Table::Messages, b"0299").unwrap().unwrap().len(),
        100
    );
    assert_eq!(world.get("0299"), None);
    assert_eq!(world.keys(), names(300..400));
}

#[test]
fn writers_are_told_why_nothing_is_flushed_any_more() {
    let world = World::new(Map::default());
    world.map.set(|inside| inside.is_broken = true);
    let refused = loop {
        let written = set_with(
            world.logged(),
            "key",
            Some(&"v".repeat(300)),
            Durability::Os,
        );
        if let Err(refused) = written {
            break refused;
        }
    };
    let WriteError::Unknown(fault) = refused else {
        panic!("{refused}");
    };
    assert_eq!(fault.to_string(), "the disk is full");
    let refused = set_with(world.logged(), "key", None, Durability::Os).unwrap_err();
    assert!(matches!(refused, WriteError::Poisoned));
    assert!(world.get("key").is_some());
    world.map.set(|inside| {
        inside.is_broken = false;
        inside.is_held = true;
    });
    let mut after = world.crashed();
    after.open().unwrap();
    assert!(after.get("key").is_some());
}

/// A removed row takes next to no room in the log, and as much memory as one that is set.
#[test]
fn a_segment_is_full_when_it_has_many_rows_however_small() {
    let world = World::new(Map::held());
    for n in 0..20 {
        let removal = writes(Table::Messages, &format!("{n}"), None);
        let written = world.logged().write(removal, Durability::Fsync);
        written.unwrap();
    }
    assert!(world.segments().len() > 1);
}

#[test]
fn what_is_staged_is_seen_when_it_is_settled_with_all_before_it() {
    let world = World::new(Map::default());
    let stage = |key: &str| {
        let writes = writes(Table::Messages, key, Some("x"));
        world.logged().stage(writes, Durability::Fsync)
    };
    stage("a").unwrap();
    stage("b").unwrap();
    assert_eq!(world.keys(), Vec::<String>::new());
    world.logged().settle().unwrap();
    assert_eq!(world.keys(), ["a", "b"]);
    stage("c").unwrap();
    // A write settles everything that was staged before it.
    world.set("d", "x");
    assert_eq!(world.keys(), ["a", "b", "c", "d"]);
    stage("e").unwrap();
    let mut crashed = world.crashed();
    crashed.open().unwrap();
    assert_eq!(crashed.keys().len(), 5, "appended, so it may be there");
}

/// A full segment is flushed, so its staged commits must be applied before.
#[test]
fn what_is_staged_in_a_full_segment_is_settled_before_that_is_flushed() {
    let world = World::new(Map::default());
    let name = |n: usize| format!("{n:03}");
    for n in 0..300 {
        let writes = writes(Table::Messages, &name(n), Some(&"7".repeat(500)));
        let staged = world.logged().stage(writes, Durability::Fsync);
        staged.unwrap();
    }
    world.logged().settle().unwrap();
    world.settle();
    let expected: Vec<String> = (0..300).map(name).collect();
    assert_eq!(world.keys(), expected);
    let mut crashed = world.crashed();
    crashed.open().unwrap();
    assert_eq!(crashed.keys(), expected);
}

#[test]
fn threads_that_stage_and_settle_at_once_lose_nothing_and_never_wait_without_end() {
    let world = World::new(Map::default());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let logged = world.logged();
            scope.spawn(move || {
                for n in 0..200 {
                    let key = format!("{thread}-{n:03}");
                    let writes = writes(Table::Messages, &key, Some(&"1".repeat(90)));
                    logged.stage(writes, Durability::Fsync).unwrap();
                    logged.settle().unwrap();
                    let found = logged.view().get(Table::Messages, key.as_bytes());
                    assert!(found.unwrap().is_some(), "settled, so seen");
                }
            });
        }
    });
    assert_eq!(world.keys().len(), 800);
    let mut crashed = world.crashed();
    crashed.open().unwrap();
    assert_eq!(crashed.keys().len(), 800);
}

#[test]
fn a_commit_longer_than_a_segment_has_one_of_its_own() {
    let world = World::new(Map::held());
    world.set("before", "v");
    world.set("long", &"v".repeat(5_000));
    world.set("after", "v");
    assert!(world.segments().len() >= 3);
    let mut after = world.crashed();
    after.open().unwrap();
    assert_eq!(after.keys(), ["after", "before", "long"]);
}

#[derive(Clone, Debug)]
enum Step {
    Set(u8, u8),
    Remove(u8),
    Settle,
    Close,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0_u8..24, 0_u8..200).prop_map(|(key, length)| Step::Set(key, length)),
        6 => (0_u8..24).prop_map(Step::Remove),
        1 => Just(Step::Settle),
        1 => Just(Step::Close),
        1 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_lives_agree_with_a_map(steps in steps()) {
        let mut world = World::new(Map::default());
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Set(key, length) => {
                    let (key, value) = (format!("{key:02}"), "v".repeat(length.into()));
                    // The crash copies the files, so a sync makes no difference.
                    set_with(world.logged(), &key, Some(&value), Durability::Os).unwrap();
                    set_payload(world.logged(), &key, Some(&value));
                    model.insert(key, value);
                }
                Step::Remove(key) => {
                    let key = format!("{key:02}");
                    set_with(world.logged(), &key, None, Durability::Os).unwrap();
                    set_payload(world.logged(), &key, None);
                    model.remove(&key);
                }
                Step::Settle => world.settle(),
                Step::Close => {
                    world.logged = None;
                    world.open().unwrap();
                }
                Step::Crash => {
                    world.settle();
                    world = world.crashed();
                    world.map.set(|inside| inside.is_held = false);
                    world.open().unwrap();
                }
            }
            let view = world.logged().view();
            for table in [Table::Messages, Table::Payloads] {
                prop_assert!(rows(&view, table).into_iter().eq(model.clone()));
            }
        }
    }
}

#[test]
fn a_store_that_was_flushed_in_part_is_recognised_and_foreign_data_is_not() {
    let map = Map::default();
    let row = ("key".into(), Some("value".into()));
    map.ingest(Table::Messages, &mut std::iter::once(row))
        .unwrap();
    let refused = crate::embedded::recognise(&map.view()).unwrap_err();
    assert!(matches!(refused, OpenError::Unrecognised));
    // The schema row is flushed last.
    let mut mark = FlushMark::default().rows().into_iter();
    map.ingest(Table::Catalog, &mut mark).unwrap();
    crate::embedded::recognise(&map.view()).unwrap();
}

#[test]
fn a_log_goes_on_in_a_segment_that_is_not_half_full() {
    let mut world = World::new(Map::held());
    for n in 0..3 {
        world.set(&format!("{n}"), "v");
        world = world.crashed();
        world.open().unwrap();
        assert_eq!(world.segments().len(), 1);
    }
    assert_eq!(world.keys(), ["0", "1", "2"]);
}
