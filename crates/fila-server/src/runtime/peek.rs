//! Looking at messages without leasing them.
//!
//! A peek reads a page of what is stored, away from the scheduler thread and from the readers that serve it, and then
//! asks the scheduler how those messages are: it knows which are durable, which are gone, and who has the others. Both
//! cost what the page costs, however deep the backlog is, and neither changes anything.
//!
//! Payloads are read before the scheduler is asked. So one that was missing though its message is still there is
//! damaged, and not gone.

use std::sync::Arc;

use bytes::Bytes;
use fila_core::MessageStatus;
use fila_store::record::DecodeError;
use fila_store::{
    Cursor, Damaged, Entry, FairnessKey, Loaded, Locator, MessageId, Payload, QueueId, ReadError,
    Shard,
};

use super::recover::report_damage;
use super::shards::Shards;

/// How many peeks read at the same time: what they hold in memory is bounded by this, and so is what they take of the
/// disk. Others wait for their turn.
pub(super) const PEEKS: usize = 4;

/// Bytes that one page shows, about: what its last message adds may come on top. Clients that are not told otherwise
/// read 4 MiB.
const SHOWN: u64 = 1 << 20;

/// Bytes that are read for one page, about. More than are shown, if payloads are cut.
const READ: u64 = 8 << 20;

/// What a message takes in a page beside what it carries: ids, times, and the frame around them.
const ITSELF: u64 = 256;

/// Which messages to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeekQuery {
    /// Only those of this key.
    pub fairness_key: Option<FairnessKey>,
    /// Only those that come after this place.
    pub after: Option<Locator>,
    /// The most.
    pub messages: usize,
    /// After how many bytes to cut payloads.
    pub payload_bytes: Option<usize>,
}

/// Some of the messages of a queue, by fairness key, and within a key in the order in which they were accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peeked {
    /// Those that are there.
    pub messages: Vec<PeekedMessage>,
    /// Where to go on; nowhere at the end.
    pub next: Option<Locator>,
    /// How many are there and cannot be read.
    pub damaged: usize,
}

/// A message that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeekedMessage {
    /// What is stored of it beside its payload.
    pub entry: Entry,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body, perhaps cut.
    pub body: Bytes,
    /// How it is.
    pub status: MessageStatus,
}

/// What a handle needs to read messages, whatever the engine. Blocks.
pub(super) trait Browse: Send + Sync + 'static {
    /// Reads a page.
    fn browse(&self, queue: QueueId, query: &PeekQuery) -> Result<Found, ReadError>;
}

impl<S: Shard> Browse for Shards<S> {
    fn browse(&self, queue: QueueId, query: &PeekQuery) -> Result<Found, ReadError> {
        let shard: Arc<S> = self.of(queue).ok_or(ReadError::Fenced { queue })?;
        read(&*shard, query)
    }
}

/// What was stored when it was read.
#[derive(Debug)]
pub(super) struct Found {
    messages: Vec<(Entry, Loaded)>,
    damaged: Vec<Damaged>,
    next: Option<Locator>,
    payload_bytes: Option<usize>,
}

impl Found {
    /// Returns the messages to ask the scheduler about.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let entries = self.messages.iter();
        entries.map(|(entry, _)| entry.clone()).collect()
    }

    /// Returns what is still there, given what the scheduler has said of each, and reports what cannot be read.
    pub(super) fn with(self, queue: QueueId, told: Vec<Option<MessageStatus>>) -> Peeked {
        let mut damaged = self.damaged;
        let mut messages = Vec::with_capacity(self.messages.len());
        for ((entry, loaded), status) in self.messages.into_iter().zip(told) {
            let Some(status) = status else {
                continue;
            };
            let error = match loaded {
                Loaded::Found(payload) => {
                    let (headers, body) = cut(payload, self.payload_bytes);
                    messages.push(PeekedMessage {
                        entry,
                        headers,
                        body,
                        status,
                    });
                    continue;
                }
                Loaded::Missing => DecodeError::Missing,
                Loaded::Damaged(error) => error,
            };
            damaged.push(Damaged {
                record: "payload",
                message: Some(entry.locator()),
                error,
            });
        }
        for found in &damaged {
            report_damage(queue, found);
        }
        Peeked {
            messages,
            next: self.next,
            damaged: damaged.len(),
        }
    }
}

fn read(shard: &impl Shard, query: &PeekQuery) -> Result<Found, ReadError> {
    let key = query.fairness_key.as_ref();
    let is_ours = |place: &Locator| key.is_none_or(|key| *key == place.fairness_key);
    let cursor = match (&query.after, key) {
        (Some(place), _) => Cursor::after(place),
        // No message has this id.
        (None, Some(key)) => Cursor::after(&Locator {
            fairness_key: key.clone(),
            id: MessageId::from_number(0),
        }),
        (None, None) => Cursor::start(),
    };
    let page = shard.scan(&cursor, query.messages)?;
    let damaged_places = page.damaged.iter().filter_map(|it| it.message.clone());
    let read_last = page.items.last().map(Entry::locator);
    let read_last = damaged_places.chain(read_last).max();
    let mut entries = page.items;
    entries.retain(|entry| is_ours(&entry.locator()));
    let fitting = fitting(&entries, query.payload_bytes);
    let is_stopped = fitting < entries.len();
    entries.truncate(fitting);

    let locators: Vec<Locator> = entries.iter().map(Entry::locator).collect();
    let payloads = shard.load(&locators)?;
    let last = match is_stopped {
        true => locators.into_iter().next_back(),
        false => read_last,
    };
    let is_more = is_stopped || page.next.is_some() && last.as_ref().is_some_and(is_ours);
    let mut damaged = page.damaged;
    // What lies behind the end of this page is found again by the next.
    damaged.retain(|found| {
        let place = found.message.as_ref();
        place.is_none_or(|place| is_ours(place) && last.as_ref() >= Some(place))
    });
    Ok(Found {
        messages: entries.into_iter().zip(payloads).collect(),
        damaged,
        next: last.filter(|_| is_more),
        payload_bytes: query.payload_bytes,
    })
}

/// Returns how many of these messages fit into a page: one at least.
fn fitting(entries: &[Entry], payload_bytes: Option<usize>) -> usize {
    let most = payload_bytes.map_or(u64::MAX, |most| most as u64);
    let (mut shown, mut read) = (0, 0);
    let mut fitting = 0;
    for entry in entries {
        if shown >= SHOWN || read >= READ {
            break;
        }
        fitting += 1;
        let (headers, body) = (entry.meta.sizes.headers, entry.meta.sizes.body);
        let (headers, body) = (u64::from(headers), u64::from(body));
        let name = entry.meta.deduplication_id.as_ref();
        let names = entry.meta.fairness_key.as_bytes().len();
        let names = names + name.map_or(0, |name| name.as_bytes().len());
        shown += ITSELF + names as u64 + headers + body.min(most);
        read += headers + body;
    }
    fitting
}

/// Takes headers and body out of a payload. What is cut keeps nothing of the rest in memory.
fn cut(payload: Payload, most: Option<usize>) -> (Vec<(String, String)>, Bytes) {
    let (headers, body) = payload.into_parts();
    match most {
        Some(most) if most < body.len() => (headers, Bytes::copy_from_slice(&body[..most])),
        Some(_) | None => (headers, body),
    }
}

#[cfg(test)]
mod tests {
    use fila_core::{Answer, Definition};
    use fila_store::{Batch, Engine, MemoryDisk, MemoryEngine, Meta, QueueName, Timestamp};

    use super::*;

    type MemoryShard = <MemoryEngine as Engine>::Shard;

    fn shard() -> MemoryShard {
        let engine = MemoryEngine::open(&MemoryDisk::default()).unwrap();
        let name = QueueName::parse("orders").unwrap();
        let definition = Definition::default().encode();
        let queue = engine.create_queue(&name, definition).unwrap();
        engine.claim(queue.id).unwrap()
    }

    fn key(name: &str) -> FairnessKey {
        FairnessKey::new(name.to_owned()).unwrap()
    }

    /// Stores messages of so many bytes, and returns their ids.
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
            fairness_key: None,
            after: None,
            messages,
            payload_bytes: None,
        }
    }

    fn ids(found: &Found) -> Vec<MessageId> {
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
            query.fairness_key = Some(key("b"));
            let mut found = pages(&shard, query);
            // Whether others follow is found out by looking.
            found.retain(|page| !page.is_empty());
            assert_eq!(found, expected);
        }
        let mut nobody = query(5);
        nobody.fairness_key = Some(key("nobody"));
        assert_eq!(pages(&shard, nobody), [[]]);
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
        use fila_core::{Broker, Command, Recovery, Settings};
        let (queue, epoch) = (shard.queue(), shard.epoch());
        let mut recovery = Recovery::new(queue, epoch, shard.generation(), Definition::default());
        let entries = shard.scan(&Cursor::start(), 1).unwrap().items;
        recovery.message(&entries[0]);
        let mut broker = Broker::new(Settings::default());
        let now = Timestamp::from_millis(7);
        broker.open(now, recovery);
        broker.handle(
            now,
            Command::Peek {
                queue,
                messages: entries,
                ticket: (),
            },
        );
        match broker.effects().answers.pop() {
            Some(((), Answer::Peeked(peeked))) => peeked[0].unwrap(),
            other => panic!("{other:?}"),
        }
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
}
