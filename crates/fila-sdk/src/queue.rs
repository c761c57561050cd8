//! One queue: sending to it, and consuming from it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use crate::moment::after;
use crate::producer::Handed;
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

    /// Hands a message over to be sent, and returns as soon as there is room for it in the client's
    /// [buffer](crate::ClientBuilder::buffer). What becomes of it is what the [`Receipt`] is waited for.
    ///
    /// For one task that has many messages, one after the other, and does not want to wait for each: they are sent in
    /// the order in which they are handed over, batched by themselves.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] if there is no room until the client's [deadline](crate::ClientBuilder::deadline): it is not
    /// sent.
    ///
    /// # Cancel safety
    /// A drop before it has returned has sent nothing.
    pub async fn post(&self, message: impl Into<Message>) -> Result<Receipt, Error> {
        let producer = self.client.producer();
        let message = message.into();
        let room = self.within(self.deadline(), producer.room_for(&message));
        let room = room.await?;
        let ends = self.deadline();
        Ok(Receipt {
            answer: producer.put(&self.name, message, ends, room)?,
            ends,
            timer: None,
            queue: self.clone(),
        })
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
        let mut receipts = Vec::new();
        for message in messages {
            receipts.push(self.post(message).await);
        }
        let mut results = Vec::with_capacity(receipts.len());
        for receipt in receipts {
            results.push(match receipt {
                Ok(receipt) => receipt.await,
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
            Ok(done) => self.in_time(ends, done),
            Err(_) => Err(self.no_answer()),
        }
    }

    /// Whoever sends may have given up a moment before us.
    fn in_time<T>(&self, ends: Instant, done: Result<T, Error>) -> Result<T, Error> {
        match done {
            Err(Error::Closed) if Instant::now() >= ends => Err(self.no_answer()),
            done => done,
        }
    }

    fn no_answer(&self) -> Error {
        Error::NoAnswer {
            after: self.client.options().deadline,
            cause: self.client.producer().trouble(),
        }
    }
}

/// What becomes of a message that was [posted](Queue::post): a future of what [`Queue::send`] returns.
///
/// The message is sent whether or not somebody waits for this. The client's deadline is counted from when it was handed
/// over.
#[derive(Debug)]
#[must_use = "whether the message is stored is not known before this has been waited for"]
pub struct Receipt {
    answer: Handed,
    ends: Instant,
    /// Made when there is something to wait for: most are answered before anybody asks.
    timer: Option<Pin<Box<Sleep>>>,
    queue: Queue,
}

impl Future for Receipt {
    type Output = Result<Sent, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let receipt = &mut *self;
        if let Poll::Ready(answer) = Pin::new(&mut receipt.answer).poll(context) {
            return Poll::Ready(receipt.queue.in_time(receipt.ends, answer));
        }
        let ends = receipt.ends;
        let timer = receipt
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(ends)));
        timer
            .as_mut()
            .poll(context)
            .map(|()| Err(receipt.queue.no_answer()))
    }
}
