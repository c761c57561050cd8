//! A message in two parts: its metadata, which the scheduler needs, and its payload.
//!
//! The store keeps the parts in separate rows. [`Meta`] is small, is rewritten when an attempt fails, and is read for every
//! message at a restart. [`Payload`] is written once, and read once at most.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;

use crate::names::within;
use crate::{
    DeduplicationId, FairnessKey, GroupWeights, History, MessageId, OutOfRange, ThrottleKey,
    Timestamp,
};

/// The position of a message in its queue. It includes the fairness key because the rows of a key are one range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locator {
    /// The key of its backlog.
    pub fairness_key: FairnessKey,
    /// Its position in that backlog.
    pub id: MessageId,
}

/// The size of a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of all names and values of headers.
    pub headers: u32,
    /// Bytes of the body.
    pub body: u32,
}

impl Sizes {
    /// Returns the bytes of headers and body together.
    pub fn total(self) -> u64 {
        u64::from(self.headers) + u64::from(self.body)
    }
}

/// How a message is scheduled, as its producer or the queue's `on_enqueue` hook says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The tenant that the message belongs to.
    pub fairness_key: FairnessKey,
    /// The share of that key. It applies to all messages of the key from now on.
    pub weight: NonZeroU32,
    /// The weights of the groups that the key is in, if the hook names any. They apply to the groups from now on.
    pub group_weights: GroupWeights,
    /// The token buckets that each delivery takes from, all or none of them; at most
    /// [`THROTTLE_KEYS_MAX`](Self::THROTTLE_KEYS_MAX).
    pub throttle_keys: Box<[ThrottleKey]>,
}

impl Schedule {
    /// The most throttle keys. Servers set lower limits; this is the limit of the storage format.
    pub const THROTTLE_KEYS_MAX: usize = 255;
}

/// A schedule of weight 1 without throttle keys.
impl From<FairnessKey> for Schedule {
    fn from(fairness_key: FairnessKey) -> Self {
        Self {
            fairness_key,
            weight: NonZeroU32::MIN,
            group_weights: GroupWeights::NONE,
            throttle_keys: Box::default(),
        }
    }
}

impl Default for Schedule {
    fn default() -> Self {
        FairnessKey::default().into()
    }
}

/// Everything that the scheduler needs to know about a message.
///
/// The fairness key is part of the key of the message's row, so it never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// How it is scheduled.
    pub schedule: Schedule,
    /// When it was accepted.
    pub enqueued_at: Timestamp,
    /// The broker does not deliver it before this time.
    pub deliver_after: Option<Timestamp>,
    /// The broker does not deliver it from this time on.
    pub expires_at: Option<Timestamp>,
    /// Deliveries that have ended without an acknowledgement.
    pub attempts: u32,
    /// The producer's id for it.
    pub deduplication_id: Option<DeduplicationId>,
    /// Its failures; none if no attempt has failed.
    pub history: Option<Arc<History>>,
    /// The size of its payload; [`Batch::put`](crate::Batch::put) sets it from the payload.
    pub sizes: Sizes,
}

impl Meta {
    /// Returns the meta data of a plain message: without a delay, without a time to live, never attempted.
    pub fn new(schedule: impl Into<Schedule>, enqueued_at: Timestamp) -> Self {
        Self {
            schedule: schedule.into(),
            enqueued_at,
            deliver_after: None,
            expires_at: None,
            attempts: 0,
            deduplication_id: None,
            history: None,
            sizes: Sizes::default(),
        }
    }

    /// Returns the lasting id of the message that is at `here` in its queue: the position at which it was first accepted.
    /// A dead letter keeps it, and so does a message that has gone back to its queue.
    pub fn lasting_id(&self, here: MessageId) -> MessageId {
        let death = self.history.as_ref().and_then(|it| it.death.as_ref());
        death.map_or(here, |death| death.message)
    }
}

/// Why a payload is larger than the storage format allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub enum PayloadError {
    /// There are too many headers, or too many bytes of them.
    Headers(OutOfRange),
    /// The body is too large.
    Body(OutOfRange),
}

/// The headers and the body of a message. Its `Debug` output shows their sizes, and not their content.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl Payload {
    /// The most headers.
    pub const HEADERS_MAX: usize = 1 << 10;
    /// The most bytes in all names and values of headers.
    pub const HEADER_BYTES_MAX: usize = 1 << 20;
    /// The largest body, in bytes. Servers set lower limits; this is the limit of the storage format.
    pub const BODY_MAX: usize = 64 << 20;

    /// Takes headers, in any order and with any repetition, and a body.
    ///
    /// # Errors
    /// If there is more of one of them than the storage format holds.
    pub fn new(
        headers: Vec<(String, String)>,
        body: impl Into<Bytes>,
    ) -> Result<Self, PayloadError> {
        let body = body.into();
        let bytes = header_bytes(&headers);
        within("headers", headers.len(), 0, Self::HEADERS_MAX)
            .and_then(|()| within("bytes of headers", bytes, 0, Self::HEADER_BYTES_MAX))
            .map_err(PayloadError::Headers)?;
        within("bytes of a body", body.len(), 0, Self::BODY_MAX).map_err(PayloadError::Body)?;
        Ok(Self { headers, body })
    }

    /// Returns the headers as they were given.
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// Returns the body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns headers and body.
    pub fn into_parts(self) -> (Vec<(String, String)>, Bytes) {
        (self.headers, self.body)
    }

    /// Returns its size.
    pub fn sizes(&self) -> Sizes {
        // Both casts are safe: `new` has checked the limits.
        Sizes {
            headers: header_bytes(&self.headers) as u32,
            body: self.body.len() as u32,
        }
    }
}

fn header_bytes(headers: &[(String, String)]) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum()
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.sizes();
        f.debug_struct("Payload")
            .field("headers", &self.headers.len())
            .field("header_bytes", &sizes.headers)
            .field("body_bytes", &sizes.body)
            .finish()
    }
}

/// A message as the store holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its position among the messages of its key.
    pub id: MessageId,
    /// Everything that the scheduler needs to know about it.
    pub meta: Meta,
    /// Its payload; none if only the metadata was read or written.
    pub payload: Option<Payload>,
}

impl StoredMessage {
    /// Returns its position.
    pub fn locator(&self) -> Locator {
        Locator {
            fairness_key: self.meta.schedule.fairness_key.clone(),
            id: self.id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printing_a_payload_shows_sizes_and_nothing_of_it() {
        let headers = vec![("authorization".to_owned(), "secret".to_owned())];
        let payload = Payload::new(headers, "secret body").unwrap();
        let printed = format!("{payload:?}");
        assert_eq!(
            printed,
            "Payload { headers: 1, header_bytes: 19, body_bytes: 11 }"
        );
    }

    #[test]
    fn more_than_the_format_holds_is_refused() {
        let one = ("a".to_owned(), String::new());
        let many = vec![one; Payload::HEADERS_MAX + 1];
        let refused = Payload::new(many, "").unwrap_err();
        assert!(matches!(refused, PayloadError::Headers(it) if it.what == "headers"));
        let long = vec![("a".to_owned(), "b".repeat(Payload::HEADER_BYTES_MAX))];
        let refused = Payload::new(long, "").unwrap_err();
        assert!(matches!(refused, PayloadError::Headers(it) if it.what == "bytes of headers"));
        let body = vec![0; Payload::BODY_MAX + 1];
        let refused = Payload::new(Vec::new(), body).unwrap_err();
        assert!(matches!(refused, PayloadError::Body(_)));
    }
}
