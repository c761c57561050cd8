//! Consumers: a stream of deliveries from the server, and their results on the way back.
//!
//! The task [`driver`] holds the work stream: it grants credit, extends leases, sends results in batches and subscribes
//! again when the connection breaks. Deliveries wait in a channel until the application takes them.
//!
//! Invariants:
//! - The credit that the server has, the messages in the channel and the messages that the application holds never
//!   exceed the prefetch together.
//! - A delivery has one result: the one that the application reports, or the one of its drop. When the connection
//!   breaks, the next stream takes the leases over and sends unconfirmed results again. Leases that the server has ended
//!   meanwhile are lost: their results fail with [`Error::LeaseLost`](crate::Error::LeaseLost), and the consumer does not
//!   hand out their messages. If such a result was on its way when the connection broke, it fails with
//!   [`Error::NoAnswer`](crate::Error::NoAnswer), because the client cannot know whether it is stored.
//! - The server knows which messages a handler has begun: it hears of one after 100 ms at the latest. A message whose
//!   consumers were lost before is handed out only when the server has confirmed that it begins. So a message that ends
//!   its consumer is charged for that, from the second time on at the latest, and a message that waited is not.

mod delivery;
mod driver;
mod held;
mod lease;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};

pub use self::delivery::{Delivery, Received, Verdict};
#[cfg(feature = "testing")]
pub(crate) use self::delivery::{DeliveryReport, Hold, LeaseHandle, Said};
use self::driver::ConsumerDriver;
#[cfg(feature = "testing")]
pub(crate) use self::lease::Lease;
use crate::{Client, Error};

/// Builds a [`Consumer`]. From [`Queue::consumer`](crate::Queue::consumer).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it subscribes"]
pub struct ConsumerBuilder {
    client: Client,
    queue: Arc<str>,
    prefetch: u32,
    keep: Duration,
}

impl ConsumerBuilder {
    pub(crate) fn new(client: Client, queue: Arc<str>) -> Self {
        Self {
            client,
            queue,
            prefetch: 64,
            keep: Duration::from_secs(60 * 60),
        }
    }

    /// Sets how many messages the consumer may hold at once, waiting or in work; 64 by default, at least 1.
    ///
    /// A larger prefetch hides the round trip to the server; a smaller one leaves more messages for other consumers.
    pub fn prefetch(mut self, messages: u32) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// Sets how long the client extends leases by itself, counted from the delivery; 1 hour by default. With zero, the
    /// application [extends](Delivery::extend) leases, or they run out.
    ///
    /// The limit protects against work that hangs: its message goes to another consumer in the end.
    pub fn keep_leases(mut self, time: Duration) -> Self {
        self.keep = time;
        self
    }

    /// Subscribes to the queue. If the queue does not exist, the first item of the stream is the error.
    ///
    /// Must be called within a Tokio runtime.
    pub fn subscribe(self) -> Consumer {
        let (to_consumer, deliveries) = mpsc::unbounded_channel();
        let (ended, end) = oneshot::channel();
        let driver = ConsumerDriver::new(
            &self.client,
            self.queue,
            self.prefetch,
            self.keep,
            to_consumer,
        );
        tokio::spawn(async move {
            driver.run().await;
            let _ = ended.send(());
        });
        Consumer {
            deliveries,
            suspect: None,
            end,
        }
    }
}

/// A stream of [deliveries](Delivery). From [`ConsumerBuilder::subscribe`].
///
/// It subscribes again when the connection breaks or the server restarts. If it is back within some seconds, its messages
/// are still its own; otherwise the broker delivers them again. It ends only after a permanent error, as for a queue that
/// does not exist.
///
/// A drop releases deliveries that still wait. Deliveries that the application holds stay valid, and the client sends
/// their results.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fila_sdk::Error> {
/// # let broker = fila_sdk::testing::Broker::new();
/// # broker.create_queue("orders");
/// # let client = broker.client();
/// # client.queue("orders").send("seven").await?;
/// let mut orders = client.queue("orders").consumer().prefetch(10).subscribe();
/// while let Some(order) = orders.next().await {
///     let order = order?;
///     println!("{} from {}", order.id, order.key);
///     order.ack().await?;
/// #   break;
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a dropped consumer receives nothing"]
pub struct Consumer {
    deliveries: mpsc::UnboundedReceiver<Result<Delivery, Error>>,
    /// The next delivery, if the server has to hear first that it begins.
    suspect: Option<Suspect>,
    end: oneshot::Receiver<()>,
}

/// A delivery of a message whose consumers were lost before.
struct Suspect {
    delivery: Delivery,
    announced: oneshot::Receiver<Result<(), Error>>,
}

impl Consumer {
    /// Waits for the next delivery. Returns none after an error that has ended the stream.
    ///
    /// # Errors
    /// [`Error::Refused`] if the server refuses the subscription, as for a queue that does not exist.
    ///
    /// # Cancel safety
    /// May be dropped at any time without losing a delivery.
    pub async fn next(&mut self) -> Option<Result<Delivery, Error>> {
        poll_fn(|context| self.poll(context)).await
    }

    /// Ends the consumer: releases deliveries that still wait, and returns when the server has stored the results of
    /// all others.
    ///
    /// # Cancel safety
    /// If the future is dropped, the consumer still ends this way in the background.
    pub async fn stop(self) {
        self.close().await;
    }

    /// Releases deliveries that still wait, and returns what completes when the server has all results.
    pub(crate) fn close(self) -> impl Future<Output = ()> {
        let Self {
            deliveries,
            suspect,
            end,
        } = self;
        drop((deliveries, suspect));
        async {
            // An error means that the task has already ended.
            let _ = end.await;
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delivery, Error>>> {
        loop {
            if self.suspect.is_some() {
                match ready!(self.poll_suspect(context)) {
                    Some(delivery) => return Poll::Ready(Some(Ok(delivery))),
                    None => continue,
                }
            }
            return match self.deliveries.poll_recv(context) {
                // Its lease has ended, and the broker delivers it again.
                Poll::Ready(Some(Ok(delivery))) if delivery.is_lost() => continue,
                Poll::Ready(Some(Ok(delivery))) if delivery.lost > 0 => {
                    self.suspect = Some(Suspect {
                        announced: delivery.announce(),
                        delivery,
                    });
                    continue;
                }
                Poll::Ready(Some(Ok(mut delivery))) => {
                    delivery.see();
                    Poll::Ready(Some(Ok(delivery)))
                }
                other => other,
            };
        }
    }

    /// Returns the delivery that waits for the server to hear of it. None if its lease has ended.
    fn poll_suspect(&mut self, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        let Some(suspect) = &mut self.suspect else {
            return Poll::Ready(None);
        };
        let answer = ready!(Pin::new(&mut suspect.announced).poll(context));
        let suspect = self.suspect.take();
        Poll::Ready(match answer {
            Ok(Ok(())) => suspect.map(|mut suspect| {
                suspect.delivery.see();
                suspect.delivery
            }),
            Ok(Err(_)) | Err(_) => None,
        })
    }
}

impl Stream for Consumer {
    type Item = Result<Delivery, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(context)
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}
