//! How messages come from the server: a stream of deliveries, and their results on the way back.
//!
//! A task of its own ([`driver`]) holds the work stream: it grants credit, keeps leases, sends results in batches and
//! subscribes again when the connection breaks. Deliveries wait in a channel until somebody takes them.
//!
//! What always holds:
//! - Credit that the server has, messages in the channel and messages in somebody's hands are together never more than
//!   the prefetch.
//! - A delivery has one result: the one it is given, or the one of its drop. After the connection broke, results of
//!   deliveries from before are answered with [`Error::LeaseLost`](crate::Error::LeaseLost), and such as nobody has
//!   taken yet are not handed out any more. Of results that were on their way then it is not known whether they are
//!   stored: [`Error::NoAnswer`](crate::Error::NoAnswer).

mod delivery;
mod driver;
mod lease;

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};

pub use self::delivery::{Delivery, Received, Verdict};
#[cfg(feature = "testing")]
pub(crate) use self::delivery::{DeliveryReport, Hold, LeaseHandle};
use self::driver::ConsumerDriver;
#[cfg(feature = "testing")]
pub(crate) use self::lease::Lease;
use crate::{Client, Error};

/// Settings of a [`Consumer`] to be. From [`Queue::consumer`](crate::Queue::consumer).
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

    /// Says how many messages may be here at once, waiting or in work; 64 by default, at least 1.
    ///
    /// More hides the way to the server and back; fewer leave more for other consumers.
    pub fn prefetch(mut self, messages: u32) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// Says for how long leases are extended by themselves, counted from the delivery; 1 hour by default. Zero leaves
    /// them as they are, to be [extended](Delivery::extend) or to run out.
    ///
    /// The limit is there for work that hangs: its message comes to another consumer in the end.
    pub fn keep_leases(mut self, time: Duration) -> Self {
        self.keep = time;
        self
    }

    /// Subscribes. Whether the queue exists is seen by the first item of the stream.
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
        Consumer { deliveries, end }
    }
}

/// A stream of [deliveries](Delivery). From [`ConsumerBuilder::subscribe`].
///
/// It lasts: when the connection breaks or the server is restarted, it subscribes again, and messages that were in work
/// are delivered again. It ends only after an error that would not pass by itself, as of a queue that does not exist.
///
/// Dropping it gives back what was not taken yet. Deliveries that were taken stay valid, and their results are sent.
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
#[must_use = "a consumer that is dropped is over"]
pub struct Consumer {
    deliveries: mpsc::UnboundedReceiver<Result<Delivery, Error>>,
    end: oneshot::Receiver<()>,
}

impl Consumer {
    /// Waits for the next delivery. None after an error that has ended the stream.
    ///
    /// # Errors
    /// [`Error::Refused`] if the server does not let us consume, as from a queue that does not exist.
    ///
    /// # Cancel safety
    /// May be dropped at any time: no delivery is lost by it.
    pub async fn next(&mut self) -> Option<Result<Delivery, Error>> {
        poll_fn(|context| self.poll(context)).await
    }

    /// Ends the consumer: gives back what was not taken yet, and waits until the results of all that was taken are
    /// stored.
    ///
    /// # Cancel safety
    /// Dropped, it does the same, and nobody waits for it.
    pub async fn stop(self) {
        let Self { deliveries, end } = self;
        drop(deliveries);
        // It has ended if it does not say so.
        let _ = end.await;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delivery, Error>>> {
        loop {
            return match self.deliveries.poll_recv(context) {
                // It came on a connection that broke, and is delivered again.
                Poll::Ready(Some(Ok(delivery))) if delivery.is_lost() => continue,
                Poll::Ready(Some(Ok(mut delivery))) => {
                    delivery.see();
                    Poll::Ready(Some(Ok(delivery)))
                }
                other => other,
            };
        }
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
