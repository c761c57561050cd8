//! Looking at messages without leasing them.
//!
//! A peek reads a page of what is stored, away from the scheduler thread and from the readers that serve it, and then
//! asks the scheduler how those messages are: it knows which are durable, which are gone, and who has the others. Both
//! cost what the page costs, however deep the backlog is, and neither changes anything.
//!
//! Payloads are read before the scheduler is asked. So one that was missing though its message is still there is
//! damaged, and not gone.

use bytes::Bytes;
use fila_core::MessageStatus;
use fila_store::record::DecodeError;
use fila_store::{
    Cursor, Damaged, FairnessKey, Loaded, Locator, MessageId, Payload, QueueId, ReadError, Shard,
    StoredMessage,
};

use crate::runtime::queues::opening::report_damage;

/// How many peeks read at the same time: what they hold in memory is bounded by this, and so is what they take of the
/// disk. Others wait for their turn.
pub(crate) const PEEKS: usize = 4;

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
pub struct PeekedMessage {
    /// What is stored of it beside its payload.
    pub entry: StoredMessage,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body, perhaps cut.
    pub body: Bytes,
    /// How it is.
    pub status: MessageStatus,
}

/// What was stored when it was read.
#[derive(Debug)]
pub(crate) struct StoredPage {
    pub(crate) messages: Vec<(StoredMessage, Loaded)>,
    damaged: Vec<Damaged>,
    pub(crate) next: Option<Locator>,
    payload_bytes: Option<usize>,
}

impl StoredPage {
    /// Returns the messages to ask the scheduler about.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &StoredMessage> {
        self.messages.iter().map(|(entry, _)| entry)
    }

    /// Returns what is still there, given what the scheduler has said of each, and reports what cannot be read.
    pub(crate) fn with(self, queue: QueueId, told: Vec<Option<MessageStatus>>) -> Peeked {
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

pub(crate) fn read(shard: &dyn Shard, query: &PeekQuery) -> Result<StoredPage, ReadError> {
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
    let read_last = page.items.last().map(StoredMessage::locator);
    let read_last = damaged_places.chain(read_last).max();
    let mut entries = page.items;
    entries.retain(|entry| is_ours(&entry.locator()));
    let fitting = fitting(&entries, query.payload_bytes);
    let is_stopped = fitting < entries.len();
    entries.truncate(fitting);

    let locators: Vec<Locator> = entries.iter().map(StoredMessage::locator).collect();
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
    Ok(StoredPage {
        messages: entries.into_iter().zip(payloads).collect(),
        damaged,
        next: last.filter(|_| is_more),
        payload_bytes: query.payload_bytes,
    })
}

/// Returns how many of these messages fit into a page: one at least.
fn fitting(entries: &[StoredMessage], payload_bytes: Option<usize>) -> usize {
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
        let names = entry.meta.schedule.fairness_key.as_bytes().len();
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
mod tests;
