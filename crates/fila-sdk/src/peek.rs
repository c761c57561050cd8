//! Looking at messages without taking them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use fila_proto::v1;

use crate::message::MessageId;
use crate::moment::at as moment;
use crate::{Client, Error, History};

/// The most messages that the server shows at once.
const PAGE_MAX: u32 = 1000;

/// Which messages to look at. From [`Queue::peek`](crate::Queue::peek).
///
/// Nothing is leased, no attempt is counted, nobody waits for it. Leased messages are shown, too.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fila_sdk::Error> {
/// # let mut config = fila_server::config::Config::default();
/// # config.server.address = ([127, 0, 0, 1], 0).into();
/// # config.storage.engine = fila_server::config::StorageEngine::Memory;
/// # let server = fila_server::Server::start(config).await.unwrap();
/// # let client = fila_sdk::Client::connect(server.address().to_string()).await?;
/// # client.admin().create_queue("orders", fila_sdk::QueueSettings::new()).await?;
/// # client.queue("orders").send(fila_sdk::Message::new("x").key("acme")).await?;
/// let page = client.queue("orders").peek().key("acme").limit(10).page().await?;
/// for order in &page.messages {
///     println!("{}: {:?}, tried {} times", order.id, order.state, order.attempts);
/// }
/// # assert_eq!(page.messages.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a peek does nothing until a page is asked for"]
pub struct PeekBuilder {
    client: Client,
    request: v1::PeekRequest,
}

impl PeekBuilder {
    pub(crate) fn new(client: Client, queue: &str) -> Self {
        let request = v1::PeekRequest {
            queue: queue.to_owned(),
            ..v1::PeekRequest::default()
        };
        Self { client, request }
    }

    /// Looks at messages of this fairness key only.
    pub fn key(mut self, fairness_key: impl Into<String>) -> Self {
        self.request.fairness_key = Some(fairness_key.into());
        self
    }

    /// Says how many messages a page has at most, from 1 to 1,000; 10 by default.
    pub fn limit(mut self, messages: u32) -> Self {
        self.request.page_size = messages.clamp(1, PAGE_MAX);
        self
    }

    /// Cuts payloads after so many bytes; they are whole by default.
    pub fn payload_max(mut self, bytes: u64) -> Self {
        self.request.payload_bytes_max = Some(bytes);
        self
    }

    /// Begins behind an earlier page of the same queue and key.
    pub fn after(mut self, place: PeekPlace) -> Self {
        self.request.page_token = place.0;
        self
    }

    /// Asks for the page.
    ///
    /// # Errors
    /// If there is no such queue, or the server cannot be asked.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn page(&self) -> Result<PeekPage, Error> {
        let ask = || {
            let (mut service, request) = (self.client.service(), self.request.clone());
            async move { service.peek(request).await }
        };
        self.client.call_again(ask).await.map(PeekPage::from)
    }
}

/// A place among the messages of a queue: the end of a [page](PeekPage).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeekPlace(String);

/// Messages that were looked at. By fairness key, and within a key in the order in which they were accepted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeekPage {
    /// What was there. May be fewer than were asked for, or none, though there are more.
    pub messages: Vec<Peeked>,
    /// Where the next page begins; none at the end.
    pub next: Option<PeekPlace>,
    /// The server's clock, by which all times of the messages are.
    pub now: SystemTime,
    /// How many messages were left out since they cannot be read. The server's log names them.
    pub damaged: u32,
}

/// A message that was looked at.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peeked {
    /// What it is called.
    pub id: MessageId,
    /// Whose share of the queue it uses.
    pub key: String,
    /// The weight of its fairness key.
    pub weight: u32,
    /// What its producer said about it.
    pub headers: BTreeMap<String, String>,
    /// What it carries; perhaps [cut](PeekBuilder::payload_max).
    pub payload: Bytes,
    /// How long the payload is as a whole.
    pub payload_bytes: u64,
    /// How many attempts there were so far, with the one under way if it is leased.
    pub attempts: u32,
    /// When it was stored.
    pub enqueued_at: SystemTime,
    /// Where it is in its life.
    pub state: PeekedState,
    /// When its time to live is over, if it has one.
    pub expires_at: Option<SystemTime>,
    /// The id under which it is stored once, if its producer gave it one.
    pub deduplication_id: Option<String>,
    /// What has gone wrong with it, if something has; for a dead letter, where it came from.
    pub history: Option<History>,
    /// The token buckets that each of its deliveries takes from.
    pub throttle_keys: Vec<String>,
}

/// Where a message is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeekedState {
    /// May be delivered when it is its turn, unless its queue or its fairness key is paused, or held up.
    Ready,
    /// Waits for its time.
    Delayed {
        /// Until when.
        until: SystemTime,
    },
    /// Is with a consumer.
    Leased {
        /// When its lease runs out unless it is extended.
        until: SystemTime,
    },
}

impl From<v1::PeekResponse> for PeekPage {
    fn from(wire: v1::PeekResponse) -> Self {
        let place = wire.next_page_token;
        Self {
            messages: wire.messages.into_iter().map(Peeked::from).collect(),
            next: (!place.is_empty()).then_some(PeekPlace(place)),
            now: moment(wire.now_ms),
            damaged: wire.damaged,
        }
    }
}

impl From<v1::PeekedMessage> for Peeked {
    fn from(wire: v1::PeekedMessage) -> Self {
        let state = match wire.state() {
            // One that this client does not know yet may be delivered, as far as it can tell.
            v1::MessageState::Ready | v1::MessageState::Unspecified => PeekedState::Ready,
            v1::MessageState::Delayed => PeekedState::Delayed {
                until: moment(wire.deliver_after_ms()),
            },
            v1::MessageState::Leased => PeekedState::Leased {
                until: moment(wire.lease_until_ms()),
            },
        };
        let name = wire.deduplication_id;
        Self {
            id: MessageId::new(wire.message_id),
            key: wire.fairness_key,
            weight: wire.weight,
            headers: wire.headers,
            payload: wire.payload,
            payload_bytes: wire.payload_bytes,
            attempts: wire.attempts,
            enqueued_at: moment(wire.enqueued_at_ms),
            state,
            expires_at: wire.expires_at_ms.map(moment),
            deduplication_id: (!name.is_empty()).then_some(name),
            history: wire.history.map(History::from),
            throttle_keys: wire.throttle_keys,
        }
    }
}

/// Payloads are not for logs.
impl fmt::Debug for Peeked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peeked")
            .field("id", &self.id.as_str())
            .field("key", &self.key)
            .field("headers", &self.headers)
            .field("payload_bytes", &self.payload_bytes)
            .field("attempts", &self.attempts)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
