//! A handle to one queue, to send to it and to consume from it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use crate::moment::after;
use crate::producer::Handed;
use crate::receive;
use crate::{
    Client, ConsumerBuilder, Error, LeaseId, Message, PeekBuilder, ReceiveBuilder, Sent, Verdict,
    WorkerBuilder,
};

/// A handle to a queue of a server. From [`Client::queue`]; cheap to clone.
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    name: Arc<str>,
}

impl Queue {
    pub(crate) fn new(client: Client, name: Arc<str>) -> Self {
        Self { client, name }
    }

    /// Returns the name of the queue.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a message, and returns when the server has stored it.
    ///
    /// The client batches by itself: messages that many tasks send at once share frames and syncs; a message that is
    /// sent alone goes out at once. If the connection breaks, the client sends the message again until its
    /// [deadline](crate::ClientBuilder::deadline), and the server stores it once.
    ///
    /// # Errors
    /// [`Error::Refused`] if the server refuses it: it is not stored. [`Error::NoAnswer`] if the deadline passes: it
    /// may or may not be stored.
    ///
    /// # Cancel safety
    /// A send that is dropped before its first poll, or while it waits for room in the client's
    /// [buffer](crate::ClientBuilder::buffer), has sent nothing. After that, the client still sends the message.
    pub async fn send(&self, message: impl Into<Message>) -> Result<Sent, Error> {
        let ends = self.deadline();
        let producer = self.client.producer();
        let message = message.into();
        let room = producer.room_for(&message, ends).await?;
        producer.put(&self.name, message, ends, room)?.await
    }

    /// Hands a message over to the client, and returns as soon as the client's [buffer](crate::ClientBuilder::buffer)
    /// has room for it. The returned [`Receipt`] resolves to the result.
    ///
    /// For one task that sends many messages one after the other and does not wait for each. The client sends them in
    /// the order of the calls, in batches.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] if there is no room until the client's [deadline](crate::ClientBuilder::deadline): the
    /// message is not sent.
    ///
    /// # Cancel safety
    /// A post that is dropped before it returns has sent nothing.
    pub async fn post(&self, message: impl Into<Message>) -> Result<Receipt, Error> {
        let producer = self.client.producer();
        let message = message.into();
        let room = producer.room_for(&message, self.deadline()).await?;
        let answer = producer.put(&self.name, message, self.deadline(), room)?;
        Ok(Receipt { answer })
    }

    /// Sends many messages in their order, and returns the result of each, in the same order.
    ///
    /// The client's deadline of each message begins when the buffer has room for it.
    ///
    /// # Cancel safety
    /// The client still sends messages that it took over before the drop, and does not send the others.
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

    /// Begins to build a consumer: a stream of messages that the application acknowledges one by one.
    pub fn consumer(&self) -> ConsumerBuilder {
        ConsumerBuilder::new(self.client.clone(), self.name.clone())
    }

    /// Begins to build a worker: a consumer that calls a handler for every message.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.consumer())
    }

    /// Begins to build a call that takes messages once: for programs that keep no stream.
    pub fn receive(&self) -> ReceiveBuilder {
        ReceiveBuilder::new(self.client.clone(), &self.name)
    }

    /// Reports the same result for several [received](Self::receive) messages, and returns when the server has stored it.
    /// Returns the leases whose result the server refused, with the reason: [`Error::LeaseLost`] if the lease ended
    /// before.
    ///
    /// # Errors
    /// If the server refuses the whole call, as for a queue that does not exist or more than 10,000 leases, or does not
    /// answer within the client's [deadline](crate::ClientBuilder::deadline).
    ///
    /// # Cancel safety
    /// If it is dropped, the server may or may not have taken the results.
    pub async fn settle(
        &self,
        leases: impl IntoIterator<Item = LeaseId>,
        verdict: Verdict,
    ) -> Result<Vec<(LeaseId, Error)>, Error> {
        receive::settle(&self.client, &self.name, leases, verdict).await
    }

    /// Begins to build a peek: it shows messages and leaves them as they are.
    pub fn peek(&self) -> PeekBuilder {
        PeekBuilder::new(self.client.clone(), &self.name)
    }

    fn deadline(&self) -> Instant {
        after(Instant::now(), self.client.options().deadline)
    }
}

/// The result of a [posted](Queue::post) message: a future of the result of [`Queue::send`].
///
/// The client sends the message whether or not the application awaits this. The client's deadline counts from the call
/// of [`Queue::post`].
#[derive(Debug)]
#[must_use = "the message may be refused or lost; await the receipt to know"]
pub struct Receipt {
    answer: Handed,
}

impl Future for Receipt {
    type Output = Result<Sent, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(context)
    }
}
