//! A consumer as its connection has it: where its deliveries arrive, and what ends when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fila_core::{Command, ConsumerId, Delivery, Dismissal};
use tokio::sync::mpsc;

use crate::runtime::calls::credit::CreditWindow;
use crate::runtime::queues::registry::QueueEntry;
use crate::runtime::threads::inbox::{Inbox, Input};

/// What a consumer is sent.
#[derive(Debug)]
pub enum Outgoing {
    /// Messages, leased to it.
    Deliveries(Vec<Delivery>),
    /// Nothing any more, and why.
    Dismissed(Dismissal),
    /// Nothing any more: the server stops.
    Stopped,
}

/// A consumer of one queue. Dropping it gives back at once what it has.
#[derive(Debug)]
#[must_use]
pub struct Consumer {
    id: ConsumerId,
    queue: Arc<QueueEntry>,
    inbox: Inbox,
    outgoing: mpsc::UnboundedReceiver<Outgoing>,
    window: CreditWindow,
    _permit: ConsumerPermit,
}

impl Consumer {
    pub(crate) fn new(
        id: ConsumerId,
        queue: Arc<QueueEntry>,
        inbox: Inbox,
        outgoing: mpsc::UnboundedReceiver<Outgoing>,
        permit: ConsumerPermit,
    ) -> Self {
        Self {
            id,
            queue,
            inbox,
            outgoing,
            window: CreditWindow::new(),
            _permit: permit,
        }
    }

    /// Returns the queue it consumes.
    pub fn queue(&self) -> &Arc<QueueEntry> {
        &self.queue
    }

    /// Waits for what is sent to it; nothing comes after a dismissal.
    ///
    /// # Cancel safety
    /// Dropped before it is done, it has taken nothing.
    pub async fn next(&mut self) -> Option<Outgoing> {
        let outgoing = self.outgoing.recv().await?;
        Some(self.taken(outgoing))
    }

    /// Returns what has been sent to it by now.
    pub fn next_now(&mut self) -> Option<Outgoing> {
        let outgoing = self.outgoing.try_recv().ok()?;
        Some(self.taken(outgoing))
    }

    /// Lets it be sent more.
    pub fn credit(&mut self, more: u64) {
        let grant = self.window.add(more);
        self.grant(grant);
    }

    /// Lets it be sent no more. It is [dismissed](Outgoing::Dismissed) when all it has is settled.
    pub fn drain(&self) {
        let consumer = self.id;
        self.inbox
            .put_now(Input::Command(Command::Drain { consumer }));
    }

    fn taken(&mut self, outgoing: Outgoing) -> Outgoing {
        if let Outgoing::Deliveries(deliveries) = &outgoing {
            let bytes = deliveries.iter().map(size).sum();
            let grant = self.window.taken(deliveries.len(), bytes);
            self.grant(grant);
        }
        outgoing
    }

    /// Tells the broker, without waiting: of these there are never more on the way than the window has places.
    fn grant(&self, more: u32) {
        if more > 0 {
            let consumer = self.id;
            self.inbox
                .put_now(Input::Command(Command::Credit { consumer, more }));
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let consumer = self.id;
        self.inbox
            .put_now(Input::Command(Command::Unsubscribe { consumer }));
    }
}

fn size(delivery: &Delivery) -> usize {
    let sizes = delivery.payload.sizes();
    sizes.headers as usize + sizes.body as usize
}

/// Permission to be one of the consumers that a server may have.
#[derive(Debug)]
pub(crate) struct ConsumerPermit(Arc<AtomicUsize>);

impl ConsumerPermit {
    /// Takes a permit, if one is left.
    pub(crate) fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let free = |count| (count < max).then_some(count + 1);
        let update = taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, free);
        update.ok().map(|_| Self(taken.clone()))
    }
}

impl Drop for ConsumerPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_that_is_given_back_can_be_taken_again() {
        let taken = Arc::new(AtomicUsize::new(0));
        let first = ConsumerPermit::take(&taken, 1).unwrap();
        assert!(ConsumerPermit::take(&taken, 1).is_none());
        drop(first);
        assert!(ConsumerPermit::take(&taken, 1).is_some());
    }
}
