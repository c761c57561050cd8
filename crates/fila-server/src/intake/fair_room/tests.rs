use std::collections::BTreeMap;

use futures_util::FutureExt;

use super::*;

const KIB: u64 = 1 << 10;

type Named = Arc<FairRoom<&'static str>>;

fn full(capacity: u64) -> Named {
    let room = Arc::new(FairRoom::new(capacity));
    assert!(room.try_take(capacity, None));
    room
}

fn wait(room: &Named, key: &'static str, bytes: u64) -> Turn<&'static str> {
    room.wait(&key, bytes, None).unwrap()
}

/// Gives back room piece by piece until a waiter has its own, and returns how many others got theirs before.
fn others_before(
    room: &Named,
    others: &mut Vec<Turn<&'static str>>,
    waiter: &mut Turn<&'static str>,
    piece: u64,
) -> usize {
    let mut before = 0;
    loop {
        room.give_back(piece, None);
        if waiter.now_or_never().is_some() {
            return before;
        }
        let waiting = others.len();
        others.retain_mut(|turn| turn.now_or_never().is_none());
        before += waiting - others.len();
    }
}

#[test]
fn a_key_with_a_thousand_waiters_delays_another_by_two_of_them() {
    for piece in [KIB, 10 * KIB, 100 * KIB] {
        let room = full(1_000 * KIB);
        let mut noisy: Vec<_> = (0..1_000).map(|_| wait(&room, "noisy", piece)).collect();
        // The noisy key is in the middle of its turn.
        room.give_back(piece, None);
        let mut quiet = wait(&room, "quiet", piece);
        let before = others_before(&room, &mut noisy, &mut quiet, piece);
        let most = 2 + usize::try_from(2 * QUANTUM / piece).unwrap();
        assert!(before <= most, "{before} of {piece} bytes");
    }
}

#[test]
fn keys_that_wait_get_equal_bytes_however_many_waiters_they_have() {
    let room = full(64 * KIB);
    let mut waiting: Vec<(&str, Turn<_>)> = Vec::new();
    for _ in 0..400 {
        waiting.push(("large", wait(&room, "large", 8 * KIB)));
    }
    for _ in 0..4_000 {
        waiting.push(("small", wait(&room, "small", KIB)));
    }
    let mut got: BTreeMap<&str, u64> = BTreeMap::new();
    for _ in 0..1_000 {
        room.give_back(KIB, None);
        waiting.retain_mut(|(key, turn)| {
            let is_waiting = turn.now_or_never().is_none();
            if !is_waiting {
                *got.entry(key).or_default() += if *key == "large" { 8 } else { 1 };
            }
            is_waiting
        });
    }
    assert!(got["large"].abs_diff(got["small"]) <= 24, "{got:?}");
    assert_eq!(got["large"] + got["small"] + room.free_now() / KIB, 1_000);
}

#[test]
fn nothing_is_taken_past_a_waiter() {
    let room = full(10);
    let mut large = wait(&room, "a", 8);
    room.give_back(5, None);
    assert!(!room.try_take(1, None), "the waiter needs all of it");
    room.give_back(3, None);
    assert_eq!((&mut large).now_or_never(), Some(Ok(())));
    room.give_back(2, None);
    assert!(room.try_take(2, None));
    assert_eq!(room.used(), 10);
}

#[test]
fn a_waiter_that_leaves_takes_nothing_and_holds_up_nothing() {
    let room = full(10);
    let (first, mut second) = (wait(&room, "a", 9), wait(&room, "a", 1));
    room.give_back(1, None);
    assert_eq!((&mut second).now_or_never(), None);
    drop(first);
    assert_eq!((&mut second).now_or_never(), Some(Ok(())));
    // One that leaves just after it was granted gives it back.
    let third = wait(&room, "b", 4);
    room.give_back(4, None);
    assert_eq!(room.used(), 10);
    drop(third);
    assert_eq!(room.used(), 6);
    assert!(room.try_take(4, None));
    drop(second);
    assert_eq!(room.used(), 10);
}

#[test]
fn a_key_that_has_its_part_steps_aside_for_others() {
    let room: Named = Arc::new(FairRoom::new(100));
    let (greedy, modest) = (Arc::new(Part::new("greedy")), Arc::new(Part::new("modest")));
    for _ in 0..7 {
        assert!(room.try_take(10, Some(&greedy)));
    }
    assert!(
        !room.try_take(10, Some(&greedy)),
        "80 are more than three times 20"
    );
    let mut more = room.wait(&"greedy", 10, Some(greedy.clone())).unwrap();
    let mut first = room.wait(&"modest", 20, Some(modest.clone())).unwrap();
    assert_eq!(
        (&mut first).now_or_never(),
        Some(Ok(())),
        "20 are no more than three times 10"
    );
    assert_eq!((&mut more).now_or_never(), None);
    room.give_back(10, Some(&greedy));
    assert_eq!(
        (&mut more).now_or_never(),
        None,
        "60 are more than three times 20, less 10"
    );
    room.give_back(20, Some(&modest));
    assert_eq!((&mut more).now_or_never(), Some(Ok(())));
    assert_eq!(room.used(), 70);
}

#[test]
fn greedy_keys_leave_room_for_a_newcomer() {
    let room: Arc<FairRoom<u64>> = Arc::new(FairRoom::new(1_000 * KIB));
    let parts: Vec<_> = (0..100).map(|key| Arc::new(Part::new(key))).collect();
    // They take in turns, until none gets more.
    while parts
        .iter()
        .filter(|part| room.try_take(KIB, Some(part)))
        .count()
        > 0
    {}
    let mut waiting = Vec::new();
    for part in &parts {
        assert!(!room.do_others_wait(&0));
        waiting.push(room.wait(&0, KIB, Some(part.clone())).unwrap());
    }
    assert!(room.do_others_wait(&1));
    let part = Arc::new(Part::new(1_000));
    let newcomer = room.wait(&1_000, KIB, Some(part)).unwrap();
    assert_eq!(newcomer.now_or_never(), Some(Ok(())));
}

#[test]
fn a_closed_room_lets_waiters_go_and_takes_no_more() {
    let room = full(10);
    let mut waiter = wait(&room, "a", 5);
    room.close();
    room.close();
    assert_eq!((&mut waiter).now_or_never(), Some(Err(Closed)));
    assert!(!room.try_take(0, None));
    assert!(room.wait(&"a", 1, None).is_err());
    room.give_back(10, None);
    assert_eq!(room.used(), 0);
}

/// Threads take and give back at random; in the end all room is back, and no waiter was forgotten.
#[test]
fn room_is_neither_lost_nor_made_and_no_waiter_is_forgotten() {
    let room: Arc<FairRoom<u64>> = Arc::new(FairRoom::new(64 * KIB));
    std::thread::scope(|scope| {
        for key in 0..8_u64 {
            let room = room.clone();
            scope.spawn(move || {
                let part = Arc::new(Part::new(key));
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                for step in 0..2_000_u64 {
                    let bytes = (step * 7_919 + key * 104_729) % (20 * KIB) + 1;
                    let part = (key % 2 == 0).then(|| part.clone());
                    if !room.try_take(bytes, part.as_deref()) {
                        let turn = room.wait(&key, bytes, part.clone()).unwrap();
                        if step % 5 == 0 {
                            drop(turn);
                            continue;
                        }
                        runtime.block_on(turn).unwrap();
                    }
                    assert!(room.used() <= room.capacity());
                    room.give_back(bytes, part.as_deref());
                }
            });
        }
    });
    assert_eq!(room.used(), 0);
    assert!(room.try_take(64 * KIB, None));
}

impl<K: Clone + Eq + Hash> FairRoom<K> {
    fn free_now(&self) -> u64 {
        self.capacity - self.used()
    }
}
