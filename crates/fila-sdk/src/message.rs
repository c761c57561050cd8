//! Messages to send.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use fila_proto::v1;

/// The approximate size of a message without its payload and headers, in bytes.
const ITSELF: usize = 256;

/// A message to send.
///
/// ```
/// use std::time::Duration;
/// use fila_sdk::Message;
///
/// let message = Message::new("{\"order\": 7}")
///     .key("acme")                       // whose share of the queue it uses
///     .header("tenant", "acme")
///     .delay(Duration::from_secs(5))     // not before then
///     .deduplication_id("order-7");      // stored once, however often it is sent
/// # let _ = message;
/// ```
#[derive(Clone, PartialEq)]
#[must_use = "a message does nothing until it is sent"]
pub struct Message {
    pub(crate) wire: v1::Message,
}

impl Message {
    /// Returns a message with the fairness key `default` and without headers, for delivery as soon as possible.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            wire: v1::Message {
                payload: payload.into(),
                ..v1::Message::default()
            },
        }
    }

    /// Sets the fairness key, whose share of the queue the message uses: a tenant, a customer, a job class.
    pub fn key(mut self, fairness_key: impl Into<String>) -> Self {
        self.wire.fairness_key = fairness_key.into();
        self
    }

    /// Sets the weight of its fairness key, from now on and for all messages of that key; 1 by default.
    pub fn weight(mut self, weight: u32) -> Self {
        self.wire.weight = Some(weight);
        self
    }

    /// Adds a header, or replaces the header of the same name.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.wire.headers.insert(name.into(), value.into());
        self
    }

    /// Adds headers.
    pub fn headers<N: Into<String>, V: Into<String>>(
        mut self,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let headers = headers.into_iter();
        let headers = headers.map(|(name, value)| (name.into(), value.into()));
        self.wire.headers.extend(headers);
        self
    }

    /// Delays its delivery by at least this time, in whole milliseconds, rounded up.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.wire.delay_ms = millis(delay);
        self
    }

    /// Sets its time to live: the broker does not deliver it after this time. The queue's setting applies by default.
    pub fn time_to_live(mut self, time: Duration) -> Self {
        // Zero would mean no limit.
        self.wire.ttl_ms = Some(millis(time).max(1));
        self
    }

    /// Lets it live without a limit, whatever the queue's setting is.
    pub fn without_ttl(mut self) -> Self {
        self.wire.ttl_ms = Some(0);
        self
    }

    /// Sets an id, so that the broker stores the message once within the queue's deduplication window, even if several
    /// producers send it. The id counts for the message's fairness key, or for the whole queue if the queue says so.
    ///
    /// The client needs no id to send a message again after a broken connection: the broker stores it once in any case.
    pub fn deduplication_id(mut self, id: impl Into<String>) -> Self {
        self.wire.deduplication_id = id.into();
        self
    }

    /// Adds a token bucket that each of its deliveries takes a token from. May be called several times: a delivery
    /// takes a token of each bucket, or none at all.
    ///
    /// The runtime configuration sets a bucket, as `throttle:<key>:rate` and `throttle:<key>:burst`. A bucket without a
    /// rate throttles nothing.
    pub fn throttle_key(mut self, key: impl Into<String>) -> Self {
        self.wire.throttle_keys.push(key.into());
        self
    }

    /// Returns its approximate size in buffers.
    pub(crate) fn size(&self) -> usize {
        size(&self.wire)
    }
}

/// Returns the approximate size of a message in buffers.
pub(crate) fn size(message: &v1::Message) -> usize {
    let headers = message.headers.iter();
    let headers = headers.map(|(name, value)| name.len() + value.len());
    let names = message.fairness_key.len() + message.deduplication_id.len();
    let throttles = message.throttle_keys.iter().map(String::len);
    let names = names + throttles.sum::<usize>();
    ITSELF + message.payload.len() + names + headers.sum::<usize>()
}

/// Leaves the payload out, because payloads must not get into logs.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("key", &self.wire.fairness_key)
            .field("headers", &self.wire.headers)
            .field("payload_bytes", &self.wire.payload.len())
            .finish_non_exhaustive()
    }
}

impl<T: Into<Bytes>> From<T> for Message {
    fn from(payload: T) -> Self {
        Self::new(payload)
    }
}

/// The id of a message: a UUID, unique in its server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(String);

impl MessageId {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the UUID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The confirmation that a message is stored, at the server's level of durability.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// The id of the message.
    pub id: MessageId,
    /// Whether the queue had a message with this [deduplication id](Message::deduplication_id) already. The id is then
    /// the id of that message.
    pub deduplicated: bool,
}

/// Returns whole milliseconds, rounded up, so that nothing happens too early.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_millis(5)), 5);
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }

    #[test]
    fn a_payload_is_not_printed() {
        let message = Message::new("secret").key("acme");
        assert_eq!(
            format!("{message:?}"),
            r#"Message { key: "acme", headers: {}, payload_bytes: 6, .. }"#
        );
    }

    #[test]
    fn all_that_a_producer_can_make_long_takes_room() {
        let bare = Message::new("").size();
        let long = "x".repeat(1000);
        let message = Message::new(long.clone()).key(&long).header(&long, &long);
        assert_eq!(message.deduplication_id(&long).size(), bare + 5000);
    }

    #[test]
    fn a_time_to_live_of_nothing_is_not_for_ever() {
        let message = Message::new("").time_to_live(Duration::ZERO);
        assert_eq!(message.wire.ttl_ms, Some(1));
    }
}
