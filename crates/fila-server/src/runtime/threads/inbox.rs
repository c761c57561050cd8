//! The inbox of a scheduler thread, and its bounds.
//!
//! Callers put commands in while there is room. Room is counted in KiB, because a limit on commands would not bound
//! large messages. A caller that finds no room waits, first come, first served, without a thread and without a lock.
//! Inputs that must never wait go in at any time. They are few: the opening and closing of queues, and the end of each
//! consumer.
//!
//! There are two lanes. The scheduler thread takes calls and consumers' results first. It takes the frames of produce
//! streams, which send thousands of messages ahead of their answers, as far as the next round has room. So a call that
//! enqueues one message does not wait behind a stream that enqueues a million. Streams have room for two rounds only.
//! Beyond that each of them waits with a few frames, and they take turns. So a stream that sends little does not wait
//! behind streams that send much, either.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};
use fila_core::{Broker, Command, ConsumerId, Demand, Recovery, Refused};
use fila_store::{QueueId, Timestamp};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::runtime::calls::consumer::Outgoing;
use crate::runtime::error::CallError;
use crate::runtime::queues::registry::Figures;
use crate::runtime::threads::ticket::ServerTickets;

/// An input of a scheduler thread.
#[derive(Debug)]
pub(crate) enum Input {
    /// Takes over a queue.
    Open(Opening),
    /// Executes a command.
    Command(Command<ServerTickets>),
    /// Executes several commands, in this order.
    Commands(Vec<Command<ServerTickets>>),
    /// Answers a query.
    Query(Query),
    /// Adds a consumer, and sends it its deliveries.
    Subscribe(Subscription),
    /// Finishes the work under way, then ends. It is the last input of each lane.
    Stop,
}

/// A queue that the scheduler thread is to serve.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) queue: QueueId,
    pub(crate) recovery: Box<Recovery>,
    /// Where to publish its figures.
    pub(crate) figures: Arc<Figures>,
    /// Dropped when the queue is open. The opener waits for that, because the other lane may have inputs for the queue.
    pub(crate) opened: Sender<()>,
}

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) queue: QueueId,
    pub(crate) consumer: ConsumerId,
    pub(crate) demand: Demand,
    pub(crate) outlet: mpsc::UnboundedSender<Outgoing>,
    pub(crate) reply: oneshot::Sender<Result<(), Refused>>,
}

/// The broker of a scheduler thread.
pub(crate) type ServerBroker = Broker<ServerTickets>;

/// Runs on a scheduler thread.
pub(crate) type Ask = Box<dyn FnOnce(&mut ServerBroker, Timestamp) + Send>;

/// A question to the broker of a scheduler thread. It sends its own answer.
pub(crate) struct Query {
    /// The amount of work, in messages.
    pub(crate) cost: usize,
    pub(crate) run: Ask,
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query")
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

/// An input, its bytes, and the room that it takes in KiB.
#[derive(Debug)]
pub(crate) struct Queued {
    input: Input,
    bytes: usize,
    room: usize,
}

/// A lane of an inbox. The first is served before the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Calls, and results from consumers.
    Calls,
    /// Frames of produce streams.
    Bulk,
}

/// The sending side of an inbox.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    calls: Sender<Queued>,
    bulk: Sender<Queued>,
    room: Rooms,
    /// How many inputs were put in that need room.
    puts: Arc<AtomicU64>,
}

/// The room of each lane, in KiB.
#[derive(Clone, Debug)]
struct Rooms {
    calls: (Arc<Semaphore>, u32),
    bulk: (Arc<Semaphore>, u32),
}

impl Rooms {
    /// Returns the free room of a lane, and its capacity.
    fn of(&self, lane: Lane) -> &(Arc<Semaphore>, u32) {
        match lane {
            Lane::Calls => &self.calls,
            Lane::Bulk => &self.bulk,
        }
    }
}

/// The receiving side of an inbox, which the scheduler thread owns.
#[derive(Debug)]
pub(crate) struct InboxReceiver {
    pub(crate) calls: Receiver<Queued>,
    pub(crate) bulk: Receiver<Queued>,
    room: Rooms,
    /// The next input, if its bytes did not fit.
    held: Option<(Lane, Queued)>,
}

/// Returns both sides of an inbox. `bytes` bounds the lane of calls, `bulk_bytes` the lane of streams.
pub(crate) fn inbox(bytes: usize, bulk_bytes: usize) -> (Inbox, InboxReceiver) {
    // The semaphores bound the channels. A fixed channel length would be one more limit, in another unit.
    let (calls, calls_out) = crossbeam_channel::unbounded();
    let (bulk, bulk_out) = crossbeam_channel::unbounded();
    let room = |bytes: usize| {
        let capacity = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).max(64);
        (Arc::new(Semaphore::new(capacity as usize)), capacity)
    };
    let room = Rooms {
        calls: room(bytes),
        bulk: room(bulk_bytes.min(bytes)),
    };
    let inbox = Inbox {
        calls,
        bulk,
        room: room.clone(),
        puts: Arc::default(),
    };
    let receiver = InboxReceiver {
        calls: calls_out,
        bulk: bulk_out,
        room,
        held: None,
    };
    (inbox, receiver)
}

impl Inbox {
    /// Puts in an input of `bytes` bytes, once there is room.
    ///
    /// # Cancel safety
    /// If it is dropped before it completes, it has put nothing in.
    pub(crate) async fn put(
        &self,
        lane: Lane,
        bytes: usize,
        input: Input,
    ) -> Result<(), CallError> {
        let (free, capacity) = self.room.of(lane);
        let room = u32::try_from(1 + (bytes >> 10)).unwrap_or(u32::MAX);
        // An input that is larger than the whole inbox waits until the inbox is empty.
        let room = room.min(*capacity);
        let permit = free.acquire_many(room).await;
        permit.map_err(|_| CallError::ShuttingDown)?.forget();
        self.puts.fetch_add(1, Ordering::Relaxed);
        let queued = Queued {
            input,
            bytes,
            room: room as usize,
        };
        // If the thread has ended, dropping the ticket here tells the caller.
        let _ = match lane {
            Lane::Calls => self.calls.send(queued),
            Lane::Bulk => self.bulk.send(queued),
        };
        Ok(())
    }

    /// Returns how many inputs calls, streams and consumers have put in.
    pub(crate) fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    /// Puts in an input at once, without room.
    pub(crate) fn put_now(&self, input: Input) {
        let queued = Queued {
            input,
            bytes: 0,
            room: 0,
        };
        let _ = self.calls.send(queued);
    }

    /// Tells the thread to stop once it has taken all inputs of both lanes.
    pub(crate) fn stop(&self) {
        for lane in [Lane::Calls, Lane::Bulk] {
            self.room.of(lane).0.close();
        }
        for lane in [&self.calls, &self.bulk] {
            let _ = lane.send(Queued {
                input: Input::Stop,
                bytes: 0,
                room: 0,
            });
        }
    }
}

impl InboxReceiver {
    /// Takes the next input of a lane with its bytes, and frees its room. Returns `None` if its bytes do not fit.
    pub(crate) fn try_take(
        &mut self,
        lane: Lane,
        fits: impl FnOnce(usize) -> bool,
    ) -> Option<(Input, usize)> {
        let queued = match self.held.take() {
            Some((of, queued)) if of == lane => queued,
            // An input that is held in one lane also holds up the other lane: it came first.
            Some(held) => {
                self.held = Some(held);
                return None;
            }
            None => match lane {
                Lane::Calls => self.calls.try_recv().ok()?,
                Lane::Bulk => self.bulk.try_recv().ok()?,
            },
        };
        if !fits(queued.bytes) {
            self.held = Some((lane, queued));
            return None;
        }
        if queued.room > 0 {
            self.room.of(lane).0.add_permits(queued.room);
        }
        Some((queued.input, queued.bytes))
    }

    /// Tells whether the next input did not fit.
    pub(crate) fn is_holding(&self) -> bool {
        self.held.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credit() -> Input {
        let consumer = ConsumerId::new(1);
        Input::Command(Command::Credit { consumer, more: 1 })
    }

    fn take(receiver: &mut InboxReceiver) -> Option<Input> {
        receiver
            .try_take(Lane::Calls, |_| true)
            .map(|(input, _)| input)
    }

    #[tokio::test]
    async fn a_put_waits_until_there_is_room() {
        let (inbox, mut receiver) = inbox(64 << 10, 64 << 10);
        inbox.put(Lane::Calls, 40 << 10, credit()).await.unwrap();
        let mut second = Box::pin(inbox.put(Lane::Calls, 40 << 10, credit()));
        assert!(futures_util::poll!(&mut second).is_pending());
        inbox.put_now(Input::Stop);
        assert!(matches!(take(&mut receiver), Some(Input::Command(_))));
        second.await.unwrap();
        assert!(matches!(take(&mut receiver), Some(Input::Stop)));
        assert!(matches!(take(&mut receiver), Some(Input::Command(_))));
    }

    #[tokio::test]
    async fn streams_are_let_in_in_turns_and_calls_are_not_held_up_by_them() {
        let (inbox, mut receiver) = inbox(1 << 20, 64 << 10);
        inbox.put(Lane::Bulk, 63 << 10, credit()).await.unwrap();
        let mut greedy = Box::pin(inbox.put(Lane::Bulk, 63 << 10, credit()));
        assert!(futures_util::poll!(&mut greedy).is_pending());
        let mut modest = Box::pin(inbox.put(Lane::Bulk, 0, Input::Stop));
        assert!(futures_util::poll!(&mut modest).is_pending());
        inbox.put(Lane::Calls, 63 << 10, credit()).await.unwrap();
        let mut next = || receiver.try_take(Lane::Bulk, |_| true);
        assert!(next().is_some());
        greedy.await.unwrap();
        let mut again = Box::pin(inbox.put(Lane::Bulk, 63 << 10, credit()));
        assert!(futures_util::poll!(&mut again).is_pending());
        assert!(next().is_some());
        // The modest stream asked before the greedy one asked again.
        modest.await.unwrap();
        assert!(matches!(next(), Some((Input::Stop, 0))));
        again.await.unwrap();
    }

    #[tokio::test]
    async fn what_is_larger_than_the_inbox_gets_through_alone() {
        let (inbox, mut receiver) = inbox(64 << 10, 64 << 10);
        inbox.put(Lane::Calls, 1 << 30, credit()).await.unwrap();
        assert!(take(&mut receiver).is_some());
        inbox.put(Lane::Calls, 0, credit()).await.unwrap();
    }

    #[tokio::test]
    async fn what_does_not_fit_is_held_and_keeps_its_place() {
        let (inbox, mut receiver) = inbox(64 << 10, 64 << 10);
        inbox.put(Lane::Calls, 10, credit()).await.unwrap();
        inbox.put_now(Input::Stop);
        assert!(receiver.try_take(Lane::Calls, |bytes| bytes < 10).is_none());
        assert!(receiver.is_holding());
        assert!(matches!(
            receiver.try_take(Lane::Calls, |_| true),
            Some((_, 10))
        ));
        assert!(!receiver.is_holding());
        assert!(matches!(take(&mut receiver), Some(Input::Stop)));
    }

    #[tokio::test]
    async fn a_closed_inbox_takes_nothing_from_clients() {
        let (inbox, mut receiver) = inbox(0, 0);
        inbox.stop();
        let refused = inbox.put(Lane::Calls, 0, credit()).await;
        assert!(matches!(refused, Err(CallError::ShuttingDown)));
        for lane in [Lane::Calls, Lane::Bulk] {
            let last = receiver.try_take(lane, |_| true);
            assert!(matches!(last, Some((Input::Stop, 0))));
        }
    }
}
