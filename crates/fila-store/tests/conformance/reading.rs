//! Reading: in order, page by page, each page a consistent snapshot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fila_store::{Batch, Cursor, Engine, FairnessKey, Limit, Loaded, Shard};

use crate::world::{Place, all, body, claim, id, ids, key, locator, meta, payload, put};

/// Keys that sort wrongly unless they are escaped.
const AWKWARD: [&[u8]; 8] = [
    b"",
    b"\0",
    b"\0\0",
    b"\0\xff",
    b"a",
    b"a\0",
    b"a\x01",
    b"\xff\xff",
];

pub(crate) fn messages_come_in_the_order_of_key_and_id<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let mut batch = Batch::new();
    let mut expected = Vec::new();
    for counter in (0..40).rev() {
        let fairness_key = AWKWARD[counter as usize * 5 % AWKWARD.len()];
        let mut known = meta("");
        known.schedule.fairness_key = FairnessKey::new(fairness_key).unwrap();
        expected.push((known.schedule.fairness_key.clone(), id(&shard, counter)));
        batch.put(id(&shard, counter), known, payload("body"));
    }
    shard.commit(&batch).unwrap();
    expected.sort();
    let found = all(&shard, 7).into_iter();
    let found: Vec<_> = found
        .map(|entry| (entry.meta.schedule.fairness_key, entry.id))
        .collect();
    assert_eq!(found, expected);
}

pub(crate) fn a_scan_goes_on_where_it_stopped<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let expected = put(&shard, "k", 0..10);
    for limit in [1, 3, 5, 10, 11] {
        let found: Vec<_> = all(&shard, limit).iter().map(|entry| entry.id).collect();
        assert_eq!(found, expected, "{limit} at a time");
    }
    let exact = shard.scan(&Cursor::start(), 10).unwrap();
    assert_eq!((exact.items.len(), exact.next), (10, None));
    let part = shard.scan(&Cursor::start(), 4).unwrap();
    assert_eq!(part.items.len(), 4);
    assert!(part.next.is_some());
}

pub(crate) fn a_cursor_of_a_deleted_message_still_holds_its_place<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let messages = put(&shard, "k", 0..4);
    let next = shard.scan(&Cursor::start(), 2).unwrap().next.unwrap();
    assert_eq!(next, Cursor::after(&locator("k", messages[1])));
    let mut batch = Batch::new();
    for message in &messages[..3] {
        batch.delete(locator("k", *message));
    }
    shard.commit(&batch).unwrap();
    let rest = shard.scan(&next, 10).unwrap();
    assert_eq!(rest.items[0].id, messages[3]);
    assert_eq!(rest.items.len(), 1);
}

pub(crate) fn a_scan_beside_commits_misses_nothing_that_stays<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    // Even ones stay, odd ones come and go.
    let stay = put(&shard, "k", (0..200).step_by(2));
    let turn = |turn: u64| {
        let come = put(&shard, "k", [turn * 2 % 200 + 1]);
        let mut batch = Batch::new();
        batch.delete(locator("k", come[0]));
        shard.commit(&batch).unwrap();
    };
    beside(turn, || {
        let mut found = ids(&shard);
        assert!(found.is_sorted_by(|a, b| a < b), "nothing comes twice");
        found.retain(|message| message.counter() % 2 == 0);
        assert_eq!(found, stay);
    });
}

/// Reads again and again while another thread takes its turns at writing, and once more when it is done.
fn beside(write: impl Fn(u64) + Send, read: impl Fn()) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..300).for_each(write);
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            read();
        }
        read();
    });
}

pub(crate) fn a_page_is_of_one_moment<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    // A hundred messages at a time, in as many keys, and all or none of them.
    let turn = |turn: u64| {
        let mut batch = Batch::new();
        for counter in 0..100 {
            let (message, fairness_key) = (id(&shard, counter), counter.to_string());
            if turn.is_multiple_of(2) {
                batch.put(message, meta(&fairness_key), payload("body"));
            } else {
                batch.delete(locator(&fairness_key, message));
            }
        }
        shard.commit(&batch).unwrap();
    };
    beside(turn, || {
        let found = all(&shard, 1_000).len();
        assert!(found == 0 || found == 100, "{found} of a hundred");
    });
}

pub(crate) fn a_backlog_is_one_keys_messages_after_an_id<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    put(&shard, "j", 0..5);
    let messages = put(&shard, "k", 10..20);
    put(&shard, "k\0", 20..25);
    let limit = |messages| Limit {
        messages,
        bytes: usize::MAX,
    };
    let page = shard
        .backlog(&key("k"), Some(messages[2]), limit(4))
        .unwrap();
    let found: Vec<_> = page.items.iter().map(|message| message.id).collect();
    assert_eq!(found, messages[3..7]);
    assert_eq!(page.next, Some(messages[6]));
    for message in &page.items {
        let payload = payload(message.id.counter().to_string());
        assert_eq!(message.meta.sizes, payload.sizes());
        assert_eq!(message.payload, Some(payload));
    }
    let rest = shard.backlog(&key("k"), page.next, limit(100)).unwrap();
    assert_eq!((rest.items.len(), rest.next), (3, None));
    let none = shard.backlog(&key("i"), None, limit(100)).unwrap();
    assert_eq!((none.items, none.next), (vec![], None));
}

pub(crate) fn a_backlog_stops_at_its_bytes<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let mut batch = Batch::new();
    for counter in 0..10 {
        batch.put(id(&shard, counter), meta("k"), payload(vec![0; 1000]));
    }
    shard.commit(&batch).unwrap();
    let read = |bytes| {
        let messages = 100;
        let page = shard.backlog(&key("k"), None, Limit { messages, bytes });
        page.unwrap().items.len()
    };
    assert_eq!(read(2_500), 3, "as soon as there is enough");
    assert_eq!(
        read(0),
        1,
        "one at least, or a reader would make no progress"
    );
}

pub(crate) fn payloads_come_in_the_order_asked_for<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let shard = claim(&engine, "orders");
    let messages = put(&shard, "k", 0..3);
    let asked = [
        locator("k", messages[2]),
        locator("other", messages[1]),
        locator("k", messages[0]),
    ];
    assert_eq!(
        shard.load(&asked).unwrap(),
        [
            Loaded::Found(payload("2")),
            Loaded::Missing,
            Loaded::Found(payload("0")),
        ]
    );
}

pub(crate) fn queues_do_not_see_each_other<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let (a, b) = (claim(&engine, "a"), claim(&engine, "b"));
    let of_a = put(&a, "k", [1]);
    let of_b = put(&b, "k", [1, 2]);
    assert_eq!((ids(&a), ids(&b)), (of_a.clone(), of_b.clone()));
    let mut batch = Batch::new();
    batch.delete(locator("k", of_a[0]));
    a.commit(&batch).unwrap();
    assert_eq!(ids(&b), of_b);
    assert_eq!(body(&a, "k", of_b[1]), None);
    engine.delete_queue(a.queue()).unwrap();
    assert_eq!(ids(&b), of_b);
}
