//! `Consume`: a stream of deliveries, for consumers that send their results in other calls.

use fila_core::{Beginnings, ConsumerKind, Dismissal, Refused};
use fila_proto::v1::{ConsumeRequest, ConsumeResponse, ErrorCode};
use tonic::Status;

use super::delivery_buffer::DeliveryBuffer;
use super::refusal::Refusal;
use super::trace::Tracing;
use crate::runtime::{CallError, Consumer, Framed, Handle, Outgoing};

/// The stream of one consumer. If it is dropped, the client has hung up, or the connection broke.
#[derive(Debug)]
pub(super) struct Consuming {
    consumer: Consumer,
    tracing: Tracing,
    buffer: DeliveryBuffer,
    /// How the stream ends after the buffer is sent. `None` while it goes on.
    end: Option<Result<(), Status>>,
}

impl Consuming {
    pub(super) async fn begin(
        handle: &Handle,
        tracing: Tracing,
        request: ConsumeRequest,
    ) -> Result<Self, CallError> {
        let queue = handle.queue(&request.queue)?;
        let limits = handle.limits();
        let prefetch = match request.prefetch {
            0 => limits.prefetch_default.get(),
            prefetch => prefetch,
        };
        let prefetch = prefetch.min(limits.in_flight_per_consumer.get());
        let kind = ConsumerKind::Stream(Beginnings::Assumed);
        let mut consumer = handle.subscribe(&queue, prefetch, kind).await?;
        // Credit is unlimited, because `prefetch` bounds the leases.
        consumer.credit(u64::MAX);
        Ok(Self {
            consumer,
            tracing,
            buffer: DeliveryBuffer::default(),
            end: None,
        })
    }

    /// Returns where it notes the bytes of its frames.
    pub(super) fn framed(&self) -> Framed {
        self.buffer.framed()
    }

    /// Waits for the next frame.
    pub(super) async fn next(&mut self) -> Option<Result<ConsumeResponse, Status>> {
        while self.buffer.is_empty() {
            if let Some(end) = self.end.take() {
                return end.err().map(Err);
            }
            let outgoing = self.consumer.next().await;
            self.take(outgoing);
        }
        while !self.buffer.fills_a_frame()
            && let Some(outgoing) = self.consumer.next_now()
        {
            self.take(Some(outgoing));
        }
        let deliveries = self.buffer.frame_of(self.consumer.queue(), self.tracing);
        Some(Ok(ConsumeResponse { deliveries }))
    }

    fn take(&mut self, outgoing: Option<Outgoing>) {
        match outgoing {
            Some(Outgoing::Deliveries(parcel)) => self.buffer.add(parcel),
            Some(Outgoing::Dismissed(why)) => {
                self.end = Some(dismissed(why, self.consumer.queue().name.as_str()));
            }
            Some(Outgoing::Stopped) | None => self.end = Some(Err(stopped())),
        }
    }
}

impl Drop for Consuming {
    fn drop(&mut self) {
        self.consumer.not_sent(self.buffer.leases());
    }
}

/// Returns how the stream or the call of a dismissed consumer ends.
pub(super) fn dismissed(why: Dismissal, queue: &str) -> Result<(), Status> {
    match why {
        Dismissal::Drained | Dismissal::Served => Ok(()),
        Dismissal::QueueGone => Err(Refusal::queue_deleted(queue).into()),
        Dismissal::StoreFailed => Err(Refusal::from(Refused::StoreFailed).into()),
    }
}

/// Returns how streams end when the server stops.
pub(super) fn stopped() -> Status {
    let text = CallError::ShuttingDown.to_string();
    Refusal::new(ErrorCode::ShuttingDown, text).into()
}
