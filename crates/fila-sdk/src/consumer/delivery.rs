//! A message in the hands of its consumer.

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

/// A message as its consumer gets it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// What it is called.
    pub id: MessageId,
    /// Whose share of the queue it has used.
    pub key: String,
    /// The weight of its fairness key.
    pub weight: u32,
    /// What its producer said about it.
    pub headers: BTreeMap<String, String>,
    /// What it carries.
    pub payload: Bytes,
    /// Which delivery of it this is: 1 for the first.
    pub attempt: u32,
    /// When it was stored.
    pub enqueued_at: SystemTime,
    /// What has gone wrong with it, if something has; for a dead letter, where it came from.
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
            enqueued_at: SystemTime::UNIX_EPOCH + Duration::from_millis(wire.enqueued_at_ms),
            history: wire.history.map(History::from),
        }
    }
}

/// Payloads are not for logs.
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

/// A message that is leased to this consumer, until one of [`ack`](Self::ack), [`nack`](Self::nack) and
/// [`release`](Self::release) says what became of it. Its fields are those of [`Received`].
///
/// While it exists, its lease is [kept](crate::ConsumerBuilder::keep_leases). Dropped without a result it is nacked:
/// whoever gets it next sees by its attempt that this was tried before.
///
/// Results are on their way as soon as the method is called; the future it returns says when they are stored. It may be
/// dropped, or awaited together with others.
#[must_use = "a delivery that is dropped is nacked; say what became of it"]
pub struct Delivery {
    received: Received,
    handle: LeaseHandle,
}

/// The hold on a message, without the message.
#[derive(Debug)]
pub(crate) struct LeaseHandle {
    pub(crate) session: u64,
    pub(crate) lease_id: u64,
    pub(crate) lease: Arc<Lease>,
    pub(crate) reports: mpsc::UnboundedSender<DeliveryReport>,
    pub(crate) deadline: Duration,
    pub(crate) hold: Hold,
}

/// What dropping a handle means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nobody has seen the message yet: it goes back as if it had never been here.
    Unseen,
    /// Somebody has it, and may have done something with it.
    Seen,
    /// Its result is said.
    Over,
}

/// A result on its way to the task that sends it.
#[derive(Debug)]
pub(crate) struct DeliveryReport {
    pub(crate) session: u64,
    pub(crate) lease_id: u64,
    pub(crate) verdict: Verdict,
    pub(crate) answer: Option<oneshot::Sender<Result<(), Error>>>,
}

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It was processed.
    Ack,
    /// Processing failed.
    Nack {
        /// Why.
        error: String,
        /// Not to be delivered again before this time has passed; as the queue's retry policy says, if none is given.
        delay: Option<Duration>,
    },
    /// Processing goes on: the lease is to last so much longer, counted from now.
    Extend(Duration),
    /// It was not touched.
    Release,
}

impl Delivery {
    pub(crate) fn new(received: Received, handle: LeaseHandle) -> Self {
        Self { received, handle }
    }

    /// Says that the message was processed: it is deleted for ever.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the lease has ended before: the message is delivered again. [`Error::NoAnswer`] if the
    /// server does not say within the client's deadline, or the connection breaks before it does: the result may or may
    /// not be stored.
    pub fn ack(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.settle(Verdict::Ack)
    }

    /// Says that processing failed: the message is delivered again when the queue's retry policy says so, or becomes a
    /// dead letter if this was its last attempt. The error is kept with it.
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

    /// Says that processing failed: the message is delivered again after this delay, whatever the queue's retry policy
    /// says, unless this was its last attempt.
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

    /// Gives the message back untouched: it is delivered again, and no attempt is counted.
    ///
    /// # Errors
    /// As for [`ack`](Self::ack).
    pub fn release(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.settle(Verdict::Release)
    }

    /// Makes the lease last so much longer, counted from now. Leases that are
    /// [kept](crate::ConsumerBuilder::keep_leases) need none of this.
    ///
    /// # Errors
    /// As for [`ack`](Self::ack).
    pub fn extend(
        &self,
        time: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.handle.report(Verdict::Extend(time))
    }

    /// Whether the lease has ended: another consumer may have the message by now.
    pub fn is_lost(&self) -> bool {
        self.handle.lease.is_lost()
    }

    /// Waits until the lease has ended: for handlers that want to stop then.
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

    pub(crate) fn see(&mut self) {
        self.handle.hold = Hold::Seen;
    }

    /// Takes the message out of its handle.
    pub(crate) fn split(self) -> (Received, LeaseHandle) {
        (self.received, self.handle)
    }
}

impl LeaseHandle {
    /// Says what became of the message. Dropping it means nothing any more.
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
        let (answer, answered) = oneshot::channel();
        let handed = self.reports.send(DeliveryReport {
            session: self.session,
            lease_id: self.lease_id,
            verdict,
            answer: Some(answer),
        });
        let deadline = self.deadline;
        async move {
            if handed.is_err() {
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
            session: self.session,
            lease_id: self.lease_id,
            verdict,
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
