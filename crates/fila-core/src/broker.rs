//! The broker of one scheduler thread: its queues, their changes to store, and their timers.
//!
//! # Work
//! The broker keeps a list of the queues with new events, and [`Broker::poll`] visits only these. Each queue keeps its
//! timers, and the broker keeps the earliest timer of each queue in order.

mod moves;
mod queries;
mod rounds;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};

use fila_store::{Batch, QueueId, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

pub use self::rounds::ROUNDS_MAX;
use self::rounds::{Collecting, OPERATIONS_MAX, PendingAnswer, UnderWay};
use crate::effects::Garbage;
use crate::memory::Memory;
use crate::queue::{Context, DeadLetter, Queue, Stores};
use crate::throttle::{OFFERS_MAX, Throttles};
use crate::{
    Answer, BatchId, Command, ConsumerId, Demand, Dismissal, Effects, EnqueueResults, FailureToken,
    Judgement, LeaseId, LoadToken, LoadedMessages, NewMessage, QueueSettings, QueueStats, Recovery,
    Refused, Settings, SettleResults, Settlement, Tickets, TokenSource,
};

/// Any number of queues, on one scheduler thread.
///
/// It has no thread and performs no I/O: its driver passes events and the time, and performs its
/// [effects](Self::effects) and [rounds](Self::seal). `T` is the type of the driver's tickets for answers.
#[derive(Debug)]
pub struct Broker<T: Tickets> {
    settings: Settings,
    memory: Memory,
    queues: Slab<Entry>,
    numbers: HashMap<QueueId, usize, RandomState>,
    consumers: HashMap<ConsumerId, ConsumerEntry, RandomState>,
    effects: Effects<Answer<T>>,
    /// Queues with events since the last poll.
    touched: Vec<usize>,
    /// Queues whose figures have changed since the last report.
    changed: Vec<usize>,
    /// Queues with more work than the present round has room for.
    postponed: Vec<usize>,
    /// The earliest timer of each queue.
    alarms: BTreeSet<(Timestamp, usize)>,
    throttles: Throttles,
    collecting: Collecting<T>,
    under_way: VecDeque<UnderWay<T>>,
    /// Accepted bytes that are not durable yet, of all rounds.
    buffered: usize,
    /// New dead letters of the queue that the broker works on.
    dead_letters: Vec<DeadLetter>,
    /// Empty batches for later rounds.
    spare: Vec<Batch>,
    /// Why the broker stores nothing any more, after a failed write.
    failure: Option<Refused>,
    /// Whether the store has no room for more messages.
    is_storage_full: bool,
    now: Timestamp,
}

#[derive(Debug)]
struct Entry {
    queue: Queue,
    is_touched: bool,
    is_changed: bool,
    /// Whether it has changes in the present round.
    is_writing: bool,
    /// Whether it has consumers that wait for room.
    is_crowded: bool,
    alarm: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct ConsumerEntry {
    queue: usize,
    consumer: u32,
}

impl<T: Tickets> Broker<T> {
    /// Returns a broker without queues.
    pub fn new(settings: Settings) -> Self {
        Self::with_tokens(settings, Box::new(()))
    }

    /// Returns a broker without queues that takes the tokens of throttles from this source.
    pub fn with_tokens(settings: Settings, tokens: Box<dyn TokenSource>) -> Self {
        Self {
            throttles: Throttles::new(tokens),
            memory: Memory::new(settings.memory_budget),
            settings,
            queues: Slab::new(),
            numbers: HashMap::default(),
            consumers: HashMap::default(),
            effects: Effects::default(),
            touched: Vec::new(),
            changed: Vec::new(),
            postponed: Vec::new(),
            alarms: BTreeSet::new(),
            collecting: Collecting::default(),
            under_way: VecDeque::new(),
            buffered: 0,
            dead_letters: Vec::new(),
            spare: Vec::new(),
            failure: None,
            is_storage_full: false,
            now: Timestamp::from_millis(0),
        }
    }

    /// Opens a queue. Ignored if the broker has it already.
    pub fn open(&mut self, now: Timestamp, mut recovery: Recovery) {
        self.advance(now);
        let id = recovery.queue;
        if self.numbers.contains_key(&id) {
            return;
        }
        let group_weights = recovery.group_weights();
        let kept = std::mem::take(&mut recovery.kept);
        let number = self.queues.insert(Entry {
            queue: Queue::open(self.now, &self.settings, recovery),
            is_touched: false,
            is_changed: false,
            is_writing: false,
            is_crowded: false,
            alarm: None,
        });
        self.numbers.insert(id, number);
        self.with_queue(number, |queue, context| {
            queue.restore(context, kept);
            queue.recover_group_weights(&group_weights);
        });
        self.share_separator(number);
    }

    /// Stores live leases, so that they are valid after the next start. Returns how many.
    ///
    /// A driver that stops calls it when all consumers have [left](crate::Departure::Stopped) and nothing is being written,
    /// and again after each round until it returns zero: a round has room for 262,143 leases. From the first call on, the
    /// driver gives no command and does not poll: the rows would not follow.
    ///
    /// Stores nothing after a failed write, or if the disk is full: the leases end with the broker, as after a crash.
    pub fn keep_leases(&mut self, now: Timestamp) -> usize {
        self.advance(now);
        if self.failure.is_some() || self.is_storage_full {
            return 0;
        }
        let numbers: Vec<usize> = self.queues.iter().map(|(number, _)| number).collect();
        let kept = numbers.into_iter().map(|number| {
            self.collect(number, |queue, context| {
                queue.keep_leases(context.now, context.room)
            })
        });
        kept.sum()
    }

    /// Returns the leases of a consumer whose deliveries its socket has not [taken](Command::Taken).
    pub fn unsent(&self, consumer: ConsumerId) -> Vec<LeaseId> {
        let entry = self.consumers.get(&consumer);
        entry.map_or_else(Vec::new, |entry| {
            self.queues[entry.queue].queue.unsent(entry.consumer)
        })
    }

    /// Executes a command. The answer and the deliveries appear in the effects, at once or later.
    pub fn handle(&mut self, now: Timestamp, command: Command<T>) {
        self.advance(now);
        match command {
            Command::Enqueue {
                queue,
                messages,
                batch_id,
                ticket,
            } => self.enqueue(queue, messages, batch_id.as_ref(), ticket),
            Command::Settle {
                queue,
                results,
                by,
                ticket,
            } => self.settle(queue, results, by, ticket),
            Command::Credit { consumer, more } => {
                self.with_consumer(consumer, |queue, _, number| queue.credit(number, more));
            }
            Command::Taken { consumer, bytes } => self.taken(consumer, bytes),
            Command::Drain { consumer } => self.with_consumer(consumer, Queue::drain),
            Command::Unsubscribe {
                consumer,
                departure,
                unsent,
            } => {
                self.with_consumer(consumer, |queue, context, number| {
                    queue.unsubscribe(context, number, departure, unsent);
                });
                self.consumers.remove(&consumer);
            }
            Command::Update { queue, definition } => self.update(queue, *definition),
            Command::Rethrottle { keys } => self.throttles.rethrottle(&keys),
            Command::Purge { queue, ticket } => self.purge(queue, ticket),
            Command::Close { queue } => self.close(queue),
            Command::Redrive {
                queue,
                to,
                stamp,
                messages,
                ticket,
            } => self.redrive((queue, to), stamp, messages, ticket),
        }
    }

    /// Adds a consumer to a queue.
    ///
    /// # Errors
    /// If there is no such queue, a write has failed, or the broker has as many consumers as its limit.
    pub fn subscribe(
        &mut self,
        now: Timestamp,
        queue: QueueId,
        consumer: ConsumerId,
        demand: Demand,
    ) -> Result<(), Refused> {
        self.advance(now);
        let number = self.find_writable(queue)?;
        let limits = &self.settings.limits;
        if self.consumers.len() >= limits.consumers {
            let max = limits.consumers;
            return Err(Refused::TooManyConsumers { max });
        }
        let demand = Demand {
            in_flight_max: demand.in_flight_max.min(limits.in_flight_per_consumer),
            ..demand
        };
        let entry = ConsumerEntry {
            queue: number,
            consumer: self.queues[number].queue.subscribe(consumer, demand),
        };
        self.consumers.insert(consumer, entry);
        self.touch(number);
        Ok(())
    }

    /// Says whether the store has no room for more messages. Until it has, the broker refuses new messages and keeps dead
    /// letters where they are; it goes on delivering, and removes what is acknowledged.
    pub fn set_storage_full(&mut self, is_full: bool) {
        self.is_storage_full = is_full;
    }

    /// Takes the decision on a failed delivery. Ignored if the failure is decided already, or gone.
    pub fn judge(
        &mut self,
        now: Timestamp,
        queue: QueueId,
        token: FailureToken,
        judgement: Judgement,
    ) {
        self.advance(now);
        if let Ok(number) = self.find_writable(queue) {
            self.with_queue(number, |queue, context| {
                queue.judge(context, token, judgement);
            });
        }
    }

    /// Takes the result of a read.
    pub fn loaded(
        &mut self,
        now: Timestamp,
        queue: QueueId,
        token: LoadToken,
        found: LoadedMessages,
    ) {
        self.advance(now);
        if let Ok(number) = self.find_writable(queue) {
            self.with_queue(number, |queue, context| {
                // The queue may deliver the messages at once, so it handles its due timers first.
                let is_done = queue.fire(context);
                queue.loaded(context, token, found, is_done);
            });
        }
    }

    /// Handles the timers that are due at `now`, and delivers messages. The driver calls it once after any number of other
    /// calls.
    pub fn poll(&mut self, now: Timestamp) {
        self.advance(now);
        while let Some(&(moment, number)) = self.alarms.first() {
            if moment > self.now {
                break;
            }
            self.alarms.pop_first();
            self.queues[number].alarm = None;
            self.touch(number);
        }
        self.admit_consumers();
        if self.failure.is_none() {
            self.offer_tokens();
        }
        // Queues that are touched from here on wait for the next poll.
        let mut touched = std::mem::take(&mut self.touched);
        for number in touched.drain(..) {
            let Some(entry) = self.queues.get_mut(number) else {
                continue;
            };
            entry.is_touched = false;
            if self.failure.is_some() {
                continue;
            }
            self.serve(number);
        }
        touched.append(&mut self.touched);
        self.touched = touched;
        self.throttles.end_poll(self.now);
    }

    /// Makes consumers ready that waited for room, as far as there is room now. Their queues are served before others,
    /// and each time another of them is the first.
    fn admit_consumers(&mut self) {
        let mut crowded = std::mem::take(&mut self.memory.transit.crowded);
        if crowded.is_empty() {
            return;
        }
        let mut admitted = Vec::new();
        crowded.rotate_left(1);
        crowded.retain(|&number| {
            let consumers = &mut self.queues[number].queue.consumers;
            let is_admitted = consumers.unpark(&self.memory.transit);
            let is_crowded = consumers.has_parked();
            if is_admitted {
                self.touch(number);
                admitted.push(number);
            }
            self.queues[number].is_crowded = is_crowded;
            is_crowded
        });
        self.memory.transit.crowded = crowded;
        self.touched.retain(|number| !admitted.contains(number));
        self.touched.splice(..0, admitted);
    }

    /// Wakes the lanes that have tokens now.
    fn offer_tokens(&mut self) {
        let (queues, numbers) = (&self.queues, &self.numbers);
        self.throttles.remove_stale(|waiter| {
            let number = numbers.get(&waiter.queue);
            number.is_some_and(|&number| queues[number].queue.awaits(waiter))
        });
        for _ in 0..OFFERS_MAX {
            let Some(offer) = self.throttles.offer(self.now) else {
                return;
            };
            let number = self.numbers.get(&offer.waiter.queue).copied();
            let is_accepted = number.is_some_and(|number| {
                let queue = &mut self.queues[number].queue;
                queue.accept(&self.throttles, &offer)
            });
            match number {
                Some(number) if is_accepted => self.touch(number),
                // The waiting message was purged, has expired, or its queue was closed.
                _ => self.throttles.decline(&offer),
            }
        }
    }

    fn serve(&mut self, number: usize) {
        let (mut is_done, mut has_more) = (true, false);
        self.collect(number, |queue, context| {
            is_done = queue.fire(context);
            has_more = queue.resync();
            // A timer that is due and not handled yet may concern the next message.
            if is_done {
                let is_dispatched = queue.dispatch(context);
                has_more |= !is_dispatched;
                if is_dispatched {
                    queue.dismiss_served(context);
                }
            }
        });
        self.move_to_dlq(number);
        if has_more {
            self.touch(number);
        }
        if !is_done && self.collecting.operations > 0 {
            self.postponed.push(number);
        } else if !is_done {
            // There is no round to wait for.
            self.touch(number);
        }
        let entry = &mut self.queues[number];
        if !entry.is_crowded && entry.queue.consumers.has_parked() {
            entry.is_crowded = true;
            self.memory.transit.crowded.push_back(number);
        }
        let next = entry.queue.next_wake().filter(|_| is_done);
        if next != entry.alarm {
            if let Some(alarm) = entry.alarm {
                self.alarms.remove(&(alarm, number));
            }
            entry.alarm = next;
            self.alarms.extend(next.map(|next| (next, number)));
        }
    }

    /// Returns when to [poll](Self::poll) again if there is no event before.
    pub fn next_timer(&self) -> Option<Timestamp> {
        if !self.touched.is_empty() {
            return Some(self.now);
        }
        let alarm = self.alarms.first().map(|(moment, _)| *moment);
        // After a failed write the broker delivers nothing.
        let look = match self.failure {
            Some(_) => None,
            None if self.throttles.is_due() => Some(self.now),
            None => self.throttles.next_alarm(),
        };
        [alarm, look].into_iter().flatten().min()
    }

    /// Returns the effects. The driver takes them and leaves the value empty.
    pub fn effects(&mut self) -> &mut Effects<Answer<T>> {
        &mut self.effects
    }

    /// Reports the queues whose figures have changed since the last call, with their figures.
    pub fn changed(&mut self, mut report: impl FnMut(QueueId, &QueueStats)) {
        for number in self.changed.drain(..) {
            if let Some(entry) = self.queues.get_mut(number) {
                entry.is_changed = false;
                report(entry.queue.id, &entry.queue.stats());
            }
        }
    }

    /// Returns the bytes of messages in memory, with those [in transit](Self::in_transit).
    pub fn memory_used(&self) -> usize {
        self.memory.held()
    }

    /// Returns the bytes of deliveries that were not [taken](Command::Taken) yet.
    pub fn in_transit(&self) -> usize {
        self.memory.transit.bytes
    }

    /// Tells whether a consumer waits for room that the deliveries of others take.
    pub fn is_crowded(&self) -> bool {
        !self.memory.transit.crowded.is_empty()
    }

    fn taken(&mut self, consumer: ConsumerId, bytes: usize) {
        let transit = &mut self.memory.transit;
        match self.consumers.get(&consumer) {
            Some(&ConsumerEntry { queue, consumer }) => {
                let consumers = &mut self.queues[queue].queue.consumers;
                if consumers.taken(transit, consumer, bytes) {
                    self.touch(queue);
                }
            }
            None => transit.release(bytes),
        }
    }

    fn enqueue(
        &mut self,
        id: QueueId,
        messages: Vec<NewMessage>,
        batch_id: Option<&BatchId>,
        ticket: T::Ticket<EnqueueResults>,
    ) {
        let results = self.find_writable(id).and_then(|number| {
            self.with_queue(number, |queue, context| {
                queue.admit_all(context, batch_id, messages)
            })
        });
        // A duplicate of a message that is not durable yet waits for that message, too.
        let waits = matches!(&results, Ok(results) if results.iter().any(Result::is_ok));
        self.answer_after(id, waits, Answer::Enqueued(ticket, results));
    }

    fn settle(
        &mut self,
        id: QueueId,
        settlements: Vec<Settlement>,
        by: Option<ConsumerId>,
        ticket: T::Ticket<SettleResults>,
    ) {
        let mut stores = false;
        let by = by.and_then(|by| self.consumers.get(&by).copied());
        let results = self.find_writable(id).map(|number| {
            let by = by.filter(|by| by.queue == number).map(|by| by.consumer);
            self.with_queue(number, |queue, context| {
                let settled = settlements.into_iter().map(|settlement| {
                    let result = queue.settle(context, settlement, by);
                    stores |= result == Ok(Stores::Something);
                    result.map(drop)
                });
                settled.collect()
            })
        });
        self.answer_after(id, stores, Answer::Settled(ticket, results));
    }

    fn update(&mut self, id: QueueId, definition: QueueSettings) {
        if let Ok(number) = self.find(id) {
            self.queues[number].queue.update(definition);
            self.touch(number);
            self.share_separator(number);
        }
    }

    /// Lets the queue of a queue's dead letters separate keys as the queue does.
    fn share_separator(&mut self, number: usize) {
        let shared = self.queues[number].queue.separator_of_dead_letters();
        if let Some((id, separator)) = shared
            && let Some(&dead_letters) = self.numbers.get(&id)
        {
            self.queues[dead_letters].queue.follow_separator(separator);
            self.touch(dead_letters);
        }
    }

    fn purge(&mut self, id: QueueId, ticket: T::Ticket<u64>) {
        let purged = self
            .find_writable(id)
            .and_then(|number| self.with_queue(number, Queue::purge));
        self.answer_after(id, purged.is_ok(), Answer::Purged(ticket, purged));
    }

    fn close(&mut self, id: QueueId) {
        let Some(number) = self.numbers.remove(&id) else {
            return;
        };
        let mut entry = self.queues.remove(number);
        if let Some(alarm) = entry.alarm {
            self.alarms.remove(&(alarm, number));
        }
        let dismissed = self.effects.dismissed.len();
        entry
            .queue
            .dismiss_all(&mut self.effects, Dismissal::QueueGone);
        for (consumer, _) in &self.effects.dismissed[dismissed..] {
            self.consumers.remove(consumer);
        }
        entry.queue.leave(&mut self.memory);
        self.buffered -= entry.queue.writes.bytes;
        let operations = entry.queue.writes.batch.len();
        self.collecting.operations = self.collecting.operations.saturating_sub(operations);
        self.effects.garbage.push(Garbage(Box::new(entry.queue)));
        // A queue that is opened later may get the number, so nothing may refer to this queue by it.
        self.memory
            .transit
            .crowded
            .retain(|&crowded| crowded != number);
        self.touched.retain(|&touched| touched != number);
        self.changed.retain(|&changed| changed != number);
        self.collecting.writing.retain(|&writing| writing != number);
        self.postponed.retain(|&postponed| postponed != number);
    }

    fn advance(&mut self, now: Timestamp) {
        // The broker's time never goes back, even if the clock does.
        self.now = self.now.max(now);
    }

    fn find(&self, id: QueueId) -> Result<usize, Refused> {
        let number = self.numbers.get(&id).copied();
        number.ok_or(Refused::QueueGone)
    }

    fn find_writable(&self, id: QueueId) -> Result<usize, Refused> {
        self.failure.map_or_else(|| self.find(id), Err)
    }

    fn with_consumer(
        &mut self,
        consumer: ConsumerId,
        act: impl FnOnce(&mut Queue, &mut Context<'_, Answer<T>>, u32),
    ) {
        if let Some(&entry) = self.consumers.get(&consumer) {
            self.with_queue(entry.queue, |queue, context| {
                act(queue, context, entry.consumer);
            });
        }
    }

    /// Runs `work` on a queue, moves its new dead letters, and marks the queue for the next poll.
    fn with_queue<R>(
        &mut self,
        number: usize,
        act: impl FnOnce(&mut Queue, &mut Context<'_, Answer<T>>) -> R,
    ) -> R {
        let result = self.collect(number, act);
        self.move_to_dlq(number);
        self.touch(number);
        result
    }

    /// Runs `work` on a queue, and records its changes to store and the consumers that it has dismissed.
    fn collect<R>(
        &mut self,
        number: usize,
        act: impl FnOnce(&mut Queue, &mut Context<'_, Answer<T>>) -> R,
    ) -> R {
        let entry = &mut self.queues[number];
        let dismissed = self.effects.dismissed.len();
        let mut context = Context {
            now: self.now,
            settings: &self.settings,
            memory: &mut self.memory,
            effects: &mut self.effects,
            throttles: &mut self.throttles,
            buffered: &mut self.buffered,
            is_storage_full: self.is_storage_full,
            room: OPERATIONS_MAX.saturating_sub(self.collecting.operations),
            adopted: &mut self.collecting.adopted,
            dead_letters: &mut self.dead_letters,
        };
        let before = entry.queue.writes.batch.len();
        let acted = act(&mut entry.queue, &mut context);
        let after = entry.queue.writes.batch.len();
        // A purge drops the changes that the queue collected before it.
        self.collecting.operations = (self.collecting.operations + after).saturating_sub(before);
        if !entry.is_writing && !entry.queue.writes.batch.is_empty() {
            entry.is_writing = true;
            self.collecting.writing.push(number);
        }
        for (consumer, dismissal) in &self.effects.dismissed[dismissed..] {
            if *dismissal == Dismissal::Drained {
                self.consumers.remove(consumer);
            }
        }
        acted
    }

    fn touch(&mut self, number: usize) {
        let entry = &mut self.queues[number];
        if !std::mem::replace(&mut entry.is_touched, true) {
            self.touched.push(number);
        }
        if !std::mem::replace(&mut entry.is_changed, true) {
            self.changed.push(number);
        }
    }

    /// Answers now, or once the present round is stored if the answer `waits` for that.
    fn answer_after(&mut self, queue: QueueId, waits: bool, answer: Answer<T>) {
        if waits {
            self.collecting
                .answers
                .push(PendingAnswer { queue, answer });
        } else {
            self.effects.answers.push(answer);
        }
    }
}
