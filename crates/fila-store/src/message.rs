//! A message in two parts: what scheduling needs to know of it, and what it carries.
//!
//! The parts are kept apart because they live differently. [`Meta`] is small, is rewritten when an attempt fails,
//! and is read for every message at a restart. [`Payload`] is written once, and read once at most.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;

use crate::names::within;
use crate::{DeduplicationId, FairnessKey, History, MessageId, OutOfRange, ThrottleKey, Timestamp};

/// Where a message lies in its queue. An id alone would not do: a fairness key's backlog is one range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locator {
    /// Whose backlog it is in.
    pub fairness_key: FairnessKey,
    /// Its place there.
    pub id: MessageId,
}

/// How much a message carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of all names and values of headers.
    pub headers: u32,
    /// Bytes of the body.
    pub body: u32,
}

/// What scheduling needs to know of a message.
///
/// The fairness key is where the message lies, so it stays what it was when the message was put. Later formats
/// may add fields: make one with [`new`](Self::new) and set what differs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meta {
    /// Whose share of the service it uses.
    pub fairness_key: FairnessKey,
    /// That key's weight, as of this message.
    pub weight: NonZeroU32,
    /// When it was accepted.
    pub enqueued_at: Timestamp,
    /// Not to be delivered before.
    pub deliver_after: Option<Timestamp>,
    /// Not to be delivered from then on.
    pub expires_at: Option<Timestamp>,
    /// Deliveries that have ended without an acknowledgement.
    pub attempts: u32,
    /// What the producer calls it.
    pub deduplication_id: Option<DeduplicationId>,
    /// The token buckets that a delivery takes from; at most [`THROTTLE_KEYS_MAX`](Self::THROTTLE_KEYS_MAX).
    pub throttle_keys: Box<[ThrottleKey]>,
    /// What has gone wrong with it, if something has.
    pub history: Option<Arc<History>>,
    /// How much it carries; [`Batch::put`](crate::Batch::put) sets it from the payload.
    pub sizes: Sizes,
}

impl Meta {
    /// The most throttle keys. Servers set lower limits; this is what the storage format holds.
    pub const THROTTLE_KEYS_MAX: usize = 255;

    /// Returns what is known of a plain message: weight 1, to be delivered at once, for ever, never attempted.
    pub fn new(fairness_key: FairnessKey, enqueued_at: Timestamp) -> Self {
        Self {
            fairness_key,
            weight: NonZeroU32::MIN,
            enqueued_at,
            deliver_after: None,
            expires_at: None,
            attempts: 0,
            deduplication_id: None,
            throttle_keys: Box::default(),
            history: None,
            sizes: Sizes::default(),
        }
    }
}

/// What a message carries. Printing it shows how much that is, and nothing of it.
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
    /// The largest body, in bytes. Servers set lower limits; this is what the storage format holds.
    pub const BODY_MAX: usize = 64 << 20;

    /// Takes headers, in any order and with any repetition, and a body.
    ///
    /// # Errors
    /// If there is more of one of them than the storage format holds.
    pub fn new(headers: Vec<(String, String)>, body: impl Into<Bytes>) -> Result<Self, OutOfRange> {
        let body = body.into();
        within("headers", headers.len(), 0, Self::HEADERS_MAX)?;
        within(
            "bytes of headers",
            header_bytes(&headers),
            0,
            Self::HEADER_BYTES_MAX,
        )?;
        within("bytes of a body", body.len(), 0, Self::BODY_MAX)?;
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

    /// Returns how much it is.
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

/// A message without what it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place among its key's messages.
    pub id: MessageId,
    /// What scheduling needs to know of it.
    pub meta: Meta,
}

impl Entry {
    /// Returns where it lies.
    pub fn locator(&self) -> Locator {
        Locator {
            fairness_key: self.meta.fairness_key.clone(),
            id: self.id,
        }
    }
}

/// A whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its place among its key's messages.
    pub id: MessageId,
    /// What scheduling needs to know of it.
    pub meta: Meta,
    /// What it carries.
    pub payload: Payload,
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
        assert_eq!(Payload::new(many, "").unwrap_err().what, "headers");
        let long = vec![("a".to_owned(), "b".repeat(Payload::HEADER_BYTES_MAX))];
        assert_eq!(Payload::new(long, "").unwrap_err().what, "bytes of headers");
        let body = vec![0; Payload::BODY_MAX + 1];
        let refused = Payload::new(Vec::new(), body).unwrap_err();
        assert_eq!(refused.what, "bytes of a body");
    }
}
