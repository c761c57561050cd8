//! What waits for a scheduler thread, and how much of it may.
//!
//! Clients put commands in as there is room for them: room is counted in KiB, so that a thousand large messages
//! cannot hide behind a limit of a thousand commands. Whoever finds no room waits, first come, first served, without
//! a thread and without a lock. What must never wait goes in at any time: openings and closings of queues, which are
//! few, and the ends of consumers, of which each has one.
//!
//! There are two lanes. What single calls and consumers send is taken first; what produce streams send, thousands of
//! messages ahead of their answers, is taken as the next round has room for it. So a call that enqueues one message
//! does not queue up behind a stream that enqueues a million. Streams have room for two rounds only: beyond that they
//! wait, each with one handful of frames, and are let in in turns. So a stream that sends little does not queue up
//! behind those that send much, either.

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

/// What a scheduler thread is told.
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
    /// Adds a consumer, and sends it what is for it.
    Subscribe(Subscription),
    /// Finishes what is under way, then ends. Comes at the end of each lane.
    Stop,
}

/// A queue to be taken over.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) queue: QueueId,
    pub(crate) recovery: Box<Recovery>,
    /// Where to keep its figures.
    pub(crate) figures: Arc<Figures>,
    /// Dropped when the queue is there: what waits in the other lane may be for it.
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
    /// How much work it is, in messages.
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

/// An input, how many bytes it carries, and the room it takes.
#[derive(Debug)]
pub(crate) struct Queued {
    input: Input,
    bytes: usize,
    room: usize,
}

/// Who is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Calls, and what consumers say.
    Calls,
    /// Frames of produce streams.
    Bulk,
}

/// The way in.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    calls: Sender<Queued>,
    bulk: Sender<Queued>,
    room: Rooms,
    /// How often anything was put in that has to find room.
    puts: Arc<AtomicU64>,
}

/// The room of each lane, in KiB.
#[derive(Clone, Debug)]
struct Rooms {
    calls: (Arc<Semaphore>, u32),
    bulk: (Arc<Semaphore>, u32),
}

impl Rooms {
    /// Returns the room of a lane that is free, and all there is.
    fn of(&self, lane: Lane) -> &(Arc<Semaphore>, u32) {
        match lane {
            Lane::Calls => &self.calls,
            Lane::Bulk => &self.bulk,
        }
    }
}

/// The other end, which is the scheduler thread's.
#[derive(Debug)]
pub(crate) struct InboxReceiver {
    pub(crate) calls: Receiver<Queued>,
    pub(crate) bulk: Receiver<Queued>,
    room: Rooms,
    /// What was next when its bytes did not fit.
    held: Option<(Lane, Queued)>,
}

/// Returns both ends of an inbox with room for so many bytes of calls, and of what streams send.
pub(crate) fn inbox(bytes: usize, bulk_bytes: usize) -> (Inbox, InboxReceiver) {
    // Room is what bounds it: a channel of a fixed length would be one more limit, in another unit.
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
    /// Puts an input in that carries so many bytes, once there is room.
    ///
    /// # Cancel safety
    /// Dropped before it is done, it has put nothing in.
    pub(crate) async fn put(
        &self,
        lane: Lane,
        bytes: usize,
        input: Input,
    ) -> Result<(), CallError> {
        let (free, capacity) = self.room.of(lane);
        let room = u32::try_from(1 + (bytes >> 10)).unwrap_or(u32::MAX);
        // What is larger than all room there is waits until it is alone.
        let room = room.min(*capacity);
        let permit = free.acquire_many(room).await;
        permit.map_err(|_| CallError::ShuttingDown)?.forget();
        self.puts.fetch_add(1, Ordering::Relaxed);
        let queued = Queued {
            input,
            bytes,
            room: room as usize,
        };
        // If the thread is gone, the ticket that is dropped here says so.
        let _ = match lane {
            Lane::Calls => self.calls.send(queued),
            Lane::Bulk => self.bulk.send(queued),
        };
        Ok(())
    }

    /// Returns how often calls, streams and consumers have put anything in.
    pub(crate) fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    /// Puts an input in at once.
    pub(crate) fn put_now(&self, input: Input) {
        let queued = Queued {
            input,
            bytes: 0,
            room: 0,
        };
        let _ = self.calls.send(queued);
    }

    /// Tells the thread to stop, after all that is in both lanes.
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
    /// Returns what waits next in a lane and how many bytes it carries, and makes room; nothing, if its bytes do not
    /// fit.
    pub(crate) fn try_take(
        &mut self,
        lane: Lane,
        fits: impl FnOnce(usize) -> bool,
    ) -> Option<(Input, usize)> {
        let queued = match self.held.take() {
            Some((of, queued)) if of == lane => queued,
            // What is held in one lane holds up the other: it was there first.
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

    /// Tells whether what is next did not fit.
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
    async fn whoever_finds_no_room_waits_until_there_is_some() {
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
        // It asked before the other asked again.
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
