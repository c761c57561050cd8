//! A message that a consumer holds.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fila_proto::v1;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::lease::Lease;
use crate::message::MessageId;
use crate::{Error, History};

/// A message as its consumer receives it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The id of the message.
    pub id: MessageId,
    /// The fairness key of the message.
    pub key: String,
    /// The weight of its fairness key.
    pub weight: u32,
    /// The headers that its producer has set.
    pub headers: BTreeMap<String, String>,
    /// The payload.
    pub payload: Bytes,
    /// The number of this delivery: 1 for the first. Deliveries that did not fail do not count.
    pub attempt: u32,
    /// How many consumers were lost while they held the message, since the server started.
    pub lost: u32,
    /// When the broker has stored it.
    pub enqueued_at: SystemTime,
    /// The failures of earlier deliveries, if there are any. For a dead letter, also its origin.
    pub history: Option<History>,
}

impl Received {
    /// Returns the header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn from_wire(wire: v1::Delivery) -> Self {
        Self {
            id: MessageId::new(wire.message_id),
            key: wire.fairness_key,
            weight: wire.weight,
            headers: wire.headers,
            payload: wire.payload,
            attempt: wire.attempt,
            lost: wire.lost,
            enqueued_at: SystemTime::UNIX_EPOCH + Duration::from_millis(wire.enqueued_at_ms),
            history: wire.history.map(History::from),
        }
    }
}

/// Leaves the payload out, because payloads must not get into logs.
impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("id", &self.id.as_str())
            .field("key", &self.key)
            .field("headers", &self.headers)
            .field("payload_bytes", &self.payload.len())
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// A message that is leased to this consumer until the consumer calls [`ack`](Self::ack), [`nack`](Self::nack) or
/// [`release`](Self::release). It dereferences to [`Received`].
///
/// While it exists, the client [extends](crate::ConsumerBuilder::keep_leases) its lease. A drop without a result nacks
/// the message, so the next consumer sees a higher attempt.
///
/// Each method sends the result at once; the returned future waits until the server has stored it. The future may be
/// dropped, or awaited together with others.
#[must_use = "a delivery that is dropped is nacked; acknowledge, nack or release it"]
pub struct Delivery {
    received: Received,
    handle: LeaseHandle,
}

/// The lease of a message, without the message.
#[derive(Debug)]
pub(crate) struct LeaseHandle {
    pub(crate) lease_id: u64,
    pub(crate) lease: Arc<Lease>,
    pub(crate) reports: mpsc::UnboundedSender<DeliveryReport>,
    pub(crate) deadline: Duration,
    pub(crate) hold: Hold,
}

/// The effect of dropping a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The application has not seen the message: a drop releases it.
    Unseen,
    /// The application has seen the message: a drop nacks it.
    Seen,
    /// The message has its result: a drop does nothing.
    Over,
}

/// A result for the task that sends it.
#[derive(Debug)]
pub(crate) struct DeliveryReport {
    pub(crate) lease_id: u64,
    pub(crate) said: Said,
    pub(crate) answer: Option<oneshot::Sender<Result<(), Error>>>,
}

/// A statement on a delivery.
#[derive(Debug)]
pub(crate) enum Said {
    Verdict(Verdict),
    /// A handler begins. Only said of messages whose consumers were lost before; the task notices all others by itself.
    Begun,
}

/// The result of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The application has processed the message.
    Ack,
    /// Processing failed.
    Nack {
        /// The reason.
        error: String,
        /// The shortest time before the next delivery. The queue's retry policy decides if it is none.
        delay: Option<Duration>,
    },
    /// Processing continues: the lease is to last this much longer, counted from now.
    Extend(Duration),
    /// The application has not touched the message.
    Release,
}

impl Delivery {
    pub(crate) fn new(received: Received, handle: LeaseHandle) -> Self {
        Self { received, handle }
    }

    /// Acknowledges the message: it is processed, and the broker deletes it.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the lease ended before: the broker delivers the message again. [`Error::NoAnswer`] if
    /// the server does not confirm within the client's deadline: the result may or may not be stored. If the connection
    /// breaks, the client sends the result again on the next one.
    pub fn ack(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.settle(Verdict::Ack)
    }

    /// Reports that processing failed. The broker delivers the message again as the queue's retry policy says, or makes
    /// it a dead letter if this was its last attempt. It stores the error with the message.
    ///
    /// # Errors
    /// As for [`ack`](Self::ack).
    pub fn nack(
        self,
        error: impl Into<String>,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let error = error.into();
        self.settle(Verdict::Nack { error, delay: None })
    }

    /// Reports that processing failed. The broker delivers the message again after this delay, whatever the queue's
    /// retry policy says, unless this was its last attempt.
    ///
    /// # Errors
    /// As for [`ack`](Self::ack).
    pub fn nack_after(
        self,
        error: impl Into<String>,
        delay: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let error = error.into();
        let delay = Some(delay);
        self.settle(Verdict::Nack { error, delay })
    }

    /// Gives the message back untouched: the broker delivers it again and does not count an attempt.
    ///
    /// # Errors
    /// As for [`ack`](Self::ack).
    pub fn release(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.settle(Verdict::Release)
    }

    /// Makes the lease last this much longer, counted from now. Leases that the client
    /// [keeps](crate::ConsumerBuilder::keep_leases) do not need it.
    ///
    /// # Errors
    /// As for [`ack`](Self::ack).
    pub fn extend(
        &self,
        time: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.handle.report(Verdict::Extend(time))
    }

    /// Returns whether the lease has ended. Another consumer may have the message by now.
    pub fn is_lost(&self) -> bool {
        self.handle.lease.is_lost()
    }

    /// Waits until the lease has ended: for handlers that then stop.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let lease = self.handle.lease.clone();
        async move { lease.lost().await }
    }

    fn settle(
        mut self,
        verdict: Verdict,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.handle.settle(verdict)
    }

    /// Notes that the application has it from now on.
    pub(crate) fn see(&mut self) {
        self.handle.hold = Hold::Seen;
        self.handle.lease.begin();
    }

    /// Tells the server that a handler begins, before it does. Returns the server's answer.
    pub(crate) fn announce(&self) -> oneshot::Receiver<Result<(), Error>> {
        self.handle.say(Said::Begun).1
    }

    /// Separates the message from its lease.
    pub(crate) fn split(self) -> (Received, LeaseHandle) {
        (self.received, self.handle)
    }
}

impl LeaseHandle {
    /// Sends the result of the message. A drop does nothing from then on.
    pub(crate) fn settle(
        &mut self,
        verdict: Verdict,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static + use<> {
        self.hold = Hold::Over;
        self.report(verdict)
    }

    fn report(
        &self,
        verdict: Verdict,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static + use<> {
        let (is_handed, answered) = self.say(Said::Verdict(verdict));
        let deadline = self.deadline;
        async move {
            if !is_handed {
                return Err(Error::LeaseLost);
            }
            match timeout(deadline, answered).await {
                Ok(Ok(result)) => result,
                // The task has ended, and the connection with it.
                Ok(Err(_)) => Err(Error::LeaseLost),
                Err(_) => Err(Error::NoAnswer {
                    after: deadline,
                    cause: None,
                }),
            }
        }
    }
}

impl LeaseHandle {
    /// Says something to the task, and returns whether the task is there, and its answer.
    fn say(&self, said: Said) -> (bool, oneshot::Receiver<Result<(), Error>>) {
        let (answer, answered) = oneshot::channel();
        let handed = self.reports.send(DeliveryReport {
            lease_id: self.lease_id,
            said,
            answer: Some(answer),
        });
        (handed.is_ok(), answered)
    }
}

impl Drop for LeaseHandle {
    fn drop(&mut self) {
        let verdict = match self.hold {
            Hold::Unseen => Verdict::Release,
            Hold::Seen => Verdict::Nack {
                error: "dropped without a result".to_owned(),
                delay: None,
            },
            Hold::Over => return,
        };
        // If the task has ended, so have the leases.
        let _ = self.reports.send(DeliveryReport {
            lease_id: self.lease_id,
            said: Said::Verdict(verdict),
            answer: None,
        });
    }
}

impl Deref for Delivery {
    type Target = Received;

    fn deref(&self) -> &Received {
        &self.received
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
