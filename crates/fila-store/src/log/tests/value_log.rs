//! Payloads that stay in blob segments, and how those are collected.

use super::*;
use crate::log::value_log::{self, GarbageCollector, PayloadCounts};
use crate::{DamagedPart, record};

/// Sets payloads of a hundred bytes. A segment has room for six.
fn fill_payloads(world: &World, numbers: std::ops::Range<usize>) {
    for name in names(numbers) {
        set_payload(world.logged(), &name, Some(&payload(&name)));
    }
}

fn remove_payloads(world: &World, numbers: impl Iterator<Item = usize>) {
    for number in numbers {
        set_payload(world.logged(), &format!("{number:04}"), None);
    }
}

fn payload(name: &str) -> String {
    format!("{name:v>100}")
}

fn expected(numbers: impl Iterator<Item = usize>) -> Vec<(String, String)> {
    let names = numbers.map(|number| format!("{number:04}"));
    names.map(|name| (name.clone(), payload(&name))).collect()
}

/// Checks that exactly these payloads exist, one by one and in order.
fn check(world: &World, numbers: impl Iterator<Item = usize>) {
    let view = world.logged().view();
    let expected = expected(numbers);
    assert_eq!(rows(&view, Table::Payloads), expected);
    for (key, value) in expected {
        let found = view.get(Table::Payloads, key.as_bytes()).unwrap();
        assert_eq!(found.unwrap(), value, "{key}");
    }
}

/// Returns how many pointers the database has, and how many payloads.
fn flushed_payloads(world: &World) -> (usize, usize) {
    let view = world.map.view();
    let rows = view.range(Table::Payloads, b"", b"\xff");
    let is_pointer = |row: Result<(Bytes, Bytes), Fault>| {
        let (key, record) = row.unwrap();
        record::as_value_pointer(&key, &record).is_some()
    };
    let (pointers, payloads): (Vec<bool>, _) =
        rows.map(is_pointer).partition(|is_pointer| *is_pointer);
    (pointers.len(), payloads.len())
}

#[test]
fn payloads_stay_where_they_were_written_and_are_read_from_there() {
    let mut world = World::new(Map::default());
    fill_payloads(&world, 0..200);
    world.settle();
    let (pointers, payloads) = flushed_payloads(&world);
    assert!(pointers > 180 && payloads == 0, "{pointers} and {payloads}");
    assert!(world.files("blob").len() > 30);
    check(&world, 0..200);
    let mut crashed = world.crashed();
    crashed.open().unwrap();
    check(&crashed, 0..200);
    world.logged = None;
    world.open().unwrap();
    check(&world, 0..200);
}

#[test]
fn small_payloads_are_flushed_and_so_are_the_last_of_a_segment() {
    let world = World::new(Map::default());
    for name in names(0..100) {
        set_payload(world.logged(), &name, Some("small"));
    }
    world.settle();
    assert!(world.files("blob").is_empty());
    let (pointers, payloads) = flushed_payloads(&world);
    assert!(pointers == 0 && payloads > 50, "{pointers} and {payloads}");
    // Most of each segment is removed before it is full.
    let world = World::new(Map::default());
    for number in 0..100 {
        fill_payloads(&world, number..number + 1);
        if number % 5 > 0 {
            remove_payloads(&world, std::iter::once(number));
        }
    }
    world.settle();
    assert!(world.files("blob").is_empty());
    check(&world, (0..100).step_by(5));
}

#[test]
fn a_flushed_segment_is_not_used_again_while_a_view_reads_it() {
    // Segments come and go, and none stays as a blob.
    let churn = |world: &World, numbers: std::ops::Range<usize>| {
        for number in numbers {
            fill_payloads(world, number..number + 1);
            remove_payloads(world, std::iter::once(number));
        }
        world.settle();
    };
    let world = World::new(Map::default());
    let first = world.segments()[0].clone();
    fill_payloads(&world, 0..2);
    let view = world.logged().view();
    churn(&world, 100..200);
    assert!(world.files("blob").is_empty());
    assert!(first.exists(), "a view reads it");
    assert_eq!(rows(&view, Table::Payloads), expected(0..2));
    drop(view);
    // The flush thread looks after each flush.
    churn(&world, 200..300);
    assert!(!first.exists(), "no view reads it any more");
    check(&world, 0..2);
}

#[test]
fn a_blob_segment_stays_while_a_view_from_before_its_flush_reads_it() {
    let world = World::new(Map::held());
    fill_payloads(&world, 0..14);
    let view = world.logged().view();
    world.map.set(|inside| inside.is_held = false);
    world.settle();
    let blobs = world.files("blob");
    assert!(blobs.len() >= 2, "{blobs:?}");
    remove_payloads(&world, 0..14);
    fill_payloads(&world, 100..300);
    remove_payloads(&world, 100..300);
    world.settle();
    assert!(blobs.iter().all(|blob| blob.exists()));
    assert_eq!(rows(&view, Table::Payloads), expected(0..14));
    drop(view);
    fill_payloads(&world, 400..420);
    world.settle();
    assert!(!blobs.iter().any(|blob| blob.exists()));
    check(&world, 400..420);
}

#[test]
fn a_blob_segment_goes_when_nothing_in_it_is_live() {
    let world = World::new(Map::default());
    fill_payloads(&world, 0..600);
    let most = world.files("blob").len();
    remove_payloads(&world, 0..600);
    fill_payloads(&world, 600..640);
    world.settle();
    let blobs = world.files("blob").len();
    assert!(most > 80 && blobs < 20, "{blobs} of {most}");
    assert!(world.files("spare").len() <= 6);
    check(&world, 600..640);
}

#[test]
fn the_last_payloads_of_sparse_segments_are_relocated() {
    let world = World::new(Map::default());
    fill_payloads(&world, 0..600);
    let is_left = |number: &usize| number.is_multiple_of(12);
    remove_payloads(&world, (0..600).filter(|number| !is_left(number)));
    world.settle();
    let first = world.files("blob");
    // Two more scans, at least.
    for from in [1_000, 2_000, 3_000] {
        fill_payloads(&world, from..from + 300);
        remove_payloads(&world, from..from + 300);
    }
    world.settle();
    let now = world.files("blob");
    let stay = first.iter().filter(|file| now.contains(file)).count();
    assert!(stay < 3, "{stay} of {}", first.len());
    check(&world, (0..600).filter(is_left));
    let (_, payloads) = flushed_payloads(&world);
    assert!(payloads > 40, "{payloads}");
}

#[test]
fn a_blob_segment_stays_while_a_view_reads_it() {
    let world = World::new(Map::default());
    fill_payloads(&world, 0..300);
    world.settle();
    let blobs = world.files("blob").len();
    let view = world.logged().view();
    remove_payloads(&world, 0..300);
    fill_payloads(&world, 300..400);
    world.settle();
    assert!(world.files("blob").len() > blobs);
    assert_eq!(rows(&view, Table::Payloads), expected(0..300));
    drop(view);
    fill_payloads(&world, 400..420);
    world.settle();
    assert!(world.files("blob").len() < blobs);
    check(&world, 300..420);
}

#[test]
fn a_segment_that_was_named_a_blob_before_it_was_flushed_is_recovered() {
    let world = World::new(Map::held());
    fill_payloads(&world, 0..20);
    let mut crashed = world.crashed();
    let first = crashed.segments()[0].clone();
    fs::rename(&first, first.with_extension("blob")).unwrap();
    crashed.open().unwrap();
    check(&crashed, 0..20);
    crashed.map.set(|inside| inside.is_held = false);
    crashed.settle();
    check(&crashed, 0..20);
}

#[test]
fn a_missing_blob_segment_is_refused_and_its_payloads_reported_once_that_is_accepted() {
    let world = World::new(Map::default());
    fill_payloads(&world, 0..60);
    world.settle();
    let mut robbed = world.crashed();
    fs::remove_file(&robbed.files("blob")[0]).unwrap();
    let cut = robbed.files("blob")[1].clone();
    let file = fs::OpenOptions::new().write(true).open(cut).unwrap();
    file.set_len(500).unwrap();
    robbed.map.set(|inside| inside.is_held = false);
    for _ in 0..2 {
        let Err(OpenError::Damage(damage)) = robbed.open() else {
            panic!("a damaged log was opened");
        };
        let DamagedPart::Blob(number) = damage.part else {
            panic!("{damage}");
        };
        accept_blob(&robbed.map, robbed.directory.path(), number).unwrap();
    }
    robbed.open().unwrap();
    let view = robbed.logged().view();
    let mut lost = 0;
    for row in view.range(Table::Payloads, b"", b"\xff") {
        let (key, value) = row.unwrap();
        let name = String::from_utf8(key.to_vec()).unwrap();
        // A pointer that leads nowhere is a record of another kind, which no decoder takes for a payload.
        match record::as_value_pointer(&key, &value) {
            Some(_) => lost += 1,
            None => assert_eq!(value, payload(&name)),
        }
    }
    assert!((8..12).contains(&lost), "{lost}");
}

#[test]
fn an_opened_store_collects_the_garbage_of_the_last_run() {
    let mut world = World::new(Map::default());
    fill_payloads(&world, 0..60);
    world.logged = None;
    world.open().unwrap();
    let most = world.files("blob").len();
    // As many as the first scan waits for, which does not know how many there are.
    for _ in 0..90 {
        remove_payloads(&world, 0..60);
    }
    world.settle();
    assert!(world.files("blob").len() < most / 4);
    check(&world, 0..0);
}

/// Continues a scan, or starts one.
fn step(collector: &mut GarbageCollector, world: &World, dir: &SegmentDir, blobs: &BlobSegments) {
    collector.step(blobs, dir, &world.map).unwrap();
}

#[test]
fn a_payload_removed_during_a_scan_does_not_come_back() {
    let mut world = World::new(Map::default());
    fill_payloads(&world, 0..180);
    world.logged = None;
    // Each segment becomes sparse.
    let remove = |number: usize| {
        let key = format!("{number:04}");
        let payloads = Table::Payloads as usize;
        world
            .map
            .set(|inside| drop(inside.tables[payloads].remove(key.as_bytes())));
    };
    (0..180_usize)
        .filter(|number| !number.is_multiple_of(6))
        .for_each(remove);
    let (dir, contents) = SegmentDir::open(world.directory.path(), SEGMENT).unwrap();
    let mark = FlushMark::read(&world.map.view()).unwrap().unwrap();
    let (_, blobs) = value_log::classify(&dir, contents, mark.segment).unwrap();
    let mut collector = GarbageCollector::new(&blobs, BTreeSet::new());
    let many = PayloadCounts {
        set: 0,
        removed: 1_000_000,
    };
    collector.note(many);
    while collector.has_work(&blobs) {
        step(&mut collector, &world, &dir, &blobs);
    }
    // The second scan knows which segments are sparse, and collects their pointers in two steps.
    collector.note(many);
    step(&mut collector, &world, &dir, &blobs);
    assert!(collector.has_work(&blobs));
    remove(0);
    while collector.has_work(&blobs) {
        step(&mut collector, &world, &dir, &blobs);
    }
    let (pointers, payloads) = flushed_payloads(&world);
    assert!(
        pointers <= 2 && pointers + payloads == 29,
        "{pointers}, {payloads}"
    );
    let found = world.map.view().get(Table::Payloads, b"0000").unwrap();
    assert_eq!(found, None);
}

/// A scan visits small payloads, too, so their removals count.
#[test]
fn a_scan_starts_when_half_of_all_payloads_are_gone_however_small() {
    let mut world = World::new(Map::default());
    fill_payloads(&world, 0..30);
    for name in names(1_000..1_100) {
        set_payload(world.logged(), &name, Some("small"));
    }
    world.logged = None;
    let (dir, contents) = SegmentDir::open(world.directory.path(), SEGMENT).unwrap();
    let mark = FlushMark::read(&world.map.view()).unwrap().unwrap();
    let (_, blobs) = value_log::classify(&dir, contents, mark.segment).unwrap();
    assert!(!blobs.is_empty());
    let mut collector = GarbageCollector::new(&blobs, BTreeSet::new());
    let removed = |removed| PayloadCounts { set: 0, removed };
    collector.note(removed(1_000_000));
    while collector.has_work(&blobs) {
        step(&mut collector, &world, &dir, &blobs);
    }
    // There are 130.
    collector.note(removed(64));
    assert!(!collector.has_work(&blobs));
    collector.note(removed(1));
    assert!(collector.has_work(&blobs));
}

#[test]
fn a_segment_is_filled_beforehand_as_far_as_there_is_time_and_allocated_in_any_case() {
    use std::os::unix::fs::MetadataExt;
    const PART: u64 = 1 << 18;
    let directory = tempfile::tempdir().unwrap();
    let (dir, _) = SegmentDir::open(directory.path(), 4 * PART).unwrap();
    for (number, parts, asked) in [(1, 0, 1), (2, 2, 3), (3, 4, 4)] {
        let mut calls = 0;
        let segment = dir.prepare(number, || {
            calls += 1;
            calls <= parts
        });
        assert!(segment.unwrap().is_empty());
        assert_eq!(calls, asked);
        let file = fs::metadata(dir.path(number)).unwrap();
        assert_eq!(file.len(), 4 * PART);
        assert!(file.blocks() * 512 >= 4 * PART, "{number}");
    }
}

#[test]
fn spare_files_are_added_up_to_a_number_and_given_up_down_to_one() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, _) = SegmentDir::open(directory.path(), 1 << 14).unwrap();
    let added = (0..5).filter(|_| dir.add_spare(3).unwrap()).count();
    assert_eq!((added, dir.spare_bytes()), (3, 3 << 14));
    dir.prepare(1, || panic!("a spare file is not filled"))
        .unwrap();
    assert_eq!(dir.spare_bytes(), 2 << 14);
    assert!(dir.give_up_spare(1).unwrap());
    assert!(!dir.give_up_spare(1).unwrap());
    let (dir, _) = SegmentDir::open(directory.path(), 1 << 14).unwrap();
    assert_eq!(dir.spare_bytes(), 1 << 14, "it is found again");
}
