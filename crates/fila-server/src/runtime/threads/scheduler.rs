//! The scheduler: it owns a broker, and one thread at a time runs it, see [`seat`](super::seat).
//!
//! A turn takes the pending events, then a bounded number of inputs, lets the broker deliver, hands the next round to
//! the commit threads, and passes on the broker's effects. Then the scheduler is idle until there is input, or until the
//! broker's next timer. While the broker is full, inputs stay in the inbox and their senders wait. The cost of a turn
//! depends on the events and inputs in it, not on the number of queues, keys or messages.
//!
//! A small round that need not be synced is stored in the turn itself, if no other round is under way and no input waits.
//! Waking a commit thread for it would take longer.
//!
//! The scheduler ends in three steps. It tells all consumers that the server stops. It waits until their streams have ended, for
//! a moment at most: a stream that ends says which deliveries it did not send, and their leases end. Then it stores the
//! other leases for the next start.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use fila_core::{
    Answer, Command, Committed, ConsumerId, Delivery, Departure, Dismissal, LeaseId, Round,
};
use fila_store::{QueueId, Timestamp, Writes};
use foldhash::fast::RandomState;
use tokio::sync::mpsc;
use tracing::info;

use crate::metrics::Metrics;
use crate::runtime::Clock;
use crate::runtime::calls::consumer::Outgoing;
use crate::runtime::calls::transit::{Notes, Outflow, Parcel};
use crate::runtime::queues::opening::report_damage;
use crate::runtime::queues::registry::Figures;
use crate::runtime::status::Status;
use crate::runtime::store::Store;
use crate::runtime::threads::commit::RoundStore;
use crate::runtime::threads::events::{Event, EventSender};
use crate::runtime::threads::inbox::{InboxReceiver, Input, Lane, ServerBroker, Subscription};
use crate::runtime::threads::reader::BlockingJob;
use crate::runtime::threads::round_queue::RoundSender;
use crate::runtime::threads::seat::{TurnEnd, TurnTaker};
use crate::runtime::threads::ticket::ServerTickets;

/// About how many messages and results one turn takes: a millisecond of work, so that timers fire on time.
const TURN: usize = 128;

/// Streams wait for the next round once a round has this many messages or bytes, calls once it has twice as many. A
/// larger round is hardly cheaper per message, and every caller with a message in it, or in the round after it, waits
/// for all of it.
const ROUND_MESSAGES: usize = 1_024;
pub(crate) const ROUND_BYTES: usize = 2 << 20;

/// The largest round that a scheduler stores itself: more would keep the caller whose thread it uses from its own work.
const OWN_OPERATIONS: usize = 64;
const OWN_BYTES: usize = 64 << 10;

/// From this many bytes on their way to sockets, a consumer may wait for room, and the next note of it is awaited.
const TRANSIT_WATCHED: usize = 64 << 10;
/// How old the figure of fewer bytes on their way may be.
const TRANSIT_AGE: Duration = Duration::from_millis(100);

/// How long the streams of consumers may take to end when the server stops. Clients that read take much less.
const FAREWELL: Duration = Duration::from_millis(200);

/// A scheduler and what it owns.
#[derive(Debug)]
pub(crate) struct Scheduler {
    number: usize,
    broker: ServerBroker,
    clock: Clock,
    channels: Channels,
    metrics: Arc<Metrics>,
    outlets: HashMap<ConsumerId, Outlet, RandomState>,
    figures: HashMap<QueueId, Arc<Figures>, RandomState>,
    /// Consumers that have pending deliveries.
    touched: Vec<ConsumerId>,
    /// Consumers wait for room that the deliveries of others take.
    is_crowded: bool,
    phase: SchedulerPhase,
    collected: Collected,
    /// The sizes of the rounds under way, the oldest first.
    under_way: VecDeque<Collected>,
    /// The most bytes that all of them together may have.
    buffered_max: usize,
    storage: Storage,
}

/// What a scheduler thread asks before it takes messages, and where it reports the answer.
#[derive(Clone)]
pub(crate) struct Storage {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) status: Arc<Status>,
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Storage")
            .field("writes", &self.store.writes())
            .finish_non_exhaustive()
    }
}

impl Storage {
    fn is_full(&self) -> bool {
        let writes = self.store.writes();
        self.status.note(writes);
        writes == Writes::Full
    }
}

/// The channels of a scheduler.
#[derive(Debug)]
pub(crate) struct Channels {
    pub(crate) inbox: InboxReceiver,
    /// From the commit and reader threads, and from the hooks.
    pub(crate) events: Receiver<Event>,
    /// The sending side of `events`, which goes along with each job.
    pub(crate) replies: EventSender,
    pub(crate) rounds: Rounds,
    /// Consumers whose deliveries have left memory since the last turn, and their way here.
    pub(crate) notes: (Arc<Notes>, Receiver<Arc<Outflow>>),
    /// To the reader threads.
    pub(crate) jobs: Sender<BlockingJob>,
}

/// Where rounds are stored.
pub(crate) struct Rounds {
    /// To the commit threads.
    pub(crate) queue: RoundSender,
    /// For small rounds, if they need not be synced.
    pub(crate) store: Option<Arc<dyn RoundStore>>,
}

impl std::fmt::Debug for Rounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rounds")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// Where the deliveries of one consumer go.
#[derive(Debug)]
struct Outlet {
    sender: mpsc::UnboundedSender<Outgoing>,
    /// Its deliveries of this turn.
    pending: Vec<Delivery>,
    outflow: Arc<Outflow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchedulerPhase {
    Running,
    /// One lane of the inbox has ended.
    Stopping,
    /// Both lanes have ended. The thread takes no input, and waits until then for the streams of consumers to end.
    Ending {
        until: Timestamp,
    },
    /// All streams have ended. The thread stores the leases, and ends when everything is stored.
    Keeping,
}

impl SchedulerPhase {
    /// Tells whether the thread takes inputs.
    fn takes_inputs(self) -> bool {
        match self {
            Self::Running | Self::Stopping => true,
            Self::Ending { .. } | Self::Keeping => false,
        }
    }
}

/// The size of a round.
#[derive(Clone, Copy, Debug, Default)]
struct Collected {
    bytes: usize,
    messages: usize,
}

impl Scheduler {
    pub(crate) fn new(
        number: usize,
        broker: ServerBroker,
        channels: Channels,
        clock: Clock,
        metrics: Arc<Metrics>,
        buffered_max: usize,
        storage: Storage,
    ) -> Self {
        Self {
            number,
            broker,
            clock,
            channels,
            metrics,
            outlets: HashMap::default(),
            figures: HashMap::default(),
            touched: Vec::new(),
            is_crowded: false,
            phase: SchedulerPhase::Running,
            collected: Collected::default(),
            under_way: VecDeque::new(),
            buffered_max,
            storage,
        }
    }

    fn take_events(&mut self) {
        while let Ok(event) = self.channels.events.try_recv() {
            let now = self.clock.now();
            match event {
                Event::Committed(committed) => {
                    for committed in committed {
                        self.under_way.pop_front();
                        self.broker.committed(now, committed);
                    }
                }
                // A lease that ended now would still be stored.
                Event::Loaded { .. } | Event::Judged { .. }
                    if self.phase == SchedulerPhase::Keeping => {}
                Event::Loaded {
                    queue,
                    token,
                    found,
                } => self.broker.loaded(now, queue, token, found),
                Event::Judged {
                    queue,
                    token,
                    judgement,
                } => self.broker.judge(now, queue, token, judgement),
            }
        }
    }

    /// Tells the broker which deliveries have left memory.
    fn take_notes(&mut self) {
        while let Ok(outflow) = self.channels.notes.1.try_recv() {
            self.taken(outflow.consumer, outflow.take());
        }
    }

    fn taken(&mut self, consumer: ConsumerId, bytes: usize) {
        let taken = Command::Taken { consumer, bytes };
        self.broker.handle(self.clock.now(), taken);
    }

    /// Takes calls, and frames of streams as far as the next round has room for them. While both have more than a turn
    /// takes, each gets half of it. A call or frame that is larger takes a whole turn, and the other lane has the next one.
    fn take_inputs(&mut self) {
        self.broker.set_storage_full(self.storage.is_full());
        let [first, second] = self.channels.inbox.begin_turn();
        let mut taken = 0;
        for (lane, until) in [(first, TURN / 2), (second, TURN), (first, TURN)] {
            while taken < until && self.phase.takes_inputs() {
                let may_take = match lane {
                    Lane::Calls => self.takes_calls(),
                    Lane::Bulk => self.takes_bulk(),
                };
                if !may_take {
                    break;
                }
                // An input that the full buffer would refuse waits instead, unless nothing is being stored.
                let held = self.collected.bytes + self.stored_now().bytes;
                let max = self.buffered_max;
                let fits = |bytes| held == 0 || held + bytes <= max;
                let Some((input, bytes)) = self.channels.inbox.try_take(lane, fits) else {
                    break;
                };
                self.collected.bytes += bytes;
                taken += 1 + weight(&input);
                self.take(input);
            }
        }
    }

    /// Tells whether the next round has room for more calls. It is twice as large for them, so that streams do not keep
    /// them waiting.
    fn takes_calls(&self) -> bool {
        self.has_room(2)
    }

    /// Tells whether the next round has room for more frames of streams.
    fn takes_bulk(&self) -> bool {
        self.has_room(1)
    }

    fn has_room(&self, rounds: usize) -> bool {
        let Collected { bytes, messages } = self.collected;
        !self.broker.is_full() && bytes < rounds * ROUND_BYTES && messages < rounds * ROUND_MESSAGES
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Open(opening) => {
                self.figures.insert(opening.queue, opening.figures);
                self.broker.open(self.clock.now(), *opening.recovery);
                drop(opening.opened);
            }
            Input::Command(command) => self.handle(command),
            Input::Commands(commands) => {
                for command in commands {
                    self.handle(command);
                }
            }
            Input::Query(query) => (query.run)(&mut self.broker, self.clock.now()),
            Input::Subscribe(subscription) => self.subscribe(subscription),
            Input::Stop => match self.phase {
                SchedulerPhase::Running => self.phase = SchedulerPhase::Stopping,
                SchedulerPhase::Stopping => self.end(),
                SchedulerPhase::Ending { .. } | SchedulerPhase::Keeping => {}
            },
        }
    }

    fn handle(&mut self, command: Command<ServerTickets>) {
        match &command {
            Command::Unsubscribe { consumer, .. } => drop(self.outlets.remove(consumer)),
            Command::Close { queue } => drop(self.figures.remove(queue)),
            Command::Enqueue { messages, .. } => self.collected.messages += messages.len(),
            Command::Redrive { messages, .. } => self.collected.messages += messages.len(),
            _ => {}
        }
        self.broker.handle(self.clock.now(), command);
    }

    fn subscribe(&mut self, subscription: Subscription) {
        let Subscription {
            queue,
            consumer,
            demand,
            outlet,
            reply,
        } = subscription;
        // If the broker refuses the consumer, its `Unsubscribe` follows and removes the outlet.
        let outlet = Outlet {
            sender: outlet,
            pending: Vec::new(),
            outflow: Outflow::new(consumer, self.channels.notes.0.clone()),
        };
        self.outlets.insert(consumer, outlet);
        let now = self.clock.now();
        let _ = reply.send(self.broker.subscribe(now, queue, consumer, demand));
    }

    /// Stops deliveries, and ends the streams of consumers once they have their last answers.
    fn end(&mut self) {
        let now = self.clock.now();
        let until = now.saturating_add(FAREWELL);
        self.phase = SchedulerPhase::Ending { until };
        for (&consumer, outlet) in &self.outlets {
            let _ = outlet.sender.send(Outgoing::Stopped);
            self.broker.handle(now, Command::Drain { consumer });
        }
    }

    /// Takes the ends of streams while the server stops. When all have ended, or their time is over, no lease has a
    /// stream any more.
    fn take_farewells(&mut self) {
        let SchedulerPhase::Ending { until } = self.phase else {
            return;
        };
        while let Some((input, _)) = self.channels.inbox.try_take(Lane::Calls, |_| true) {
            // Dropping any other input tells its sender that the server stops.
            let Input::Command(Command::Unsubscribe {
                consumer,
                departure,
                unsent,
            }) = input
            else {
                continue;
            };
            let departure = match departure {
                // The server has ended the stream.
                Departure::Lost | Departure::Stopped => Departure::Stopped,
                Departure::Closed | Departure::Answered => departure,
            };
            self.part(consumer, departure, unsent);
        }
        if self.outlets.is_empty() || self.clock.now() >= until {
            let left: Vec<ConsumerId> = self.outlets.keys().copied().collect();
            for consumer in left {
                let unsent = self.broker.unsent(consumer);
                self.part(consumer, Departure::Stopped, unsent);
            }
            self.phase = SchedulerPhase::Keeping;
        }
    }

    fn part(&mut self, consumer: ConsumerId, departure: Departure, unsent: Vec<LeaseId>) {
        self.handle(Command::Unsubscribe {
            consumer,
            departure,
            unsent,
        });
    }

    /// Hands the live leases to the next round; tells whether there were any.
    fn keep_leases(&mut self) -> bool {
        let leases = self.broker.keep_leases(self.clock.now());
        if leases > 0 {
            info!(leases, "storing the live leases for the next start");
        }
        leases > 0
    }

    fn flush(&mut self) {
        let effects = self.broker.effects();
        for answer in effects.answers.drain(..) {
            match answer {
                Answer::Enqueued(ticket, results) => ticket.answer(results),
                Answer::Settled(ticket, results) => ticket.answer(results),
                Answer::Purged(ticket, purged) => ticket.answer(purged),
                Answer::Redriven(ticket, redriven) => ticket.answer(redriven),
            }
        }
        let mut dropped = Vec::new();
        for (consumer, delivery) in effects.deliveries.drain(..) {
            // If the consumer has left, its `Unsubscribe` is in the inbox, and decides on its deliveries.
            let Some(outlet) = self.outlets.get_mut(&consumer) else {
                dropped.push((consumer, delivery.bytes()));
                continue;
            };
            if outlet.pending.is_empty() {
                self.touched.push(consumer);
            }
            outlet.pending.push(delivery);
        }
        for consumer in self.touched.drain(..) {
            if let Some(outlet) = self.outlets.get_mut(&consumer) {
                let pending = std::mem::take(&mut outlet.pending);
                let parcel = Parcel::new(pending, &outlet.outflow);
                let _ = outlet.sender.send(Outgoing::Deliveries(parcel));
            }
        }
        let dismissed = std::mem::take(&mut effects.dismissed);
        for load in effects.loads.drain(..) {
            let _ = self
                .channels
                .jobs
                .send(BlockingJob::Load(load, self.channels.replies.clone()));
        }
        for failure in effects.failures.drain(..) {
            let job = BlockingJob::Failure(failure, self.channels.replies.clone());
            let _ = self.channels.jobs.send(job);
        }
        for (queue, damaged) in effects.damaged.drain(..) {
            report_damage(queue, &damaged);
        }
        if !effects.garbage.is_empty() {
            let garbage = std::mem::take(&mut effects.garbage);
            let _ = self.channels.jobs.send(BlockingJob::Drop(garbage));
        }
        for (consumer, bytes) in dropped {
            self.taken(consumer, bytes);
        }
        for (consumer, why) in dismissed {
            self.dismiss(consumer, why);
        }
    }

    /// Tells a consumer that it gets no more.
    fn dismiss(&mut self, consumer: ConsumerId, why: Dismissal) {
        if let Some(outlet) = self.outlets.get(&consumer)
            && self.phase.takes_inputs()
        {
            let _ = outlet.sender.send(Outgoing::Dismissed(why));
        }
        // A call holds its leases until its answer is sent.
        if why != Dismissal::Served {
            self.outlets.remove(&consumer);
        }
    }

    /// Hands the collected round to the commit threads, unless a full round's worth is already under way: all rounds
    /// under way are stored with two syncs, and each sync must cover at most one full round.
    fn seal(&mut self) {
        let stored_now = self.stored_now();
        if stored_now.bytes >= ROUND_BYTES || stored_now.messages >= ROUND_MESSAGES {
            return;
        }
        if let Some(round) = self.broker.seal() {
            let collected = std::mem::take(&mut self.collected);
            let round = match self.store(round, collected) {
                Some(round) => (round, collected),
                // The changes that follow from the stored ones.
                None => match self.broker.seal() {
                    Some(round) => (round, Collected::default()),
                    None => return,
                },
            };
            self.hand_over(round);
        } else if !self.broker.is_writing() {
            // The broker refused all inputs, or they change nothing in the store.
            self.collected = Collected::default();
        }
    }

    /// Stores a small round, if it need not be synced and nothing else waits. Gives it back otherwise.
    fn store(&mut self, round: Round, collected: Collected) -> Option<Round> {
        let operations: usize = round.batches.iter().map(|(_, batch)| batch.len()).sum();
        let is_alone = self.under_way.is_empty()
            && !self.storage.status.is_full()
            && !self.channels.inbox.has_more(Lane::Calls)
            && !self.channels.inbox.has_more(Lane::Bulk);
        let is_small = operations <= OWN_OPERATIONS && collected.bytes <= OWN_BYTES;
        let Some(store) = &self.channels.rounds.store else {
            return Some(round);
        };
        if !(is_alone && is_small) || store.may_wait() {
            return Some(round);
        }
        let committed = store.store(round);
        let now = self.clock.now();
        self.broker.committed(now, committed);
        if self.phase != SchedulerPhase::Keeping {
            self.broker.poll(now);
        }
        None
    }

    /// Hands a round to the commit threads.
    fn hand_over(&mut self, (round, collected): (Round, Collected)) {
        self.under_way.push_back(collected);
        if self.channels.rounds.queue.send(round).is_err() {
            // The commit threads have panicked, and have taken the server out of service.
            while self.under_way.pop_front().is_some() {
                self.broker.committed(self.clock.now(), Committed::Failed);
            }
        }
    }

    /// Returns the size of all rounds under way.
    fn stored_now(&self) -> Collected {
        self.under_way
            .iter()
            .fold(Collected::default(), |sum, round| Collected {
                bytes: sum.bytes + round.bytes,
                messages: sum.messages + round.messages,
            })
    }

    fn publish(&mut self) {
        let figures = &self.figures;
        let _at_one_moment = self.metrics.publishing();
        self.broker.changed(|queue, stats| {
            if let Some(figures) = figures.get(&queue) {
                figures.publish(stats);
            }
        });
        let memory = self.broker.memory_used();
        self.metrics.memory_used(self.number, memory);
        let is_crowded = self.broker.is_crowded();
        if std::mem::replace(&mut self.is_crowded, is_crowded) != is_crowded {
            self.metrics.crowd(is_crowded);
        }
    }

    /// Tells whether the input that did not fit fits now because nothing is being stored any more. No event follows
    /// then: the broker has refused all that came before it.
    fn takes_held(&self) -> bool {
        self.channels.inbox.is_holding()
            && self.collected.bytes == 0
            && self.under_way.is_empty()
            && self.phase.takes_inputs()
            && !self.broker.is_full()
    }

    /// Tells whether there is something to do now.
    fn has_work(&self) -> bool {
        let is_kept = self.phase == SchedulerPhase::Keeping && !self.broker.is_writing();
        if is_kept || !self.channels.events.is_empty() || self.takes_held() {
            return true;
        }
        let inbox = &self.channels.inbox;
        let takes = self.phase.takes_inputs() && !inbox.is_holding();
        let parts = matches!(self.phase, SchedulerPhase::Ending { .. });
        (parts || takes && self.takes_calls()) && inbox.has_more(Lane::Calls)
            || takes && self.takes_bulk() && inbox.has_more(Lane::Bulk)
    }

    /// Returns the time until there is something to do without any event or input.
    fn idle_time(&self) -> Option<Duration> {
        let due = match self.phase {
            SchedulerPhase::Keeping => None,
            _ => self.broker.next_timer(),
        };
        let due = due.map(|due| self.clock.until(due));
        let look = (self.broker.in_transit() > 0).then_some(TRANSIT_AGE);
        let farewell = match self.phase {
            SchedulerPhase::Ending { .. } if self.outlets.is_empty() => Some(Duration::ZERO),
            SchedulerPhase::Ending { until } => Some(self.clock.until(until)),
            _ => None,
        };
        [due, look, farewell].into_iter().flatten().min()
    }

    /// Has the next note call if a consumer may wait for room. Tells whether there is one already.
    fn awaits_note(&self) -> bool {
        let is_awaited = self.broker.in_transit() >= TRANSIT_WATCHED;
        self.channels.notes.0.set_awaited(is_awaited);
        is_awaited && !self.channels.notes.1.is_empty()
    }
}

impl TurnTaker for Scheduler {
    fn turn(&mut self) -> TurnEnd {
        self.take_events();
        self.take_notes();
        self.take_inputs();
        self.take_farewells();
        let mut is_done = false;
        if self.phase == SchedulerPhase::Keeping {
            is_done = !self.broker.is_writing() && !self.keep_leases();
        } else {
            self.broker.poll(self.clock.now());
        }
        // The round goes first: the rest is done while the commit threads store it.
        self.seal();
        self.flush();
        self.publish();
        if is_done {
            return TurnEnd::Done;
        }
        if self.has_work() || self.awaits_note() {
            return TurnEnd::More;
        }
        match self.idle_time() {
            Some(Duration::ZERO) => TurnEnd::More,
            time => TurnEnd::Idle(time.and_then(|time| Instant::now().checked_add(time))),
        }
    }

    /// The end of a scheduler is the end of its thread.
    fn needs_own_thread(&self) -> bool {
        self.phase != SchedulerPhase::Running
    }
}

/// Returns how many messages and results an input has.
fn weight(input: &Input) -> usize {
    let of_command = |command: &Command<ServerTickets>| match command {
        Command::Enqueue { messages, .. } => messages.len(),
        Command::Settle { results, .. } => results.len(),
        Command::Redrive { messages, .. } => messages.len(),
        _ => 1,
    };
    match input {
        Input::Command(command) => of_command(command),
        Input::Commands(commands) => commands.iter().map(of_command).sum(),
        Input::Query(query) => query.cost,
        Input::Open(_) | Input::Subscribe(_) | Input::Stop => 1,
    }
}
