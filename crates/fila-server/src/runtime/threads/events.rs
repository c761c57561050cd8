//! Events: messages from the commit, reader and hook threads to a scheduler.
//!
//! Their queue is unbounded: a broker has only a few rounds under way, and one load per key.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use fila_core::{Committed, FailureToken, Judgement, LoadToken, LoadedMessages};
use fila_store::QueueId;

use crate::runtime::threads::scheduler::Scheduler;
use crate::runtime::threads::seat::Seat;

/// A message from another thread to a scheduler.
#[derive(Debug)]
pub(crate) enum Event {
    /// The outcomes of the oldest rounds under way.
    Committed(Vec<Committed>),
    /// Messages that a reader thread has read.
    Loaded {
        queue: QueueId,
        token: LoadToken,
        found: LoadedMessages,
    },
    /// The decision on a failed delivery.
    Judged {
        queue: QueueId,
        token: FailureToken,
        judgement: Judgement,
    },
}

/// The sending side of a scheduler's events.
#[derive(Clone, Debug)]
pub(crate) struct EventSender {
    events: Sender<Event>,
    seat: Arc<Seat<Scheduler>>,
}

impl EventSender {
    /// Returns the two sides of the events of the scheduler on this seat.
    pub(crate) fn new(seat: Arc<Seat<Scheduler>>) -> (Self, Receiver<Event>) {
        let (events, to_take) = crossbeam_channel::unbounded();
        (Self { events, seat }, to_take)
    }

    /// Adds an event, which the scheduler takes in its next turn. If the scheduler has ended, drops the event.
    pub(crate) fn add(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Calls for a turn after events were added, and takes it if the scheduler is idle.
    pub(crate) fn call(&self) {
        self.seat.call();
    }

    /// Calls for a turn by the scheduler's own thread: for threads of low priority, which must not keep others from the
    /// scheduler, and for threads that have more to do.
    pub(crate) fn summon(&self) {
        self.seat.summon();
    }
}
