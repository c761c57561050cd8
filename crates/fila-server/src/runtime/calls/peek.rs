//! Peeks: they show messages without leasing them.
//!
//! A peek first reads a page of stored messages, on a thread of its own. Then it asks the scheduler thread for their
//! status: which are durable, which are gone, and which are leased. The cost of both steps depends on the page, not on
//! the depth of the backlog, and neither changes anything.
//!
//! Payloads are read before the scheduler thread is asked. So if a payload is missing and the message still exists, the
//! payload is damaged.

use bytes::Bytes;
use fila_core::MessageStatus;
use fila_store::record::DecodeError;
use fila_store::{
    Cursor, Damaged, Loaded, Locator, Payload, QueueId, ReadError, Shard, StoredMessage,
};

use super::key_selection::{KeySelection, Stretch};
use crate::runtime::queues::opening::report_damage;

/// How many peeks read at the same time. This bounds their memory and their share of the disk. Other peeks wait.
pub(crate) const PEEKS: usize = 4;

/// About how many bytes one page shows: the last message may exceed it. gRPC clients read 4 MiB by default.
const SHOWN: u64 = 1 << 20;

/// About how many bytes are read for one page. If payloads are cut, more bytes are read than shown.
const READ: u64 = 8 << 20;

/// The bytes of a message in a page besides its headers, body and names: ids, times, and framing.
const SHOWN_OVERHEAD: u64 = 256;

/// Which messages to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeekQuery {
    /// Only messages of these keys.
    pub keys: KeySelection,
    /// Only messages after this one.
    pub after: Option<Locator>,
    /// The most messages.
    pub messages: usize,
    /// After how many bytes to cut payloads.
    pub payload_bytes: Option<usize>,
}

/// A page of a queue's messages, by fairness key, and within a key in the order in which they were accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// The messages.
    pub messages: Vec<PeekedMessage>,
    /// The message after which the next page begins. `None` at the end of the queue.
    pub next: Option<Locator>,
    /// How many messages of the page cannot be read.
    pub damaged: usize,
}

/// A message of a peek.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeekedMessage {
    /// Its stored entry, without the payload.
    pub entry: StoredMessage,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body, cut to the length that the query asks for.
    pub body: Bytes,
    /// Its status.
    pub status: MessageStatus,
}

/// A page of stored messages.
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

    /// Adds the status of each message, drops messages without one, and logs those that cannot be read.
    pub(crate) fn with(self, queue: QueueId, statuses: Vec<Option<MessageStatus>>) -> Peeked {
        let mut damaged = self.damaged;
        let mut messages = Vec::with_capacity(self.messages.len());
        for ((entry, loaded), status) in self.messages.into_iter().zip(statuses) {
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
    let Scan {
        mut entries,
        mut damaged,
        last: read_last,
        is_more,
        ..
    } = scan(shard, query)?;
    let fitting = fitting(&entries, query.payload_bytes);
    let is_stopped = fitting < entries.len();
    entries.truncate(fitting);

    let locators: Vec<Locator> = entries.iter().map(StoredMessage::locator).collect();
    let payloads = shard.load(&locators)?;
    let last = if is_stopped {
        locators.into_iter().next_back()
    } else {
        read_last
    };
    // The next page finds the damage behind the end of this page.
    damaged.retain(|found| {
        let place = found.message.as_ref();
        place.is_none_or(|place| last.as_ref() >= Some(place))
    });
    Ok(StoredPage {
        messages: entries.into_iter().zip(payloads).collect(),
        damaged,
        next: last.filter(|_| is_stopped || is_more),
        payload_bytes: query.payload_bytes,
    })
}

/// Messages of a query in the store, without their payloads.
#[derive(Debug, Default)]
struct Scan {
    entries: Vec<StoredMessage>,
    damaged: Vec<Damaged>,
    /// How many messages were looked at, and the last of them.
    seen: usize,
    last: Option<Locator>,
    /// Whether more may follow.
    is_more: bool,
}

/// Looks at up to as many messages as the query asks for, in one stretch after the other.
fn scan(shard: &dyn Shard, query: &PeekQuery) -> Result<Scan, ReadError> {
    let mut found = Scan::default();
    let after = query.after.as_ref();
    for stretch in query.keys.stretches() {
        if after.is_some_and(|place| stretch.is_before(place)) {
            continue;
        }
        let left = query.messages.saturating_sub(found.seen);
        if left == 0 {
            found.is_more = true;
            break;
        }
        let after = after.filter(|place| stretch.covers(place));
        found.add(&stretch, shard, after, left)?;
        if found.is_more {
            break;
        }
    }
    Ok(found)
}

impl Scan {
    /// Adds up to `messages` messages of a stretch.
    fn add(
        &mut self,
        stretch: &Stretch,
        shard: &dyn Shard,
        after: Option<&Locator>,
        messages: usize,
    ) -> Result<(), ReadError> {
        let cursor = after.map_or_else(|| stretch.start(), Cursor::after);
        let page = shard.scan(&cursor, messages)?;
        let damaged_places = page.damaged.iter().filter_map(|it| it.message.clone());
        let entry_places = page.items.iter().map(StoredMessage::locator);
        let places: Vec<Locator> = damaged_places.chain(entry_places).collect();
        let is_ended = places.iter().any(|place| !stretch.covers(place));
        self.is_more = page.next.is_some() && !is_ended && !places.is_empty();
        let covered = places.into_iter().filter(|place| stretch.covers(place));
        let covered: Vec<Locator> = covered.collect();
        self.seen += covered.len();
        self.last = covered.into_iter().chain(self.last.take()).max();
        let is_wanted = |place: &Locator| stretch.covers(place) && stretch.wants(place);
        let entries = page.items.into_iter();
        let entries = entries.filter(|entry| is_wanted(&entry.locator()));
        self.entries.extend(entries);
        let damaged = page.damaged.into_iter();
        let damaged = damaged.filter(|it| it.message.as_ref().is_none_or(is_wanted));
        self.damaged.extend(damaged);
        Ok(())
    }
}

/// Returns how many of these messages fit into a page, at least one.
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
        shown += SHOWN_OVERHEAD + names as u64 + headers + body.min(most);
        read += headers + body;
    }
    fitting
}

/// Takes headers and body out of a payload. A body that is cut is copied, so that the rest can be freed.
fn cut(payload: Payload, most: Option<usize>) -> (Vec<(String, String)>, Bytes) {
    let (headers, body) = payload.into_parts();
    match most {
        Some(most) if most < body.len() => (headers, Bytes::copy_from_slice(&body[..most])),
        Some(_) | None => (headers, body),
    }
}

#[cfg(test)]
mod tests;
