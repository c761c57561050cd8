//! One queue: sending to it, and consuming from it.

use std::future::Future;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use crate::moment::after;
use crate::{Client, ConsumerBuilder, Error, Message, PeekBuilder, Sent, WorkerBuilder};

/// A queue of a server. From [`Client::queue`]; cheap to clone.
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    name: Arc<str>,
}

impl Queue {
    pub(crate) fn new(client: Client, name: Arc<str>) -> Self {
        Self { client, name }
    }

    /// Returns what it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a message, and returns when it is stored.
    ///
    /// Batches by itself: what many tasks send at once shares frames and syncs; what one task sends alone goes out at
    /// once. If the connection breaks, the message is sent again until the client's
    /// [deadline](crate::ClientBuilder::deadline), and is stored once however often it was sent.
    ///
    /// # Errors
    /// [`Error::Refused`] if the server does not take it: it is not stored. [`Error::NoAnswer`] if the deadline passes:
    /// it may or may not be stored.
    ///
    /// # Cancel safety
    /// A send that is dropped before it was polled, or while it waits for room in the client's
    /// [buffer](crate::ClientBuilder::buffer), has sent nothing. Later, the message is sent all the same.
    pub async fn send(&self, message: impl Into<Message>) -> Result<Sent, Error> {
        let ends = self.deadline();
        let producer = self.client.producer();
        let message = message.into();
        let sent = async {
            let room = producer.room_for(&message).await?;
            producer.put(&self.name, message, ends, room)?.await
        };
        self.within(ends, sent).await
    }

    /// Sends many messages in their order, and returns what became of each, in the same order.
    ///
    /// Each has the client's deadline, counted from when there was room for it.
    ///
    /// # Cancel safety
    /// Messages that were handed over before the drop are sent all the same, the others are not.
    pub async fn send_all<M: Into<Message>>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> Vec<Result<Sent, Error>> {
        let producer = self.client.producer();
        let mut handed = Vec::new();
        for message in messages {
            let message = message.into();
            let room = self.within(self.deadline(), producer.room_for(&message));
            let ends = self.deadline();
            let one = room
                .await
                .and_then(|room| producer.put(&self.name, message, ends, room));
            handed.push(one.map(|one| (ends, one)));
        }
        let mut results = Vec::with_capacity(handed.len());
        for one in handed {
            results.push(match one {
                Ok((ends, answer)) => self.within(ends, answer).await,
                Err(error) => Err(error),
            });
        }
        results
    }

    /// Begins a consumer: a stream of messages, each to be acknowledged.
    pub fn consumer(&self) -> ConsumerBuilder {
        ConsumerBuilder::new(self.client.clone(), self.name.clone())
    }

    /// Begins a worker: a consumer that calls a handler for every message.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.consumer())
    }

    /// Begins a peek: messages are shown, and stay as they are.
    pub fn peek(&self) -> PeekBuilder {
        PeekBuilder::new(self.client.clone(), &self.name)
    }

    fn deadline(&self) -> Instant {
        after(Instant::now(), self.client.options().deadline)
    }

    async fn within<T>(
        &self,
        ends: Instant,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match timeout_at(ends, call).await {
            // Whoever sends may have given up a moment before us.
            Ok(Err(Error::Closed)) if Instant::now() >= ends => Err(self.no_answer()),
            Ok(done) => done,
            Err(_) => Err(self.no_answer()),
        }
    }

    fn no_answer(&self) -> Error {
        Error::NoAnswer {
            after: self.client.options().deadline,
            cause: self.client.producer().trouble(),
        }
    }
}
