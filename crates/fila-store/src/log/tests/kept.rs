//! Payloads that stay in segments, and segments that go.

use super::*;
use crate::log::kept::{self, Keeper, Tally};
use crate::record;

/// Sets payloads of a hundred bytes, of which a segment has six.
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

/// Checks that these payloads are there, and no others, one by one and in order.
fn check(world: &World, numbers: impl Iterator<Item = usize>) {
    let view = world.logged().view();
    let expected = expected(numbers);
    assert_eq!(rows(&view, Table::Payloads), expected);
    for (key, value) in expected {
        let found = view.get(Table::Payloads, key.as_bytes()).unwrap();
        assert_eq!(found.unwrap(), value, "{key}");
    }
}

/// Returns how many places the database has, and how many payloads.
fn filed_of(world: &World) -> (usize, usize) {
    let view = world.map.view();
    let rows = view.range(Table::Payloads, b"", b"\xff");
    let is_place = |row: Result<(Bytes, Bytes), Fault>| {
        let (key, record) = row.unwrap();
        record::as_place(&key, &record).is_some()
    };
    let (places, payloads): (Vec<bool>, _) = rows.map(is_place).partition(|is_place| *is_place);
    (places.len(), payloads.len())
}

#[test]
fn payloads_stay_where_they_were_written_and_are_read_from_there() {
    let mut world = World::new(Map::default());
    fill_payloads(&world, 0..200);
    world.settle();
    let (places, payloads) = filed_of(&world);
    assert!(places > 180 && payloads == 0, "{places} and {payloads}");
    assert!(world.files("kept").len() > 30);
    check(&world, 0..200);
    let mut crashed = world.crashed();
    crashed.open().unwrap();
    check(&crashed, 0..200);
    world.logged = None;
    world.open().unwrap();
    check(&world, 0..200);
}

#[test]
fn small_payloads_are_filed_and_so_are_the_last_of_a_segment() {
    let world = World::new(Map::default());
    for name in names(0..100) {
        set_payload(world.logged(), &name, Some("small"));
    }
    world.settle();
    assert!(world.files("kept").is_empty());
    let (places, payloads) = filed_of(&world);
    assert!(places == 0 && payloads > 50, "{places} and {payloads}");
    // Of each segment, most is gone before it is full.
    let world = World::new(Map::default());
    for number in 0..100 {
        fill_payloads(&world, number..number + 1);
        if number % 5 > 0 {
            remove_payloads(&world, std::iter::once(number));
        }
    }
    world.settle();
    assert!(world.files("kept").is_empty());
    check(&world, (0..100).step_by(5));
}

#[test]
fn a_segment_goes_when_nothing_in_it_is_there_any_more() {
    let world = World::new(Map::default());
    fill_payloads(&world, 0..600);
    let most = world.files("kept").len();
    remove_payloads(&world, 0..600);
    fill_payloads(&world, 600..640);
    world.settle();
    let kept = world.files("kept").len();
    assert!(most > 80 && kept < 20, "{kept} of {most}");
    assert!(world.files("spare").len() <= 6);
    check(&world, 600..640);
}

#[test]
fn what_little_is_left_of_segments_is_filed_and_they_go() {
    let world = World::new(Map::default());
    fill_payloads(&world, 0..600);
    let is_left = |number: &usize| number.is_multiple_of(12);
    remove_payloads(&world, (0..600).filter(|number| !is_left(number)));
    world.settle();
    let first = world.files("kept");
    // Two more surveys, at least.
    for from in [1_000, 2_000, 3_000] {
        fill_payloads(&world, from..from + 300);
        remove_payloads(&world, from..from + 300);
    }
    world.settle();
    let now = world.files("kept");
    let stay = first.iter().filter(|file| now.contains(file)).count();
    assert!(stay < 3, "{stay} of {}", first.len());
    check(&world, (0..600).filter(is_left));
    let (_, payloads) = filed_of(&world);
    assert!(payloads > 40, "{payloads}");
}

#[test]
fn a_segment_that_somebody_looks_at_does_not_go() {
    let world = World::new(Map::default());
    fill_payloads(&world, 0..300);
    world.settle();
    let kept = world.files("kept").len();
    let view = world.logged().view();
    remove_payloads(&world, 0..300);
    fill_payloads(&world, 300..400);
    world.settle();
    assert!(world.files("kept").len() > kept);
    assert_eq!(rows(&view, Table::Payloads), expected(0..300));
    drop(view);
    fill_payloads(&world, 400..420);
    world.settle();
    assert!(world.files("kept").len() < kept);
    check(&world, 300..420);
}

#[test]
fn a_segment_that_got_its_name_before_it_was_filed_is_recovered() {
    let world = World::new(Map::held());
    fill_payloads(&world, 0..20);
    let mut crashed = world.crashed();
    let first = crashed.segments()[0].clone();
    fs::rename(&first, first.with_extension("kept")).unwrap();
    crashed.open().unwrap();
    check(&crashed, 0..20);
    crashed.map.set(|inside| inside.is_held = false);
    crashed.settle();
    check(&crashed, 0..20);
}

#[test]
fn of_a_kept_segment_that_is_gone_nothing_is_made_up() {
    let world = World::new(Map::default());
    fill_payloads(&world, 0..60);
    world.settle();
    let mut robbed = world.crashed();
    fs::remove_file(&robbed.files("kept")[0]).unwrap();
    let cut = robbed.files("kept")[1].clone();
    let file = fs::OpenOptions::new().write(true).open(cut).unwrap();
    file.set_len(500).unwrap();
    robbed.open().unwrap();
    let view = robbed.logged().view();
    let mut lost = 0;
    for row in view.range(Table::Payloads, b"", b"\xff") {
        let (key, value) = row.unwrap();
        let name = String::from_utf8(key.to_vec()).unwrap();
        // What cannot be read is a record of another kind, which nobody takes for a payload.
        match record::as_place(&key, &value) {
            Some(_) => lost += 1,
            None => assert_eq!(value, payload(&name)),
        }
    }
    assert!((8..12).contains(&lost), "{lost}");
}

#[test]
fn an_opened_store_lets_go_of_what_it_kept() {
    let mut world = World::new(Map::default());
    fill_payloads(&world, 0..60);
    world.logged = None;
    world.open().unwrap();
    let most = world.files("kept").len();
    // As many as a survey waits for that does not know how many there are.
    for _ in 0..90 {
        remove_payloads(&world, 0..60);
    }
    world.settle();
    assert!(world.files("kept").len() < most / 4);
    check(&world, 0..0);
}

/// Goes on with a survey, or begins one.
fn look(keeper: &mut Keeper, world: &World, shelf: &Shelf, kept: &Kept) {
    keeper.look(kept, shelf, &world.map).unwrap();
}

#[test]
fn what_is_removed_in_the_course_of_a_survey_does_not_come_back() {
    let mut world = World::new(Map::default());
    fill_payloads(&world, 0..180);
    world.logged = None;
    // So little is left of each segment that it is to be filed.
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
    let (shelf, contents) = Shelf::open(world.directory.path(), SEGMENT).unwrap();
    let filed = Filed::read(&world.map.view()).unwrap().unwrap();
    let (_, kept) = kept::on_opening(&shelf, contents, filed.number).unwrap();
    let mut keeper = Keeper::new(&kept);
    let many = Tally {
        set: 0,
        removed: 1_000_000,
    };
    keeper.note(many);
    while keeper.has_work(&kept) {
        look(&mut keeper, &world, &shelf, &kept);
    }
    // The second survey knows which segments have little, and gathers that in two steps.
    keeper.note(many);
    look(&mut keeper, &world, &shelf, &kept);
    assert!(keeper.has_work(&kept));
    remove(0);
    while keeper.has_work(&kept) {
        look(&mut keeper, &world, &shelf, &kept);
    }
    let (places, payloads) = filed_of(&world);
    assert!(
        places <= 2 && places + payloads == 29,
        "{places}, {payloads}"
    );
    let found = world.map.view().get(Table::Payloads, b"0000").unwrap();
    assert_eq!(found, None);
}

/// A survey walks over small payloads, too, so they have to pay for it.
#[test]
fn a_survey_is_begun_when_half_of_all_payloads_are_gone_however_small() {
    let mut world = World::new(Map::default());
    fill_payloads(&world, 0..30);
    for name in names(1_000..1_100) {
        set_payload(world.logged(), &name, Some("small"));
    }
    world.logged = None;
    let (shelf, contents) = Shelf::open(world.directory.path(), SEGMENT).unwrap();
    let filed = Filed::read(&world.map.view()).unwrap().unwrap();
    let (_, kept) = kept::on_opening(&shelf, contents, filed.number).unwrap();
    assert!(!kept.is_empty());
    let mut keeper = Keeper::new(&kept);
    let removed = |removed| Tally { set: 0, removed };
    keeper.note(removed(1_000_000));
    while keeper.has_work(&kept) {
        look(&mut keeper, &world, &shelf, &kept);
    }
    // There are 130.
    keeper.note(removed(64));
    assert!(!keeper.has_work(&kept));
    keeper.note(removed(1));
    assert!(keeper.has_work(&kept));
}

#[test]
fn a_segment_is_written_beforehand_as_far_as_there_is_time() {
    const PART: u64 = 1 << 18;
    let directory = tempfile::tempdir().unwrap();
    let (shelf, _) = Shelf::open(directory.path(), 4 * PART).unwrap();
    for (number, parts) in [(1, 0), (2, 2), (3, 4)] {
        let mut left = parts;
        let segment = shelf.prepare(number, || {
            left -= 1;
            left >= 0
        });
        assert!(segment.unwrap().is_empty());
        let length = fs::metadata(shelf.path(number)).unwrap().len();
        assert_eq!(length, (parts as u64 * PART).max(64), "{number}");
    }
}
