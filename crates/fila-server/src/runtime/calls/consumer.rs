//! A consumer as its connection holds it: it receives deliveries, and unsubscribes when it is dropped.
//!
//! A drop means that the stream broke and the client may come back for its leases, unless it was closed before. If a
//! call is dropped before its answer is sent, its leases have never been.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fila_core::{Command, ConsumerId, ConsumerKind, Departure, Dismissal, LeaseId};
use tokio::sync::mpsc;

use crate::runtime::calls::credit::CreditWindow;
use crate::runtime::calls::transit::Parcel;
use crate::runtime::queues::registry::QueueEntry;
use crate::runtime::threads::inbox::{Inbox, Input};

/// An event for a consumer.
#[derive(Debug)]
pub enum Outgoing {
    /// Messages, leased to it.
    Deliveries(Parcel),
    /// The broker has dismissed the consumer. No event follows.
    Dismissed(Dismissal),
    /// The server stops. No event follows.
    Stopped,
}

/// A consumer of one queue. Dropping it is a [loss](Departure::Lost) unless the client has ended its stream, or it is a
/// call.
#[derive(Debug)]
#[must_use]
pub struct Consumer {
    id: ConsumerId,
    queue: Arc<QueueEntry>,
    inbox: Inbox,
    outgoing: mpsc::UnboundedReceiver<Outgoing>,
    window: CreditWindow,
    departure: Departure,
    /// Leases that it took from its channel and the connection has not sent.
    unsent: Vec<LeaseId>,
    _permit: ConsumerPermit,
}

impl Consumer {
    pub(crate) fn new(
        (id, kind): (ConsumerId, ConsumerKind),
        queue: Arc<QueueEntry>,
        inbox: Inbox,
        outgoing: mpsc::UnboundedReceiver<Outgoing>,
        permit: ConsumerPermit,
    ) -> Self {
        let departure = match kind {
            ConsumerKind::Stream(_) => Departure::Lost,
            ConsumerKind::Call { .. } => Departure::Closed,
        };
        Self {
            id,
            queue,
            inbox,
            outgoing,
            window: CreditWindow::new(),
            departure,
            unsent: Vec::new(),
            _permit: permit,
        }
    }

    pub(crate) fn id(&self) -> ConsumerId {
        self.id
    }

    /// Notes that the client has ended its stream, and did not lose it.
    pub(crate) fn close(&mut self) {
        self.departure = Departure::Closed;
    }

    /// Ends a call whose answer is sent. Its leases go on.
    pub(crate) fn answered(mut self) {
        self.departure = Departure::Answered;
    }

    /// Notes that the connection will not send these deliveries. They go back to the queue as soon as the consumer ends.
    pub(crate) fn not_sent(&mut self, leases: impl Iterator<Item = LeaseId>) {
        self.unsent.extend(leases);
    }

    /// Returns the queue that it consumes.
    pub fn queue(&self) -> &Arc<QueueEntry> {
        &self.queue
    }

    /// Waits for the next event. No event follows a dismissal.
    ///
    /// # Cancel safety
    /// If it is dropped before it completes, it has taken nothing.
    pub async fn next(&mut self) -> Option<Outgoing> {
        let outgoing = self.outgoing.recv().await?;
        Some(self.taken(outgoing))
    }

    /// Returns the next event, if there is one already.
    pub fn next_now(&mut self) -> Option<Outgoing> {
        let outgoing = self.outgoing.try_recv().ok()?;
        Some(self.taken(outgoing))
    }

    /// Allows `more` further deliveries.
    pub fn credit(&mut self, more: u64) {
        let grant = self.window.add(more);
        self.grant(grant);
    }

    /// Ends deliveries. The consumer is [dismissed](Outgoing::Dismissed) when all its deliveries are settled; a call, when
    /// it has what is there.
    pub fn drain(&self) {
        let consumer = self.id;
        self.inbox
            .put_now_from_task(Input::Command(Command::Drain { consumer }));
    }

    fn taken(&mut self, outgoing: Outgoing) -> Outgoing {
        if let Outgoing::Deliveries(parcel) = &outgoing {
            let grant = self.window.taken(parcel.deliveries.len());
            self.grant(grant);
        }
        outgoing
    }

    /// Sends credit to the broker without waiting. The credit window bounds how many such commands are in the inbox.
    fn grant(&self, more: u32) {
        if more > 0 {
            let consumer = self.id;
            self.inbox
                .put_now_from_task(Input::Command(Command::Credit { consumer, more }));
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.outgoing.close();
        while let Ok(outgoing) = self.outgoing.try_recv() {
            if let Outgoing::Deliveries(parcel) = outgoing {
                let leases = parcel.deliveries.iter().map(|delivery| delivery.lease);
                self.unsent.extend(leases);
            }
        }
        self.inbox.put_now(Input::Command(Command::Unsubscribe {
            consumer: self.id,
            departure: self.departure,
            unsent: std::mem::take(&mut self.unsent),
        }));
    }
}

/// A permit to be one of the server's consumers.
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
