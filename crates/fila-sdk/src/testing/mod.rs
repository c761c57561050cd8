//! Doubles for tests of code that uses this crate: no server, no port, no disk. With the feature `testing`.
//!
//! # A handler alone
//!
//! [`delivery`] makes a delivery out of a message, and an [`Outcome`] that tells what the code under test did with it:
//!
//! ```
//! use fila_sdk::{Delivery, Error, Message, Verdict, testing};
//!
//! async fn handle(order: Delivery) -> Result<(), Error> {
//!     if order.payload.is_empty() {
//!         return order.nack("an order without lines").await;
//!     }
//!     order.ack().await
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let (order, mut outcome) = testing::delivery(Message::new("").key("acme"));
//! handle(order).await.unwrap();
//! let Some(Verdict::Nack { error, .. }) = outcome.verdict().await else { panic!() };
//! assert_eq!(error, "an order without lines");
//! # }
//! ```
//!
//! A handler of a [worker](crate::WorkerBuilder) takes a [`Received`]; [`received`] makes one.
//!
//! # A whole client
//!
//! A [`Broker`] answers a real [`Client`](crate::Client) from memory, over a pipe inside the process. Its queues behave as
//! the server's, and it obeys: connections break, answers get lost and messages are refused when the test says so. It runs on Tokio's clock,
//! so leases, delays and deadlines pass at once in tests that pause it.
//!
//! ```
//! use fila_sdk::{Message, testing};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), fila_sdk::Error> {
//! let broker = testing::Broker::new();
//! broker.create_queue("orders");
//! let orders = broker.client().queue("orders");
//!
//! broker.lose_answer(); // stored, but the connection breaks before the producer hears of it
//! orders.send(Message::new("seven").key("acme")).await?;
//! assert_eq!(broker.depth("orders"), 1); // sent twice, stored once
//! # Ok(())
//! # }
//! ```

mod admin;
mod broker;
mod queues;
mod service;
mod streams;
mod wire;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

pub use self::broker::Broker;
#[doc(hidden)]
pub use self::broker::client_over;
#[doc(hidden)]
pub use self::streams::{Answer, Responses, Streams, StreamsOnly};
use crate::consumer::{DeliveryReport, Hold, Lease, LeaseHandle, Said};
use crate::message::MessageId;
use crate::{Delivery, Message, Received, Verdict};

/// How a received message is called that never was in a queue.
const NOWHERE: &str = "00000000-0000-8000-8000-000000000000";

/// Returns a message as a handler gets it: delivered for the first time, just now.
pub fn received(message: impl Into<Message>) -> Received {
    let wire = message.into().wire;
    Received {
        id: MessageId::new(NOWHERE.to_owned()),
        key: if wire.fairness_key.is_empty() {
            "default".to_owned()
        } else {
            wire.fairness_key
        },
        weight: wire.weight.unwrap_or(1),
        headers: wire.headers,
        payload: wire.payload,
        attempt: 1,
        lost: 0,
        enqueued_at: SystemTime::now(),
        history: None,
    }
}

/// Returns a delivery of this message, and what will tell of its outcome. Results are confirmed at once.
///
/// Must be called within a Tokio runtime.
pub fn delivery(message: impl Into<Message>) -> (Delivery, Outcome) {
    deliver(received(message))
}

/// As [`delivery`], of a message that is made by hand: one of a later attempt, say.
pub fn deliver(received: Received) -> (Delivery, Outcome) {
    let (reports, mut incoming) = mpsc::unbounded_channel::<DeliveryReport>();
    let (said, verdicts) = mpsc::unbounded_channel();
    let handle = LeaseHandle {
        lease_id: 0,
        lease: Arc::new(Lease::default()),
        reports,
        deadline: Duration::from_secs(30),
        hold: Hold::Seen,
    };
    tokio::spawn(async move {
        while let Some(report) = incoming.recv().await {
            // The test may look at one of both only.
            if let Said::Verdict(verdict) = report.said {
                let _ = said.send(verdict);
            }
            let _ = report.answer.map(|answer| answer.send(Ok(())));
        }
    });
    (Delivery::new(received, handle), Outcome { verdicts })
}

/// The verdicts of the code under test on a delivery.
#[derive(Debug)]
pub struct Outcome {
    verdicts: mpsc::UnboundedReceiver<Verdict>,
}

impl Outcome {
    /// Waits for the next thing that is said of the delivery: extensions, and the result at last. None after that. A
    /// delivery that is dropped is nacked.
    pub async fn verdict(&mut self) -> Option<Verdict> {
        self.verdicts.recv().await
    }
}
