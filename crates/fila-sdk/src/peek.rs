//! Inspecting messages without leasing them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use fila_proto::v1;

use crate::message::MessageId;
use crate::moment::at as moment;
use crate::{Client, Error, History};

/// The most messages in one page of the server.
const PAGE_MAX: u32 = 1000;

/// Selects messages to inspect. From [`Queue::peek`](crate::Queue::peek).
///
/// A peek leases nothing, counts no attempt and delays no consumer. It shows leased messages, too.
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

    /// Selects messages of this fairness key only.
    pub fn key(mut self, fairness_key: impl Into<String>) -> Self {
        self.request.fairness_key = Some(fairness_key.into());
        self
    }

    /// Selects messages of the keys in this group only, on every level, and of the key of this name. Not beside
    /// [`key`](Self::key).
    pub fn within(mut self, group: impl Into<String>) -> Self {
        self.request.within = Some(group.into());
        self
    }

    /// Sets how many messages a page has at most, from 1 to 1,000; 10 by default.
    pub fn limit(mut self, messages: u32) -> Self {
        self.request.page_size = messages.clamp(1, PAGE_MAX);
        self
    }

    /// Cuts payloads to this many bytes; they are whole by default.
    pub fn payload_max(mut self, bytes: u64) -> Self {
        self.request.payload_bytes_max = Some(bytes);
        self
    }

    /// Continues after an earlier page of the same queue and key, or group.
    pub fn after(mut self, place: PeekPlace) -> Self {
        self.request.page_token = place.0;
        self
    }

    /// Requests the page.
    ///
    /// # Errors
    /// If there is no such queue, or the server does not answer.
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

/// A page of messages, sorted by fairness key, and within a key in the order of their arrival.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeekPage {
    /// The messages. A page may have fewer than the limit, or none, although more pages follow.
    pub messages: Vec<Peeked>,
    /// Where the next page begins; none at the end.
    pub next: Option<PeekPlace>,
    /// The server's clock, which all times of the messages refer to.
    pub now: SystemTime,
    /// How many messages the server has left out, because it cannot read them. The server's log names them.
    pub damaged: u32,
}

/// A message of a peek.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peeked {
    /// The id of the message.
    pub id: MessageId,
    /// The fairness key of the message.
    pub key: String,
    /// The weight of its fairness key.
    pub weight: u32,
    /// The headers that its producer has set.
    pub headers: BTreeMap<String, String>,
    /// The payload, [cut](PeekBuilder::payload_max) if a limit was set.
    pub payload: Bytes,
    /// The length of the whole payload.
    pub payload_bytes: u64,
    /// How many deliveries there were, including the current one if it is leased.
    pub attempts: u32,
    /// When the broker has stored it.
    pub enqueued_at: SystemTime,
    /// Its state.
    pub state: PeekedState,
    /// The end of its time to live, if it has one.
    pub expires_at: Option<SystemTime>,
    /// Its deduplication id, if its producer has set one.
    pub deduplication_id: Option<String>,
    /// The failures of earlier deliveries, if there are any. For a dead letter, also its origin.
    pub history: Option<History>,
    /// The token buckets that each of its deliveries takes a token from.
    pub throttle_keys: Vec<String>,
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeekedState {
    /// The broker delivers it when it is its turn, unless its queue or its fairness key is paused or blocked.
    Ready,
    /// Waits for the end of its delay.
    Delayed {
        /// The end of the delay.
        until: SystemTime,
    },
    /// Is leased to a consumer.
    Leased {
        /// When its lease runs out unless the consumer extends it.
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
            // A state that this client does not know counts as ready.
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

/// Leaves the payload out, because payloads must not get into logs.
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
