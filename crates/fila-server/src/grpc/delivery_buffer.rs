//! A buffer that packs deliveries into frames: many per frame under load, and a single one without delay.

use std::collections::VecDeque;

use fila_core::{Delivery, LeaseId};
use fila_proto::v1;
use fila_store::QueueId;

use super::message;
use super::trace::Tracing;
use crate::runtime::{Framed, InTransit, Parcel, QueueEntry};

/// The most messages in one frame.
const FRAME_MESSAGES: usize = 1_024;

/// About how many bytes one frame has: the last message may exceed it. gRPC clients read 4 MiB by default.
const FRAME_BYTES: usize = 512 << 10;

/// Deliveries that were taken out of a consumer's channel and not sent yet. The consumer's credit bounds it.
#[derive(Debug, Default)]
pub(super) struct DeliveryBuffer {
    deliveries: VecDeque<Delivery>,
    transit: Option<InTransit>,
    framed: Framed,
}

impl DeliveryBuffer {
    pub(super) fn add(&mut self, parcel: Parcel) {
        if self.deliveries.is_empty() {
            self.deliveries = parcel.deliveries.into();
        } else {
            self.deliveries.extend(parcel.deliveries);
        }
        match &mut self.transit {
            Some(transit) => transit.add(parcel.transit),
            None => self.transit = Some(parcel.transit),
        }
    }

    /// Drops all deliveries.
    pub(super) fn clear(&mut self) {
        self.deliveries.clear();
        self.transit = None;
    }

    /// Returns where it notes the bytes of its frames, for the response that sends them.
    pub(super) fn framed(&self) -> Framed {
        self.framed.clone()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }

    /// Returns the leases of the deliveries that are not sent.
    pub(super) fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.deliveries.iter().map(|delivery| delivery.lease)
    }

    /// Tells whether it has enough for a frame.
    pub(super) fn fills_a_frame(&self) -> bool {
        self.deliveries.len() >= FRAME_MESSAGES
    }

    /// Takes out the next frame for a consumer of this queue.
    pub(super) fn frame_of(&mut self, queue: &QueueEntry, tracing: Tracing) -> Vec<v1::Delivery> {
        let frame = self.frame(queue.first());
        for delivery in &frame {
            tracing.deliver(queue.name.as_str(), delivery);
        }
        frame
    }

    fn frame(&mut self, first: QueueId) -> Vec<v1::Delivery> {
        let mut frame = Vec::with_capacity(self.deliveries.len().min(FRAME_MESSAGES));
        let (mut bytes, mut counted) = (0, 0);
        while frame.len() < FRAME_MESSAGES && bytes < FRAME_BYTES {
            let Some(delivery) = self.deliveries.pop_front() else {
                break;
            };
            let sizes = delivery.payload.sizes();
            bytes += sizes.headers as usize + sizes.body as usize;
            counted += delivery.bytes();
            frame.push(message::delivery(first, delivery));
        }
        if let Some(transit) = &mut self.transit {
            self.framed.add(transit.split(counted));
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fila_store::{FairnessKey, MessageId, Payload, Timestamp};

    use super::*;

    fn deliveries(count: u64, bytes: usize) -> Vec<Delivery> {
        let delivery = |number| Delivery {
            message: MessageId::from_number(number),
            lease: LeaseId::from_number(number),
            fairness_key: FairnessKey::new("a").unwrap(),
            payload: Payload::new(Vec::new(), vec![0; bytes]).unwrap(),
            attempt: 1,
            weight: 1,
            enqueued_at: Timestamp::from_millis(0),
            lease_time: Duration::from_secs(1),
            history: None,
            lost: 0,
        };
        (0..count).map(delivery).collect()
    }

    #[test]
    fn frames_are_bounded_by_messages_and_by_bytes() {
        let queue = QueueId::new(1);
        let mut small = DeliveryBuffer::default();
        small.add(Parcel::uncounted(deliveries(2_000, 1)));
        assert!(small.fills_a_frame());
        assert_eq!(small.frame(queue).len(), FRAME_MESSAGES);
        assert_eq!(small.frame(queue).len(), 2_000 - FRAME_MESSAGES);
        assert!(small.is_empty() && small.frame(queue).is_empty());

        let mut large = DeliveryBuffer::default();
        large.add(Parcel::uncounted(deliveries(3, 1 << 20)));
        assert_eq!(large.frame(queue).len(), 1);
    }
}
