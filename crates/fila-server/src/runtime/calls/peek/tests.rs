use fila_core::QueueSettings;
use fila_store::{
    Batch, CommitError, Engine, Epoch, FairnessKey, Generation, Limit, MemoryDisk, MemoryEngine,
    MessageId, Meta, Page, QueueName, Remembered, RememberedName, Timestamp,
};

use super::*;

type MemoryShard = <MemoryEngine as Engine>::Shard;

fn shard() -> MemoryShard {
    let engine = MemoryEngine::open(&MemoryDisk::default()).unwrap();
    let name = QueueName::parse("orders").unwrap();
    let definition = QueueSettings::default().encode();
    let queue = engine.create_queue(&name, definition).unwrap();
    engine.claim(queue.id).unwrap()
}

fn key(name: &str) -> FairnessKey {
    FairnessKey::new(name.to_owned()).unwrap()
}

/// Stores messages with bodies of these sizes, and returns their ids.
fn store(shard: &MemoryShard, name: &str, from: u64, sizes: &[usize]) -> Vec<MessageId> {
    let mut batch = Batch::new();
    let ids = (from..).zip(sizes).map(|(counter, &size)| {
        let id = MessageId::new(shard.epoch(), counter).unwrap();
        let meta = Meta::new(key(name), Timestamp::from_millis(7));
        let payload = Payload::new(Vec::new(), vec![b'x'; size]).unwrap();
        batch.put(id, meta, payload);
        id
    });
    let ids: Vec<MessageId> = ids.collect();
    shard.commit(&batch).unwrap();
    ids
}

fn query(messages: usize) -> PeekQuery {
    PeekQuery {
        keys: KeySelection::All,
        after: None,
        messages,
        payload_bytes: None,
    }
}

fn ids(found: &StoredPage) -> Vec<MessageId> {
    found.messages.iter().map(|(entry, _)| entry.id).collect()
}

/// Reads page after page, and returns the ids of each.
fn pages(shard: &MemoryShard, mut query: PeekQuery) -> Vec<Vec<MessageId>> {
    let mut pages = Vec::new();
    loop {
        let found = read(shard, &query).unwrap();
        pages.push(ids(&found));
        match found.next {
            Some(next) => query.after = Some(next),
            None => return pages,
        }
    }
}

#[test]
fn pages_go_on_where_the_last_one_ended_and_end_with_the_last_message() {
    let shard = shard();
    let b = store(&shard, "b", 0, &[1, 1]);
    let a = store(&shard, "a", 2, &[1, 1]);
    let (two, three) = (pages(&shard, query(2)), pages(&shard, query(3)));
    assert_eq!(two, [a.clone(), b.clone()]);
    assert_eq!(three, [vec![a[0], a[1], b[0]], vec![b[1]]]);
}

#[test]
fn a_key_is_read_alone_and_its_last_page_is_the_last() {
    let shard = shard();
    store(&shard, "a", 0, &[1; 3]);
    let b = store(&shard, "b", 10, &[1; 4]);
    store(&shard, "ba", 20, &[1; 3]);
    for (size, expected) in [
        (2, vec![b[..2].to_vec(), b[2..].to_vec()]),
        (3, vec![b[..3].to_vec(), b[3..].to_vec()]),
        (9, vec![b.clone()]),
    ] {
        let mut query = query(size);
        query.keys = KeySelection::Key(key("b"));
        let mut found = pages(&shard, query);
        // Whether others follow is found out by looking.
        found.retain(|page| !page.is_empty());
        assert_eq!(found, expected);
    }
    let mut nobody = query(5);
    nobody.keys = KeySelection::Key(key("nobody"));
    assert_eq!(pages(&shard, nobody), [[]]);
}

fn within(group: &str, messages: usize) -> PeekQuery {
    PeekQuery {
        keys: KeySelection::Within {
            group: key(group),
            separator: fila_core::KeySeparator::default(),
        },
        ..query(messages)
    }
}

#[test]
fn a_group_is_read_with_all_its_levels_and_the_key_of_its_name() {
    let shard = shard();
    let mut expected = Vec::new();
    for (at, (name, is_within)) in [
        ("acm", false),
        ("acme", true),
        ("acme!", false),
        ("acme-2", false),
        ("acme.b/c", false),
        // Keys of a time without a separator, or with another one: they are no paths, so they are in no group.
        ("acme/", false),
        ("acme//x", false),
        ("acme/\0", true),
        ("acme/a", true),
        ("acme/a/b/c", true),
        ("acme/a/b/c/d", false),
        ("acme/ä", true),
        ("acme0", false),
        ("acmes/a", false),
        ("b/acme", false),
    ]
    .into_iter()
    .enumerate()
    {
        let stored = store(&shard, name, 10 * at as u64, &[1; 3]);
        if is_within {
            expected.extend(stored);
        }
    }
    for size in 1..=40 {
        let found = pages(&shard, within("acme", size));
        assert!(found.iter().all(|page| page.len() <= size));
        assert_eq!(found.concat(), expected, "pages of {size}");
    }
    let of_b = pages(&shard, within("acme/a", 100)).concat();
    assert_eq!(of_b, expected[6..12], "the group below, and its own key");
    assert_eq!(pages(&shard, within("nobody", 5)), [[]]);
    let longest = "x".repeat(FairnessKey::MAX);
    assert_eq!(pages(&shard, within(&longest, 5)), [[]]);
}

/// Counts the messages that a page looks at.
#[test]
fn what_lies_between_a_key_and_its_group_is_skipped() {
    let shard = shard();
    let own = store(&shard, "acme", 0, &[1]);
    store(&shard, "acme-2", 1_000, &[1; 500]);
    let member = store(&shard, "acme/a", 2_000, &[1]);
    store(&shard, "b", 3_000, &[1; 500]);
    let expected = vec![own[0], member[0]];
    assert_eq!(pages(&shard, within("acme", 4)), [expected]);
}

#[test]
fn a_page_ends_with_the_message_that_takes_it_over_its_bytes() {
    let shard = shard();
    let all = store(&shard, "a", 0, &[600 << 10, 600 << 10, 3 << 20, 1]);
    let expected = [vec![all[0], all[1]], vec![all[2]], vec![all[3]]];
    assert_eq!(pages(&shard, query(100)), expected);
}

#[test]
fn payloads_are_cut_and_what_is_read_for_that_is_bounded_as_well() {
    let shard = shard();
    let all = store(&shard, "a", 0, &[3 << 20; 5]);
    let mut query = query(100);
    query.payload_bytes = Some(4);
    let expected = [all[..3].to_vec(), all[3..].to_vec()];
    assert_eq!(pages(&shard, query.clone()), expected);
    let found = read(&shard, &query).unwrap();
    let Loaded::Found(payload) = found.messages[0].1.clone() else {
        panic!("it was stored");
    };
    let (_, body) = cut(payload.clone(), query.payload_bytes);
    assert_eq!(&body[..], b"xxxx");
    assert_eq!(cut(payload, Some(usize::MAX)).1.len(), 3 << 20);
}

/// Returns the status of a message that is ready, as the core says it.
fn ready(shard: &MemoryShard) -> MessageStatus {
    use fila_core::{Broker, Recovery, Settings};
    let (queue, epoch) = (shard.queue(), shard.epoch());
    let mut recovery = Recovery::new(queue, epoch, shard.generation(), QueueSettings::default());
    let entries = shard.scan(&Cursor::start(), 1).unwrap().items;
    recovery.message(&entries[0]);
    let mut broker: Broker<()> = Broker::new(Settings::default());
    let now = Timestamp::from_millis(7);
    broker.open(now, recovery);
    broker.peek(now, queue, &entries).unwrap()[0].unwrap()
}

#[test]
fn a_payload_that_is_missing_is_damaged_if_its_message_is_there_and_else_gone() {
    let shard = shard();
    store(&shard, "a", 0, &[1, 1, 1]);
    let status = ready(&shard);
    let mut found = read(&shard, &query(10)).unwrap();
    found.messages[0].1 = Loaded::Missing;
    found.messages[1].1 = Loaded::Missing;
    let peeked = found.with(shard.queue(), vec![None, Some(status), Some(status)]);
    assert_eq!((peeked.messages.len(), peeked.damaged), (1, 1));
}

/// A store in which some records of messages and some payloads are damaged.
struct Scarred {
    shard: MemoryShard,
    messages: Vec<MessageId>,
    payloads: Vec<MessageId>,
}

impl Shard for Scarred {
    fn queue(&self) -> QueueId {
        self.shard.queue()
    }

    fn epoch(&self) -> Epoch {
        self.shard.epoch()
    }

    fn generation(&self) -> Generation {
        self.shard.generation()
    }

    fn commit(&self, batch: &Batch) -> Result<(), CommitError> {
        self.shard.commit(batch)
    }

    fn load(&self, messages: &[Locator]) -> Result<Vec<Loaded>, ReadError> {
        let loaded = self.shard.load(messages)?.into_iter();
        let damaged = || Loaded::Damaged(DecodeError::Missing);
        let loaded = messages.iter().zip(loaded);
        Ok(loaded
            .map(|(place, loaded)| match self.payloads.contains(&place.id) {
                true => damaged(),
                false => loaded,
            })
            .collect())
    }

    fn scan(&self, after: &Cursor, limit: usize) -> Result<Page<StoredMessage, Cursor>, ReadError> {
        let mut page = self.shard.scan(after, limit)?;
        let is_damaged = |entry: &&StoredMessage| self.messages.contains(&entry.id);
        let damaged = page.items.iter().filter(is_damaged);
        page.damaged = damaged
            .map(|entry| Damaged {
                record: "message",
                message: Some(entry.locator()),
                error: DecodeError::Missing,
            })
            .collect();
        page.items.retain(|entry| !is_damaged(&entry));
        Ok(page)
    }

    fn backlog(
        &self,
        key: &FairnessKey,
        after: Option<MessageId>,
        limit: Limit,
    ) -> Result<Page<StoredMessage, MessageId>, ReadError> {
        self.shard.backlog(key, after, limit)
    }

    fn deduplicated(
        &self,
        id: &RememberedName,
        now: Timestamp,
    ) -> Result<Option<MessageId>, ReadError> {
        self.shard.deduplicated(id, now)
    }

    fn remembered(
        &self,
        after: Option<&RememberedName>,
        limit: usize,
    ) -> Result<Page<Remembered, RememberedName>, ReadError> {
        self.shard.remembered(after, limit)
    }
}

#[test]
fn what_is_damaged_is_counted_once_and_not_shown_and_does_not_end_the_pages() {
    let shard = shard();
    let large = 600 << 10;
    // The first page ends by its bytes with the second message, in front of damage that it has seen.
    let all = store(&shard, "a", 0, &[large, large, 1, 1, 1, 1, 1, 1]);
    let other = store(&shard, "b", 8, &[1]);
    let status = ready(&shard);
    let scarred = Scarred {
        shard,
        messages: vec![all[3], all[6], all[7], other[0]],
        payloads: vec![all[5]],
    };
    let mut query = query(7);
    query.keys = KeySelection::Key(key("a"));
    let (mut shown, mut damaged) = (Vec::new(), Vec::new());
    loop {
        let found = read(&scarred, &query).unwrap();
        let statuses = vec![Some(status); found.messages.len()];
        let peeked = found.with(scarred.queue(), statuses);
        shown.extend(peeked.messages.iter().map(|it| it.entry.id));
        damaged.push(peeked.damaged);
        match peeked.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    assert_eq!(shown, [all[0], all[1], all[2], all[4]]);
    assert_eq!(damaged, [0, 4]);
}
