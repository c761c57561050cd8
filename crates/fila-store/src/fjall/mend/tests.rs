use super::*;

/// A journal of batches with one item each.
fn journal(bodies: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let (mut journal, mut ends) = (Vec::new(), Vec::new());
    for (number, body) in bodies.iter().enumerate() {
        let mut item = vec![2, 0, 0];
        item.extend_from_slice(&1_u64.to_le_bytes());
        item.extend_from_slice(&3_u16.to_le_bytes());
        for _ in 0..2 {
            item.extend_from_slice(&(body.len() as u32).to_le_bytes());
        }
        item.extend_from_slice(b"key");
        item.extend_from_slice(body);
        journal.push(1);
        journal.extend_from_slice(&1_u32.to_le_bytes());
        journal.extend_from_slice(&(number as u64).to_le_bytes());
        journal.extend_from_slice(&item);
        journal.push(3);
        journal.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&item).to_le_bytes());
        journal.extend_from_slice(MAGIC);
        ends.push(journal.len());
    }
    (journal, ends)
}

fn three() -> (Vec<u8>, Vec<usize>) {
    journal(&[vec![7; 100], vec![8; 2_000], vec![9; 3_000]])
}

fn found(bytes: &[u8], durability: Durability, sealed: bool) -> Found {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("0.jnl");
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len() + 10_000, 0);
    std::fs::write(&path, padded).unwrap();
    let padded = examine(&path, durability, sealed).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let bare = examine(&path, durability, sealed).unwrap();
    assert_eq!(padded, bare, "what was reserved makes no difference");
    bare
}

#[test]
fn a_journal_that_ends_with_a_batch_is_whole() {
    let (bytes, ends) = three();
    assert_eq!(found(&bytes, Durability::Fsync, false), Found::Whole);
    assert_eq!(
        found(&bytes[..ends[0]], Durability::Fsync, true),
        Found::Whole
    );
    assert_eq!(found(&[], Durability::Fsync, false), Found::Whole);
}

#[test]
fn a_last_batch_without_some_of_its_sectors_is_torn() {
    let (bytes, ends) = three();
    let torn = Found::Torn {
        offset: ends[1] as u64,
    };
    let first = ends[1].next_multiple_of(SECTOR);
    for lost in (first..bytes.len()).step_by(SECTOR) {
        let mut bytes = bytes.clone();
        let end = bytes.len().min(lost + SECTOR);
        bytes[lost..end].fill(0);
        assert_eq!(
            found(&bytes, Durability::Fsync, false),
            torn,
            "sector at {lost}"
        );
        bytes.truncate(lost);
        assert_eq!(
            found(&bytes, Durability::Fsync, false),
            torn,
            "all from {lost} on"
        );
    }
    let mut bytes = bytes.clone();
    bytes[ends[1]..first].fill(0);
    assert_eq!(
        found(&bytes, Durability::Fsync, false),
        torn,
        "its beginning"
    );
}

#[test]
fn any_bad_byte_without_a_gap_is_damage_and_names_its_batch() {
    let (bytes, ends) = three();
    // All bytes around the items' bodies, and some in them.
    let around = |at: &usize| {
        let batch = ends.partition_point(|end| end <= at);
        let start = if batch == 0 { 0 } else { ends[batch - 1] };
        at - start < 40 || ends[batch] - at <= END_BYTES || at.is_multiple_of(101)
    };
    for at in (0..bytes.len()).filter(around) {
        for bit in [0, 7] {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            let batch = ends.partition_point(|end| *end <= at);
            let offset = if batch == 0 {
                0
            } else {
                ends[batch - 1] as u64
            };
            match found(&bytes, Durability::Fsync, false) {
                // The number of a batch is not in its sum. One that is too high shows in the batch after it.
                Found::Whole => assert!((ends[1] + 5..ends[1] + 13).contains(&at), "byte {at}"),
                Found::Damaged { offset: found } => {
                    assert!(found == offset || found == ends[batch] as u64, "byte {at}");
                }
                Found::Torn { .. } => panic!("byte {at} bit {bit} of {}", bytes.len()),
            }
        }
    }
}

#[test]
fn a_sealed_journal_is_never_torn() {
    let (bytes, ends) = three();
    let damaged = Found::Damaged {
        offset: ends[1] as u64,
    };
    assert_eq!(found(&bytes[..5_000], Durability::Fsync, true), damaged);
    assert_eq!(found(&bytes[..5_000], Durability::Os, true), damaged);
}

#[test]
fn without_syncs_what_follows_a_bad_batch_is_given_up() {
    let (mut bytes, ends) = three();
    bytes[ends[0] + 100] ^= 1;
    let offset = ends[0] as u64;
    assert_eq!(
        found(&bytes, Durability::Fsync, false),
        Found::Damaged { offset }
    );
    assert_eq!(found(&bytes, Durability::Os, false), Found::Torn { offset });
}

#[test]
fn what_was_never_finished_is_made_anew_and_what_holds_something_is_left_alone() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path();
    let make = |name: &str, bytes: &[u8]| {
        let file = path.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    };
    let clear = || {
        mend(path, Durability::Fsync).unwrap();
        path.join("version").exists()
    };
    for marker in [&b""[..], b"FJL", MAGIC] {
        make("version", marker);
        make("0.jnl", &[0; 5_000]);
        make("keyspaces/0/tables/0", b"names of keyspaces");
        make("keyspaces/2/current", b"nothing filed");
        assert!(!clear());
        assert!(!path.join("keyspaces").exists() && !path.join("0.jnl").exists());
    }
    make("version", MAGIC);
    make("0.jnl", &three().0);
    assert!(clear(), "something is written");
    make("0.jnl", &[0; 5_000]);
    make("keyspaces/2/tables/7", b"messages");
    assert!(clear(), "something is filed");
    std::fs::remove_dir_all(path.join("keyspaces")).unwrap();
    std::fs::rename(path.join("0.jnl"), path.join("4.jnl")).unwrap();
    assert!(clear(), "there have been others");
}
