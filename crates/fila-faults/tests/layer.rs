//! The layer itself: it sees what is done, loses what may be lost, and keeps what may not.
#![cfg(test)] // helpers may unwrap, as tests do

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use fastrand::Rng;
use fila_faults::{Disk, FileSystem, Op, Watch};
use tempfile::tempdir;

const BOTH: [FileSystem; 2] = [FileSystem::Strict, FileSystem::Ordered];

/// Returns what may be left of a file after cuts at the end of some work, in many tries.
fn left(file_system: FileSystem, work: impl Fn(&Path)) -> BTreeSet<Option<Vec<u8>>> {
    let place = tempdir().unwrap();
    let watch = Watch::recording(place.path()).unwrap();
    work(watch.root());
    let recording = watch.finish();
    let mut disk = Disk::new(&recording, file_system);
    disk.advance(recording.ops.len());
    disk.compare(place.path()).unwrap();
    let mut rng = Rng::with_seed(7);
    (0..200)
        .map(|_| {
            let after = tempdir().unwrap();
            disk.cut(&mut rng, after.path()).unwrap();
            fs::read(after.path().join("file")).ok()
        })
        .collect()
}

#[test]
fn what_is_synced_with_its_directory_is_there() {
    for file_system in BOTH {
        let left = left(file_system, |root| {
            let mut file = File::create(root.join("file")).unwrap();
            file.write_all(b"kept").unwrap();
            file.sync_data().unwrap();
            File::open(root).unwrap().sync_all().unwrap();
        });
        assert_eq!(left, [Some(b"kept".to_vec())].into());
    }
}

#[test]
fn a_name_that_is_not_synced_may_be_lost_with_all_it_names() {
    let work = |root: &Path| {
        let mut file = File::create(root.join("file")).unwrap();
        file.write_all(b"kept").unwrap();
        file.sync_all().unwrap();
    };
    let kept = Some(b"kept".to_vec());
    assert_eq!(left(FileSystem::Strict, work), [None, kept.clone()].into());
    assert_eq!(left(FileSystem::Ordered, work), [kept].into());
}

#[test]
fn an_unsynced_write_is_kept_lost_or_torn_by_sectors_and_leaves_the_rest() {
    for file_system in BOTH {
        let left = left(file_system, |root| {
            let mut file = File::create(root.join("file")).unwrap();
            file.write_all(&[1; 700]).unwrap();
            file.sync_all().unwrap();
            File::open(root).unwrap().sync_all().unwrap();
            file.write_all(&[2; 900]).unwrap();
        });
        let left: Vec<Vec<u8>> = left.into_iter().flatten().collect();
        assert!(left.iter().all(|bytes| bytes[..700] == [1; 700]));
        assert!(left.iter().any(|bytes| bytes.len() == 700), "lost");
        assert!(left.iter().any(|bytes| bytes[700..] == [2; 900]), "kept");
        let torn = |bytes: &Vec<u8>| bytes.len() == 1_600 && bytes[1_023] == 0 && bytes[1_024] == 2;
        assert!(left.iter().any(torn), "torn");
        let whole = |bytes: &Vec<u8>| {
            bytes[700..bytes.len().min(1_024)]
                .iter()
                .collect::<BTreeSet<_>>()
                .len()
                <= 1
        };
        assert!(left.iter().all(whole), "a sector is never half written");
    }
}

#[test]
fn a_rename_is_seen_however_it_is_made() {
    for file_system in BOTH {
        let left = left(file_system, |root| {
            fs::write(root.join("file"), "old").unwrap();
            let mut new = tempfile::NamedTempFile::new_in(root).unwrap();
            new.write_all(b"new").unwrap();
            new.as_file().sync_all().unwrap();
            // Renames with a call of its own, past the C library.
            new.persist(root.join("file")).unwrap();
            File::open(root).unwrap().sync_all().unwrap();
        });
        assert_eq!(left, [Some(b"new".to_vec())].into());
    }
}

#[test]
fn what_is_removed_and_not_synced_may_come_back() {
    let left = left(FileSystem::Strict, |root| {
        fs::write(root.join("file"), "old").unwrap();
        File::open(root.join("file")).unwrap().sync_all().unwrap();
        File::open(root).unwrap().sync_all().unwrap();
        fs::remove_file(root.join("file")).unwrap();
    });
    assert_eq!(left, [None, Some(b"old".to_vec())].into());
}

#[test]
fn a_sync_covers_what_came_before_it_began() {
    let place = tempdir().unwrap();
    let watch = Watch::recording(place.path()).unwrap();
    let mut file = File::create(watch.root().join("file")).unwrap();
    file.write_all(b"a").unwrap();
    let held = watch.hold_syncs();
    std::thread::scope(|scope| {
        let syncing = file.try_clone().unwrap();
        scope.spawn(move || syncing.sync_all().unwrap());
        assert!(held.await_waiting(1, std::time::Duration::from_secs(20)));
        file.write_all(b"b").unwrap();
        drop(held);
    });
    let recording = watch.finish();
    let written = |op: &Op| matches!(op, Op::Write { .. });
    let second = recording.ops.iter().rposition(written).unwrap();
    let Some(Op::Sync { upto, .. }) = recording.ops.last() else {
        panic!("{:?}", recording.ops);
    };
    assert!(*upto <= second, "{:?}", recording.ops);
}

#[test]
fn a_directory_that_is_not_watched_is_left_alone() {
    let (watched, free) = (tempdir().unwrap(), tempdir().unwrap());
    let watch = Watch::new(watched.path()).unwrap();
    watch.set_room(Some(0));
    watch.set_unreadable(true);
    fs::write(free.path().join("file"), "there").unwrap();
    assert_eq!(fs::read(free.path().join("file")).unwrap(), b"there");
    let refused = fs::write(watched.path().join("file"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
    watch.set_room(Some(3));
    let refused = fs::write(watched.path().join("file"), "1234").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
    assert!(fs::read(watched.path().join("file")).is_err());
    drop(watch);
    assert_eq!(fs::read(watched.path().join("file")).unwrap(), b"123");
}

/// The kernel gives the number of a file that is gone to the next one, wherever that is.
#[test]
fn a_file_elsewhere_with_the_number_of_one_that_is_gone_is_left_alone() {
    let (inside, outside) = (tempdir().unwrap(), tempdir().unwrap());
    let watch = Watch::new(inside.path()).unwrap();
    for gone in ["replaced", "removed"] {
        let path = watch.root().join("file");
        fs::write(&path, "old").unwrap();
        if gone == "replaced" {
            fs::write(watch.root().join("new"), "new").unwrap();
            fs::rename(watch.root().join("new"), &path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        watch.set_room(Some(0));
        for other in 0..50 {
            let other = outside.path().join(format!("{gone}-{other}"));
            fs::write(other, "not watched, so there is room").unwrap();
        }
        watch.set_room(None);
    }
}
