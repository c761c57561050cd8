//! Messages for a program that keeps no stream: it takes some, and reports their results by calls.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use fila_proto::v1;
use tonic::Response;

use crate::message::millis;
use crate::{Client, Error, ErrorCode, Received, Refusal, Verdict};

/// The most messages of one call.
const MESSAGES_MAX: u32 = 1_000;

/// The longest wait of one call.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Takes messages once, without a stream. From [`Queue::receive`](crate::Queue::receive).
///
/// For programs that run for a moment, as a cron job does. A program that runs on is better served by a
/// [consumer](crate::Queue::consumer) or a [worker](crate::Queue::worker), which extend leases and need no polling.
///
/// ```
/// use std::time::Duration;
/// use fila_sdk::Verdict;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fila_sdk::Error> {
/// # let broker = fila_sdk::testing::Broker::new();
/// # broker.create_queue("orders");
/// # let client = broker.client();
/// # client.queue("orders").send("seven").await?;
/// let orders = client.queue("orders");
/// let taken = orders.receive().limit(10).wait(Duration::from_secs(20)).run().await?;
/// let mut done = Vec::new();
/// for order in &taken {
///     println!("{} from {}", order.id, order.key);
///     done.push(order.lease);
/// }
/// let refused = orders.settle(done, Verdict::Ack).await?;
/// assert!(refused.is_empty());
/// # assert_eq!(broker.acked("orders"), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is received until it runs"]
pub struct ReceiveBuilder {
    client: Client,
    request: v1::ReceiveRequest,
}

/// Identifies the lease of a [received](ReceiveBuilder) message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId(u64);

/// A message that is leased to the program for some time. It dereferences to [`Received`].
///
/// The lease does not depend on the connection or on this value: it lasts until [`Queue::settle`](crate::Queue::settle)
/// reports a result or its time is over. In the second case the delivery has failed.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leased {
    /// The message.
    pub message: Received,
    /// The lease. [`Queue::settle`](crate::Queue::settle) takes its result.
    pub lease: LeaseId,
    /// How long the lease lasts, counted from the delivery.
    pub lease_time: Duration,
}

impl ReceiveBuilder {
    pub(crate) fn new(client: Client, queue: &str) -> Self {
        let request = v1::ReceiveRequest {
            queue: queue.to_owned(),
            ..v1::ReceiveRequest::default()
        };
        Self { client, request }
    }

    /// Sets how many messages to take at most, from 1 to 1,000; 1 by default.
    pub fn limit(mut self, messages: u32) -> Self {
        self.request.messages_max = messages.clamp(1, MESSAGES_MAX);
        self
    }

    /// Sets how long the server waits for the first message, up to 60 s; it does not wait by default.
    pub fn wait(mut self, time: Duration) -> Self {
        self.request.wait_ms = millis(time.min(WAIT_MAX));
        self
    }

    /// Sets how long the messages are leased; the queue's visibility timeout by default.
    pub fn lease(mut self, time: Duration) -> Self {
        self.request.lease_ms = millis(time).max(1);
        self
    }

    /// Takes the messages. Returns none if no message was ready in time. There can be fewer than the limit although more
    /// are ready: the server ends with the message that takes the response over 64 KiB.
    ///
    /// # Errors
    /// If there is no such queue, or the server does not answer within the wait and the client's
    /// [deadline](crate::ClientBuilder::deadline).
    ///
    /// # Cancel safety
    /// May be dropped at any time. Messages that the server has sent by then stay leased for their time; all others are
    /// ready at once, and count no attempt.
    pub async fn run(&self) -> Result<Vec<Leased>, Error> {
        let mut service = self.client.service();
        let wait = Duration::from_millis(self.request.wait_ms);
        let call = service.receive(self.request.clone());
        let received = self.client.call_after(wait, call).await?;
        Ok(received.deliveries.into_iter().map(Leased::from).collect())
    }
}

impl From<v1::Delivery> for Leased {
    fn from(wire: v1::Delivery) -> Self {
        Self {
            lease: LeaseId(wire.lease_id),
            lease_time: Duration::from_millis(wire.lease_ms),
            message: Received::from_wire(wire),
        }
    }
}

impl Deref for Leased {
    type Target = Received;

    fn deref(&self) -> &Received {
        &self.message
    }
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.message, f)
    }
}

/// Reports the same result for leases of a queue, and returns those that the server has refused.
pub(crate) async fn settle(
    client: &Client,
    queue: &str,
    leases: impl IntoIterator<Item = LeaseId>,
    verdict: Verdict,
) -> Result<Vec<(LeaseId, Error)>, Error> {
    let (queue, mut service) = (queue.to_owned(), client.service());
    let lease_ids: Vec<u64> = leases.into_iter().map(|LeaseId(lease)| lease).collect();
    let call = async move {
        Ok(Response::new(match verdict {
            Verdict::Ack => {
                let request = v1::AckBatchRequest { queue, lease_ids };
                service.ack_batch(request).await?.into_inner().refused
            }
            Verdict::Nack { error, delay } => {
                let delay_ms = delay.map(millis);
                let nacks = lease_ids.into_iter().map(|lease_id| v1::LeaseNack {
                    lease_id,
                    error: error.clone(),
                    delay_ms,
                });
                let nacks = nacks.collect();
                let request = v1::NackBatchRequest { queue, nacks };
                service.nack_batch(request).await?.into_inner().refused
            }
            Verdict::Extend(time) => {
                let lease_ms = millis(time).max(1);
                let extensions = lease_ids.into_iter();
                let extensions =
                    extensions.map(|lease_id| v1::LeaseExtension { lease_id, lease_ms });
                let extensions = extensions.collect();
                let request = v1::ExtendBatchRequest { queue, extensions };
                service.extend_batch(request).await?.into_inner().refused
            }
            Verdict::Release => {
                let request = v1::ReleaseRequest { queue, lease_ids };
                service.release(request).await?.into_inner().refused
            }
        }))
    };
    let refused = client.call(call).await?.into_iter();
    Ok(refused.map(refusal).collect())
}

fn refusal(refused: v1::LeaseRefusal) -> (LeaseId, Error) {
    let error = match refused.error.map(Refusal::from_wire) {
        Some(refusal) if refusal.code != ErrorCode::LeaseNotFound => refusal.into(),
        _ => Error::LeaseLost,
    };
    (LeaseId(refused.lease_id), error)
}
