//! The inbox of a scheduler thread, and its bounds.
//!
//! Callers put commands in while there is room. Room is counted in bytes, because a limit on commands would not bound
//! large messages. A message counts for at least 1 KiB. Inputs that must never wait go in at any time. They are few: the
//! opening and closing of queues, and the end of each consumer.
//!
//! There are two lanes, for calls and for the frames of produce streams, which send thousands of messages ahead of their
//! answers. Each has room for two rounds. Callers that find no room wait in turns by [`Tenant`]: the queue, and the top of
//! the path of the first message's fairness key. So an enqueue waits for the inputs that are in its lane, and for one turn
//! of each other tenant that waits: 4 KiB, or one larger input. The number of connections, streams, calls and keys of the
//! other tenants does not matter.
//!
//! Keys of one tenant wait in one line, in the order in which they come. Turns on each level would let a key wait for less
//! behind the other keys of its own tenant, for a line with its account for each of them: a tenant may name a million. It
//! would gain little. The line is there only while both rounds are full, and where a message waits for long is its queue,
//! which has turns on every level. Keys that are no paths have one line in each queue, because every one of them is refused
//! and a client may invent any number of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};
use fila_core::{Broker, Command, ConsumerId, Demand, KeySeparator, NewMessage, Recovery, Refused};
use fila_store::{FairnessKey, QueueId, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::hooks::top_of;
use crate::intake::FairRoom;
use crate::runtime::calls::consumer::Outgoing;
use crate::runtime::error::CallError;
use crate::runtime::queues::registry::Figures;
use crate::runtime::threads::scheduler::Scheduler;
use crate::runtime::threads::seat::Seat;
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

/// The least room that an input, or a message, takes.
const ROOM_MIN: u64 = 1 << 10;

/// The most room of an input whose turn the caller takes itself if the scheduler is idle. For more, it is worth while to
/// wake the scheduler's thread: the caller can read on meanwhile.
const TURN_ROOM: u64 = 32 << 10;

/// In whose name an input waits for room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tenant {
    queue: Option<QueueId>,
    line: TenantLine,
}

/// The line of a tenant among those of its queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum TenantLine {
    /// Of results and questions.
    #[default]
    NoKey,
    /// Of messages whose key has this name at the top of its path.
    Top(FairnessKey),
    /// Of messages whose key is no path.
    NoPath,
}

impl TenantLine {
    /// Returns the line of a message in a queue with this separator.
    fn of(message: &NewMessage, separator: Option<KeySeparator>) -> Self {
        let key = &message.schedule.fairness_key;
        let is_path = separator.is_none_or(|it| it.check(key.as_bytes()).is_ok());
        if is_path {
            Self::Top(top_of(separator, key))
        } else {
            Self::NoPath
        }
    }
}

impl Input {
    /// Returns in whose name it waits, if it is for a queue with this separator.
    fn tenant(&self, separator: Option<KeySeparator>) -> Tenant {
        let command = match self {
            Self::Command(command) => Some(command),
            Self::Commands(commands) => commands.first(),
            Self::Subscribe(subscription) => {
                return Tenant {
                    queue: Some(subscription.queue),
                    line: TenantLine::NoKey,
                };
            }
            Self::Open(_) | Self::Query(_) | Self::Stop => None,
        };
        match command {
            Some(Command::Enqueue {
                queue, messages, ..
            }) => Tenant {
                queue: Some(*queue),
                line: messages
                    .first()
                    .map(|message| TenantLine::of(message, separator))
                    .unwrap_or_default(),
            },
            Some(
                Command::Settle { queue, .. }
                | Command::Update { queue, .. }
                | Command::Purge { queue, .. }
                | Command::Close { queue }
                | Command::Redrive { queue, .. },
            ) => Tenant {
                queue: Some(*queue),
                line: TenantLine::NoKey,
            },
            Some(
                Command::Credit { .. }
                | Command::Drain { .. }
                | Command::Unsubscribe { .. }
                | Command::Taken { .. }
                | Command::Rethrottle { .. },
            )
            | None => Tenant::default(),
        }
    }

    /// Returns how many messages it enqueues.
    fn messages(&self) -> usize {
        let of_command = |command: &Command<ServerTickets>| {
            if let Command::Enqueue { messages, .. } = command {
                messages.len()
            } else {
                0
            }
        };
        match self {
            Self::Command(command) => of_command(command),
            Self::Commands(commands) => commands.iter().map(of_command).sum(),
            Self::Open(_) | Self::Query(_) | Self::Subscribe(_) | Self::Stop => 0,
        }
    }
}

/// An input, its bytes, and the room that it takes.
#[derive(Debug)]
pub(crate) struct Queued {
    input: Input,
    bytes: usize,
    room: u64,
}

/// A lane of an inbox.
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
    seat: Arc<Seat<Scheduler>>,
}

/// The room of each lane.
#[derive(Clone, Debug)]
struct Rooms {
    calls: Arc<FairRoom<Tenant>>,
    bulk: Arc<FairRoom<Tenant>>,
}

impl Rooms {
    fn of(&self, lane: Lane) -> &Arc<FairRoom<Tenant>> {
        match lane {
            Lane::Calls => &self.calls,
            Lane::Bulk => &self.bulk,
        }
    }
}

/// The receiving side of an inbox, which the scheduler thread owns.
#[derive(Debug)]
pub(crate) struct InboxReceiver {
    calls: Receiver<Queued>,
    bulk: Receiver<Queued>,
    room: Rooms,
    /// The next input, if its bytes did not fit.
    held: Option<(Lane, Queued)>,
    /// Since the last turn began.
    taken: LanesUsed,
    /// Calls were taken, and no frame of those that wait.
    is_bulk_due: bool,
}

/// From which lanes inputs were taken in a turn.
#[derive(Clone, Copy, Debug, Default)]
struct LanesUsed {
    calls: bool,
    bulk: bool,
}

/// Returns both sides of an inbox. `bytes` bounds each lane.
pub(crate) fn inbox(bytes: usize, seat: &Arc<Seat<Scheduler>>) -> (Inbox, InboxReceiver) {
    // The rooms bound the channels. A fixed channel length would be one more limit, in another unit.
    let (calls, calls_out) = crossbeam_channel::unbounded();
    let (bulk, bulk_out) = crossbeam_channel::unbounded();
    let room = || Arc::new(FairRoom::new((bytes as u64).max(64 << 10)));
    let room = Rooms {
        calls: room(),
        bulk: room(),
    };
    let inbox = Inbox {
        calls,
        bulk,
        room: room.clone(),
        puts: Arc::default(),
        seat: seat.clone(),
    };
    let receiver = InboxReceiver {
        calls: calls_out,
        bulk: bulk_out,
        room,
        held: None,
        taken: LanesUsed::default(),
        is_bulk_due: false,
    };
    (inbox, receiver)
}

impl Inbox {
    /// Puts in an input of `bytes` bytes for a queue with this separator, once there is room.
    ///
    /// # Cancel safety
    /// If it is dropped before it completes, it has put nothing in.
    pub(crate) async fn put_for(
        &self,
        separator: Option<KeySeparator>,
        lane: Lane,
        bytes: usize,
        input: Input,
    ) -> Result<(), CallError> {
        let free = self.room.of(lane);
        let messages = input.messages() as u64 * ROOM_MIN;
        // An input that is larger than the whole lane waits until the lane is empty.
        let room = (bytes as u64).max(messages).max(ROOM_MIN);
        let room = room.min(free.capacity());
        if !free.try_take(room, None) {
            let turn = free.wait(&input.tenant(separator), room, None);
            let turn = turn.map_err(|_| CallError::ShuttingDown)?;
            turn.await.map_err(|_| CallError::ShuttingDown)?;
        }
        self.puts.fetch_add(1, Ordering::Relaxed);
        let queued = Queued { input, bytes, room };
        // If the thread has ended, dropping the ticket here tells the caller.
        let _ = match lane {
            Lane::Calls => self.calls.send(queued),
            Lane::Bulk => self.bulk.send(queued),
        };
        if room <= TURN_ROOM {
            self.seat.call();
        } else {
            self.seat.summon();
        }
        Ok(())
    }

    /// Returns how many inputs calls, streams and consumers have put in.
    pub(crate) fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    /// Puts in an input at once, without room. The scheduler's thread takes it: callers may hold locks.
    pub(crate) fn put_now(&self, input: Input) {
        self.send_now(input);
        self.seat.summon();
    }

    /// Does the same from a task that holds no lock, and takes the turn if the scheduler is idle.
    pub(crate) fn put_now_from_task(&self, input: Input) {
        self.send_now(input);
        self.seat.call();
    }

    fn send_now(&self, input: Input) {
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
            self.room.of(lane).close();
        }
        for lane in [&self.calls, &self.bulk] {
            let _ = lane.send(Queued {
                input: Input::Stop,
                bytes: 0,
                room: 0,
            });
        }
        self.seat.summon();
    }
}

impl InboxReceiver {
    /// Begins a turn, and returns the lane that goes first and the other one. Calls do, unless they left out frames that
    /// wait: a large call can fill a whole turn.
    pub(crate) fn begin_turn(&mut self) -> [Lane; 2] {
        let taken = std::mem::take(&mut self.taken);
        if taken.bulk || self.bulk.is_empty() {
            self.is_bulk_due = false;
        } else if taken.calls {
            self.is_bulk_due = true;
        }
        if self.is_bulk_due {
            [Lane::Bulk, Lane::Calls]
        } else {
            [Lane::Calls, Lane::Bulk]
        }
    }

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
        match lane {
            Lane::Calls => self.taken.calls = true,
            Lane::Bulk => self.taken.bulk = true,
        }
        if queued.room > 0 {
            self.room.of(lane).give_back(queued.room, None);
        }
        Some((queued.input, queued.bytes))
    }

    /// Tells whether a lane has an input that was not looked at yet.
    pub(crate) fn has_more(&self, lane: Lane) -> bool {
        match lane {
            Lane::Calls => !self.calls.is_empty(),
            Lane::Bulk => !self.bulk.is_empty(),
        }
    }

    /// Tells whether the next input did not fit.
    pub(crate) fn is_holding(&self) -> bool {
        self.held.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use fila_core::NewMessage;
    use fila_store::Payload;
    use tokio::task::unconstrained;

    use super::*;
    use crate::runtime::threads::ticket::Ticket;

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
        let (inbox, mut receiver) = inbox(64 << 10, &Arc::new(Seat::new()));
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
        let (inbox, mut receiver) = inbox(64 << 10, &Arc::new(Seat::new()));
        inbox.put(Lane::Bulk, 64 << 10, credit()).await.unwrap();
        let mut greedy = Box::pin(inbox.put(Lane::Bulk, 64 << 10, credit()));
        assert!(futures_util::poll!(&mut greedy).is_pending());
        let mut modest = Box::pin(inbox.put(Lane::Bulk, 0, Input::Stop));
        assert!(futures_util::poll!(&mut modest).is_pending());
        inbox.put(Lane::Calls, 64 << 10, credit()).await.unwrap();
        let mut next = || receiver.try_take(Lane::Bulk, |_| true);
        assert!(next().is_some());
        greedy.await.unwrap();
        let mut again = Box::pin(inbox.put(Lane::Bulk, 64 << 10, credit()));
        assert!(futures_util::poll!(&mut again).is_pending());
        assert!(next().is_some());
        // The modest stream asked before the greedy one asked again.
        modest.await.unwrap();
        assert!(matches!(next(), Some((Input::Stop, 0))));
        again.await.unwrap();
    }

    #[tokio::test]
    async fn frames_that_calls_left_out_go_first_in_the_next_turn() {
        let (inbox, mut receiver) = inbox(64 << 10, &Arc::new(Seat::new()));
        let calls_first = [Lane::Calls, Lane::Bulk];
        let frames_first = [Lane::Bulk, Lane::Calls];
        for lane in [Lane::Calls, Lane::Calls, Lane::Bulk] {
            inbox.put(lane, 0, credit()).await.unwrap();
        }
        assert_eq!(receiver.begin_turn(), calls_first);
        assert!(receiver.try_take(Lane::Calls, |_| true).is_some());
        assert_eq!(receiver.begin_turn(), frames_first);
        // The round was full: nothing was taken.
        assert_eq!(receiver.begin_turn(), frames_first);
        assert!(receiver.try_take(Lane::Bulk, |_| true).is_some());
        assert!(receiver.try_take(Lane::Calls, |_| true).is_some());
        assert_eq!(receiver.begin_turn(), calls_first);
    }

    fn enqueue(key: &str, bytes: usize) -> Input {
        let (ticket, _) = Ticket::call();
        let payload = Payload::new(Vec::new(), vec![0; bytes]).unwrap();
        let key = FairnessKey::new(key.to_owned()).unwrap();
        let message = NewMessage::new(key, payload);
        Input::Command(Command::Enqueue {
            queue: QueueId::new(1),
            messages: vec![message],
            batch_id: None,
            ticket,
        })
    }

    impl Inbox {
        /// Puts in an input for a queue with the usual separator.
        async fn put(&self, lane: Lane, bytes: usize, input: Input) -> Result<(), CallError> {
            let slash = Some(KeySeparator::default());
            self.put_for(slash, lane, bytes, input).await
        }
    }

    /// Floods a lane in the name of keys, and returns how many of their inputs it lets in while the input of another key
    /// waits.
    async fn let_in_before(lane: Lane, bytes: usize, noisy: impl Fn(usize) -> String) -> usize {
        let (inbox, mut receiver) = inbox(64 << 10, &Arc::new(Seat::new()));
        let put = |key: &str| {
            let input = enqueue(key, bytes);
            Box::pin(unconstrained(inbox.put(lane, bytes, input)))
        };
        let mut flood: Vec<_> = (0..2_000).map(|number| put(&noisy(number))).collect();
        let mut let_in = 0;
        for put in &mut flood {
            let_in += usize::from(futures_util::poll!(put).is_ready());
        }
        assert!(let_in <= 64, "a message counts for at least 1 KiB");
        let mut quiet = put("quiet");
        let mut waiting = flood.split_off(let_in);
        let mut ahead = 0;
        while futures_util::poll!(&mut quiet).is_pending() {
            assert!(receiver.try_take(lane, |_| true).is_some());
            let mut still_waiting = Vec::new();
            for mut put in waiting {
                match futures_util::poll!(&mut put) {
                    Poll::Ready(_) => ahead += 1,
                    Poll::Pending => still_waiting.push(put),
                }
            }
            waiting = still_waiting;
        }
        ahead
    }

    #[tokio::test]
    async fn a_flood_delays_another_key_by_the_lane_and_one_turn_of_each_waiting_key() {
        for lane in [Lane::Calls, Lane::Bulk] {
            // A turn is 4 KiB, or one input that is larger.
            for (bytes, turn) in [(100, 4), (1_500, 3), (20_000, 1)] {
                for noisy in [1, 3] {
                    let name = |number| format!("noisy-{}", number % noisy);
                    let ahead = let_in_before(lane, bytes, name).await;
                    assert!(
                        ahead <= noisy * turn,
                        "{lane:?}, {bytes} bytes, {noisy} keys: {ahead}"
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn a_thousand_keys_of_one_tenant_delay_another_no_more_than_one_key() {
        for lane in [Lane::Calls, Lane::Bulk] {
            for bytes in [100, 1_500, 20_000] {
                let one = let_in_before(lane, bytes, |_| "noisy".to_owned()).await;
                let thousand = |number| format!("noisy/{}/{}", number % 7, number % 1_000);
                let many = let_in_before(lane, bytes, thousand).await;
                assert_eq!(many, one, "{lane:?}, {bytes} bytes");
            }
        }
    }

    #[tokio::test]
    async fn keys_that_are_no_paths_share_one_line_and_take_no_turn_of_others() {
        let one = let_in_before(Lane::Calls, 1_500, |_| "noisy".to_owned()).await;
        let hostile = |number: usize| match number % 3 {
            0 => format!("/{number}"),
            1 => format!("quiet//{number}"),
            _ => format!("{number}/b/c/d/e"),
        };
        let many = let_in_before(Lane::Calls, 1_500, hostile).await;
        assert_eq!(many, one);
    }

    #[test]
    fn a_queue_without_a_separator_has_a_line_for_each_key() {
        let tenant = |key: &str, separator| enqueue(key, 1).tenant(separator);
        let slash = Some(KeySeparator::default());
        assert_ne!(tenant("a/b", None), tenant("a/c", None));
        assert_ne!(tenant("a//b", None), tenant("/", None));
        assert_eq!(tenant("a/b", slash), tenant("a", slash));
        assert_ne!(tenant("a/b", slash), tenant("b/a", slash));
        assert_eq!(tenant("a//b", slash), tenant("/", slash));
        assert_ne!(tenant("a//b", slash), tenant("a", slash));
        assert_ne!(tenant("a//b", slash), credit().tenant(slash));
    }

    #[tokio::test]
    async fn what_is_larger_than_the_inbox_gets_through_alone() {
        let (inbox, mut receiver) = inbox(64 << 10, &Arc::new(Seat::new()));
        inbox.put(Lane::Calls, 1 << 30, credit()).await.unwrap();
        assert!(take(&mut receiver).is_some());
        inbox.put(Lane::Calls, 0, credit()).await.unwrap();
    }

    #[tokio::test]
    async fn what_does_not_fit_is_held_and_keeps_its_place() {
        let (inbox, mut receiver) = inbox(64 << 10, &Arc::new(Seat::new()));
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
        let (inbox, mut receiver) = inbox(0, &Arc::new(Seat::new()));
        inbox.stop();
        let refused = inbox.put(Lane::Calls, 0, credit()).await;
        assert!(matches!(refused, Err(CallError::ShuttingDown)));
        for lane in [Lane::Calls, Lane::Bulk] {
            let last = receiver.try_take(lane, |_| true);
            assert!(matches!(last, Some((Input::Stop, 0))));
        }
    }
}
