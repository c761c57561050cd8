//! Messages on their way in.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use fila_proto::v1;

/// What a message takes beside its payload and headers, about.
const ITSELF: usize = 256;

/// A message to be sent.
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
    /// Returns a message of the fairness key `default`, without headers, to be delivered as soon as may be.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            wire: v1::Message {
                payload: payload.into(),
                ..v1::Message::default()
            },
        }
    }

    /// Says whose share of the queue it uses: a tenant, a customer, a job class.
    pub fn key(mut self, fairness_key: impl Into<String>) -> Self {
        self.wire.fairness_key = fairness_key.into();
        self
    }

    /// Says how large the share of its fairness key is, from now on and for all messages of that key. 1 if never said.
    pub fn weight(mut self, weight: u32) -> Self {
        self.wire.weight = Some(weight);
        self
    }

    /// Adds a header. One of the same name is replaced.
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

    /// Lets it wait: it is not delivered before this time has passed. Counted in whole milliseconds, rounded up.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.wire.delay_ms = millis(delay);
        self
    }

    /// Lets it perish: it is not delivered after this time has passed. The queue's setting if never said.
    pub fn time_to_live(mut self, time: Duration) -> Self {
        // Zero would mean for ever.
        self.wire.ttl_ms = Some(millis(time).max(1));
        self
    }

    /// Lets it live for ever, whatever the queue's setting is.
    pub fn without_ttl(mut self) -> Self {
        self.wire.ttl_ms = Some(0);
        self
    }

    /// Names it, so that it is stored once within the queue's deduplication window, whoever sends it again.
    ///
    /// What this client has to send again by itself, after a broken connection, is stored once without this.
    pub fn deduplication_id(mut self, id: impl Into<String>) -> Self {
        self.wire.deduplication_id = id.into();
        self
    }

    /// Adds a token bucket that each of its deliveries takes from. May be called several times: a delivery takes a token of
    /// each, or none.
    ///
    /// A bucket is set by the runtime configuration, as `throttle:<key>:rate` and `throttle:<key>:burst`; one that is not set
    /// holds nobody.
    pub fn throttle_key(mut self, key: impl Into<String>) -> Self {
        self.wire.throttle_keys.push(key.into());
        self
    }

    /// Returns what it takes in buffers, about.
    pub(crate) fn size(&self) -> usize {
        size(&self.wire)
    }
}

/// Returns what a message takes in buffers, about.
pub(crate) fn size(message: &v1::Message) -> usize {
    let headers = message.headers.iter();
    let headers = headers.map(|(name, value)| name.len() + value.len());
    let names = message.fairness_key.len() + message.deduplication_id.len();
    let throttles = message.throttle_keys.iter().map(String::len);
    let names = names + throttles.sum::<usize>();
    ITSELF + message.payload.len() + names + headers.sum::<usize>()
}

/// Payloads are not for logs.
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

/// Names a message: a UUID, unique in its server.
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

/// A message is stored, at the server's level of durability.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// What it is called from now on.
    pub id: MessageId,
    /// Whether the queue had a message of this [deduplication id](Message::deduplication_id) already, whose id this is.
    pub deduplicated: bool,
}

/// Returns whole milliseconds, rounded up: nothing comes earlier than was asked for.
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
