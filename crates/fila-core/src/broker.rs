//! The broker of one scheduler thread: its queues, what they want stored, and when they want to be woken.
//!
//! # Rounds
//! What commands change is collected in one batch for each queue, until [`Broker::seal`] takes all of them to be stored
//! in one go: a *round*. One round is under way at a time, and the next is collected meanwhile. Answers that promise
//! something wait in the round that stores it; messages can be delivered when their round is done.
//!
//! # Work
//! Queues that something has happened to are put on a list, and [`Broker::poll`] goes through that list only. Timers
//! are kept by the queues, and the broker keeps the first of each queue in order.

use std::collections::{BTreeSet, HashMap};

use fila_store::{Batch, QueueId, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

use crate::effects::Garbage;
use crate::memory::Memory;
use crate::queue::{Context, Queue, Stores, Writes};
use crate::{
    Answer, Command, Committed, ConsumerId, Demand, Dismissal, Effects, LoadToken, LoadedMessages,
    NewMessage, QueueStats, Recovery, Refused, Round, Settings, Settlement,
};

/// How many operations a round takes. What one command adds may come on top; a batch of the store holds four times
/// as many.
const OPERATIONS_MAX: usize = Batch::OPERATIONS_MAX / 4;

/// Any number of queues, on one scheduler thread.
///
/// Does nothing by itself: it is told what happens and when, and says what it wants done by its
/// [effects](Self::effects) and [rounds](Self::seal). `T` is whatever its driver needs to find back who has asked.
#[derive(Debug)]
pub struct Broker<T> {
    settings: Settings,
    memory: Memory,
    queues: Slab<Entry>,
    numbers: HashMap<QueueId, usize, RandomState>,
    consumers: HashMap<ConsumerId, Seat, RandomState>,
    effects: Effects<T>,
    /// Queues that something has happened to since the last poll.
    touched: Vec<usize>,
    /// Queues whose figures have changed since they were last reported.
    changed: Vec<usize>,
    /// Queues that have more to do than the round that is collected has room for.
    postponed: Vec<usize>,
    /// When to wake which queue.
    alarms: BTreeSet<(Timestamp, usize)>,
    collecting: Collecting<T>,
    under_way: Option<UnderWay<T>>,
    /// Bytes taken in and not confirmed, of both rounds.
    buffered: usize,
    /// Batches to be used again.
    spare: Vec<Batch>,
    /// Why nothing is stored any more, if so.
    failure: Option<Refused>,
    now: Timestamp,
}

#[derive(Debug)]
struct Entry {
    queue: Queue,
    is_touched: bool,
    is_changed: bool,
    /// Whether it has something in the round that is collected.
    is_writing: bool,
    alarm: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Seat {
    queue: usize,
    consumer: u32,
}

/// The next round.
#[derive(Debug)]
struct Collecting<T> {
    /// Queues that have something to store, and how many operations that is.
    writing: Vec<usize>,
    operations: usize,
    answers: Vec<Promise<T>>,
}

/// The round that is being stored.
#[derive(Debug)]
struct UnderWay<T> {
    /// In the order of the round's batches.
    writes: Vec<(usize, QueueId, Writes)>,
    answers: Vec<Promise<T>>,
    bytes: usize,
}

/// An answer that is true once its round is stored.
#[derive(Debug)]
struct Promise<T> {
    queue: QueueId,
    ticket: T,
    answer: Answer,
}

impl<T> Broker<T> {
    /// Returns a broker without queues.
    pub fn new(settings: Settings) -> Self {
        Self {
            memory: Memory {
                used: 0,
                reserved: 0,
                budget: settings.memory_budget,
            },
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
            under_way: None,
            buffered: 0,
            spare: Vec::new(),
            failure: None,
            now: Timestamp::from_millis(0),
        }
    }

    /// Takes over a queue. One that is there already stays as it is.
    pub fn open(&mut self, now: Timestamp, recovery: Recovery) {
        self.advance(now);
        let id = recovery.queue;
        if self.numbers.contains_key(&id) {
            return;
        }
        let number = self.queues.insert(Entry {
            queue: Queue::open(self.now, &self.settings, recovery),
            is_touched: false,
            is_changed: false,
            is_writing: false,
            alarm: None,
        });
        self.numbers.insert(id, number);
        self.touch(number);
    }

    /// Does what a command says. Answers and deliveries are among the effects, at once or later.
    pub fn handle(&mut self, now: Timestamp, command: Command<T>) {
        self.advance(now);
        match command {
            Command::Enqueue {
                queue,
                messages,
                ticket,
            } => self.enqueue(queue, messages, ticket),
            Command::Settle {
                queue,
                results,
                ticket,
            } => self.settle(queue, results, ticket),
            Command::Subscribe {
                queue,
                consumer,
                demand,
                ticket,
            } => self.subscribe(queue, consumer, demand, ticket),
            Command::Credit { consumer, more } => {
                self.with_consumer(consumer, |queue, _, seat| queue.credit(seat, more));
            }
            Command::Drain { consumer } => {
                self.with_consumer(consumer, |queue, context, seat| queue.drain(context, seat));
            }
            Command::Unsubscribe { consumer } => {
                self.with_consumer(consumer, |queue, context, seat| {
                    queue.unsubscribe(context, seat);
                });
                self.consumers.remove(&consumer);
            }
            Command::Update { queue, definition } => {
                if let Some(&number) = self.numbers.get(&queue) {
                    self.queues[number].queue.update(*definition);
                    self.touch(number);
                }
            }
            Command::Purge { queue, ticket } => self.purge(queue, ticket),
            Command::Close { queue } => self.close(queue),
            Command::Inspect { queue, ticket } => {
                let answer = self.find(queue).map(|number| {
                    let stats = self.queues[number].queue.stats();
                    Answer::Inspected(Box::new(stats))
                });
                self.answer(ticket, answer.unwrap_or_else(Answer::Refused));
            }
            Command::Keys {
                queue,
                after,
                limit,
                ticket,
            } => {
                let answer = self.find(queue).map(|number| {
                    let (keys, next) = self.queues[number].queue.keys(after, limit);
                    Answer::Keys(keys, next)
                });
                self.answer(ticket, answer.unwrap_or_else(Answer::Refused));
            }
        }
    }

    /// Takes what a read has found.
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
                // It may be delivered right away, so whatever is due by now comes first.
                let is_done = queue.fire(context);
                queue.loaded(context, token, found, is_done);
            });
        }
    }

    /// Takes what became of the round under way.
    pub fn committed(&mut self, now: Timestamp, committed: Committed) {
        self.advance(now);
        let Some(under_way) = self.under_way.take() else {
            return;
        };
        self.buffered -= under_way.bytes;
        match committed {
            Committed::Stored { round, fenced } => {
                let stored = under_way.writes.into_iter().zip(round.batches);
                for ((number, id, writes), (_, mut batch)) in stored {
                    let is_there = self.numbers.get(&id) == Some(&number);
                    if is_there && !fenced.contains(&id) {
                        self.with_queue(number, |queue, context| {
                            queue.stored(context, &writes, &mut batch);
                        });
                    }
                    batch.clear();
                    self.spare.push(batch);
                }
                for promise in under_way.answers {
                    let is_gone = fenced.contains(&promise.queue)
                        || !self.numbers.contains_key(&promise.queue);
                    let answer = if is_gone {
                        Answer::Refused(Refused::QueueGone)
                    } else {
                        promise.answer
                    };
                    self.answer(promise.ticket, answer);
                }
            }
            Committed::Unknown => self.fail(under_way.answers, Refused::OutcomeUnknown),
            Committed::Failed => self.fail(under_way.answers, Refused::StoreFailed),
        }
    }

    /// Does what is due at `now`, and delivers what can be delivered. To be called after any of the others, once for
    /// as many as there were.
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
        // What is touched from here on waits for the next poll.
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
    }

    fn serve(&mut self, number: usize) {
        let (mut is_done, mut has_more) = (true, false);
        self.act_on(number, |queue, context| {
            is_done = queue.fire(context);
            has_more = queue.resync();
            // What is due and not done yet may have to do with what would be delivered.
            if is_done {
                queue.dispatch(context);
            }
        });
        if has_more {
            self.touch(number);
        }
        if !is_done {
            self.postponed.push(number);
        }
        let entry = &mut self.queues[number];
        let next = entry.queue.next_wake().filter(|_| is_done);
        if next != entry.alarm {
            if let Some(alarm) = entry.alarm {
                self.alarms.remove(&(alarm, number));
            }
            entry.alarm = next;
            self.alarms.extend(next.map(|next| (next, number)));
        }
    }

    /// Returns the changes to be stored next, if there are any and none are under way.
    ///
    /// Answers that have only waited for the round before come at once.
    pub fn seal(&mut self) -> Option<Round> {
        if self.under_way.is_some() || self.failure.is_some() {
            return None;
        }
        let collected = std::mem::take(&mut self.collecting);
        let mut writes = Vec::with_capacity(collected.writing.len());
        let mut batches = Vec::with_capacity(collected.writing.len());
        let mut bytes = 0;
        for number in collected.writing {
            let Some(entry) = self.queues.get_mut(number) else {
                continue; // closed since
            };
            if !std::mem::replace(&mut entry.is_writing, false) {
                continue; // closed since, and another opened in its place
            }
            let spare = self.spare.pop().unwrap_or_default();
            let mut taken = entry.queue.take_writes(spare);
            let batch = std::mem::take(&mut taken.batch);
            bytes += taken.bytes;
            batches.push((entry.queue.id, batch));
            writes.push((number, entry.queue.id, taken));
        }
        for number in std::mem::take(&mut self.postponed) {
            if self.queues.contains(number) {
                self.touch(number);
            }
        }
        if batches.is_empty() {
            for promise in collected.answers {
                self.answer(promise.ticket, promise.answer);
            }
            return None;
        }
        self.under_way = Some(UnderWay {
            writes,
            answers: collected.answers,
            bytes,
        });
        Some(Round { batches })
    }

    /// Tells whether so much waits to be stored that no more commands should come before a round is done.
    pub fn is_full(&self) -> bool {
        let is_buffer_full = self.buffered >= self.settings.limits.buffered_bytes;
        self.collecting.operations >= OPERATIONS_MAX || self.under_way.is_some() && is_buffer_full
    }

    /// Tells whether there is something to be stored, or being stored. After a failure there never is.
    pub fn is_writing(&self) -> bool {
        self.failure.is_none()
            && (self.under_way.is_some()
                || !self.collecting.writing.is_empty()
                || !self.collecting.answers.is_empty())
    }

    /// Returns when to [poll](Self::poll) again, if nothing else happens.
    pub fn next_timer(&self) -> Option<Timestamp> {
        if !self.touched.is_empty() {
            return Some(self.now);
        }
        self.alarms.first().map(|(moment, _)| *moment)
    }

    /// Returns what is to be done, to be taken and left empty.
    pub fn effects(&mut self) -> &mut Effects<T> {
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

    /// Returns how many bytes of messages are in memory.
    pub fn memory_used(&self) -> usize {
        self.memory.used
    }

    fn enqueue(&mut self, id: QueueId, messages: Vec<NewMessage>, ticket: T) {
        let number = match self.find_writable(id) {
            Ok(number) => number,
            Err(refused) => return self.answer(ticket, Answer::Refused(refused)),
        };
        let mut results = Vec::with_capacity(messages.len());
        self.with_queue(number, |queue, context| {
            for message in messages {
                results.push(queue.admit(context, message));
            }
        });
        let answer = Answer::Enqueued(results);
        let Answer::Enqueued(results) = &answer else {
            return;
        };
        // A duplicate of something that is not durable yet waits for that, too.
        if results.iter().any(Result::is_ok) {
            self.promise(id, ticket, answer);
        } else {
            self.answer(ticket, answer);
        }
    }

    fn settle(&mut self, id: QueueId, settlements: Vec<Settlement>, ticket: T) {
        let number = match self.find_writable(id) {
            Ok(number) => number,
            Err(refused) => return self.answer(ticket, Answer::Refused(refused)),
        };
        let mut results = Vec::with_capacity(settlements.len());
        let mut stores = Stores::Nothing;
        self.with_queue(number, |queue, context| {
            for settlement in settlements {
                let result = queue.settle(context, settlement);
                if result == Ok(Stores::Something) {
                    stores = Stores::Something;
                }
                results.push(result.map(drop));
            }
        });
        let answer = Answer::Settled(results);
        match stores {
            Stores::Something => self.promise(id, ticket, answer),
            Stores::Nothing => self.answer(ticket, answer),
        }
    }

    fn subscribe(&mut self, id: QueueId, consumer: ConsumerId, demand: Demand, ticket: T) {
        let max = self.settings.limits.consumers;
        let found = match self.find(id) {
            Ok(_) if self.consumers.len() >= max => Err(Refused::TooManyConsumers { max }),
            found => found,
        };
        let number = match found {
            Ok(number) => number,
            Err(refused) => return self.answer(ticket, Answer::Refused(refused)),
        };
        let most = self.settings.limits.in_flight_per_consumer;
        let demand = Demand {
            in_flight_max: demand.in_flight_max.min(most),
            ..demand
        };
        let seat = Seat {
            queue: number,
            consumer: self.queues[number].queue.subscribe(consumer, demand),
        };
        self.consumers.insert(consumer, seat);
        self.touch(number);
        self.answer(ticket, Answer::Subscribed);
    }

    fn purge(&mut self, id: QueueId, ticket: T) {
        let number = match self.find_writable(id) {
            Ok(number) => number,
            Err(refused) => return self.answer(ticket, Answer::Refused(refused)),
        };
        let mut purged = Ok(0);
        self.with_queue(number, |queue, context| purged = queue.purge(context));
        match purged {
            Ok(purged) => self.promise(id, ticket, Answer::Purged(purged)),
            Err(refused) => self.answer(ticket, Answer::Refused(refused)),
        }
    }

    fn close(&mut self, id: QueueId) {
        let Some(number) = self.numbers.remove(&id) else {
            return;
        };
        let mut entry = self.queues.remove(number);
        if let Some(alarm) = entry.alarm {
            self.alarms.remove(&(alarm, number));
        }
        entry.queue.dismiss_all(&mut self.effects);
        for (consumer, _) in &self.effects.dismissed {
            self.consumers.remove(consumer);
        }
        entry.queue.leave(&mut self.memory);
        self.buffered -= entry.queue.writes.bytes;
        let operations = entry.queue.writes.batch.len();
        self.collecting.operations = self.collecting.operations.saturating_sub(operations);
        self.effects.garbage.push(Garbage(Box::new(entry.queue)));
        // A queue that is opened later may get the number: nothing of this one is to be taken for it.
        self.touched.retain(|&touched| touched != number);
        self.changed.retain(|&changed| changed != number);
        self.collecting.writing.retain(|&writing| writing != number);
        self.postponed.retain(|&postponed| postponed != number);
    }

    /// Stops storing for ever, and tells whoever waits.
    fn fail(&mut self, answers: Vec<Promise<T>>, refused: Refused) {
        self.failure = Some(Refused::StoreFailed);
        for promise in answers {
            self.answer(promise.ticket, Answer::Refused(refused));
        }
        let collected = std::mem::take(&mut self.collecting);
        for promise in collected.answers {
            self.answer(promise.ticket, Answer::Refused(Refused::StoreFailed));
        }
    }

    fn advance(&mut self, now: Timestamp) {
        // Time does not go back here, whatever clocks do.
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
        act: impl FnOnce(&mut Queue, &mut Context<'_, T>, u32),
    ) {
        if let Some(&seat) = self.consumers.get(&consumer) {
            self.with_queue(seat.queue, |queue, context| {
                act(queue, context, seat.consumer);
            });
        }
    }

    /// Does something with a queue, after which it is to be served.
    fn with_queue(&mut self, number: usize, act: impl FnOnce(&mut Queue, &mut Context<'_, T>)) {
        self.act_on(number, act);
        self.touch(number);
    }

    /// Does something with a queue, and takes note of what it wants stored and whom it has dismissed.
    fn act_on(&mut self, number: usize, act: impl FnOnce(&mut Queue, &mut Context<'_, T>)) {
        let entry = &mut self.queues[number];
        let dismissed = self.effects.dismissed.len();
        let mut context = Context {
            now: self.now,
            settings: &self.settings,
            memory: &mut self.memory,
            effects: &mut self.effects,
            buffered: &mut self.buffered,
            room: OPERATIONS_MAX.saturating_sub(self.collecting.operations),
        };
        let before = entry.queue.writes.batch.len();
        act(&mut entry.queue, &mut context);
        let after = entry.queue.writes.batch.len();
        // A purge takes back what was collected before it.
        self.collecting.operations = (self.collecting.operations + after).saturating_sub(before);
        if !entry.is_writing && !entry.queue.writes.batch.is_empty() {
            entry.is_writing = true;
            self.collecting.writing.push(number);
        }
        for (consumer, dismissal) in &self.effects.dismissed[dismissed..] {
            debug_assert_eq!(*dismissal, Dismissal::Drained);
            self.consumers.remove(consumer);
        }
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

    fn promise(&mut self, queue: QueueId, ticket: T, answer: Answer) {
        self.collecting.answers.push(Promise {
            queue,
            ticket,
            answer,
        });
    }

    fn answer(&mut self, ticket: T, answer: Answer) {
        self.effects.answers.push((ticket, answer));
    }
}

impl<T> Default for Collecting<T> {
    fn default() -> Self {
        Self {
            writing: Vec::new(),
            operations: 0,
            answers: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use fila_store::{Epoch, FairnessKey, Generation, Payload};

    use super::*;
    use crate::{Credit, Definition, Delivering, KeySettings, Verdict};

    const NOW: Timestamp = Timestamp::from_millis(1);

    fn key(number: usize) -> FairnessKey {
        FairnessKey::new(number.to_string()).unwrap()
    }

    fn commit(broker: &mut Broker<()>) {
        while let Some(round) = broker.seal() {
            let fenced = Vec::new();
            broker.committed(NOW, Committed::Stored { round, fenced });
        }
        broker.effects().answers.clear();
    }

    /// Returns how many keys the engine looked at for a thousand deliveries, with so many keys that have messages and so many that
    /// are paused.
    fn visits(active: usize, paused: usize) -> u64 {
        let mut definition = Definition::default();
        let settings = KeySettings {
            delivery: Delivering::Paused,
            weight: NonZeroU32::new(3),
            concurrency: None,
        };
        definition.keys = (0..paused).map(|number| (key(number), settings)).collect();
        let mut broker = Broker::new(Settings::default());
        let queue = QueueId::new(1);
        let generation = Generation::new(0);
        let recovery = Recovery::new(queue, Epoch::FIRST, generation, definition);
        broker.open(NOW, recovery);
        let payload = Payload::new(Vec::new(), "").unwrap();
        let messages = (0..paused + active)
            .cycle()
            .take((paused + active).max(2_000))
            .map(|number| NewMessage::new(key(number), payload.clone()));
        let messages = messages.collect();
        broker.handle(
            NOW,
            Command::Enqueue {
                queue,
                messages,
                ticket: (),
            },
        );
        commit(&mut broker);
        let consumer = ConsumerId::new(1);
        let demand = Demand {
            credit: Credit::Limited(0),
            in_flight_max: 1_000,
        };
        broker.handle(
            NOW,
            Command::Subscribe {
                queue,
                consumer,
                demand,
                ticket: (),
            },
        );
        let before = broker.queues[0].queue.work();
        for _ in 0..1_000 {
            broker.handle(NOW, Command::Credit { consumer, more: 1 });
            broker.poll(NOW);
            let (_, delivery) = broker.effects().deliveries.remove(0);
            let results = vec![Settlement {
                lease: delivery.lease,
                message: None,
                verdict: Verdict::Ack,
            }];
            broker.handle(
                NOW,
                Command::Settle {
                    queue,
                    results,
                    ticket: (),
                },
            );
            commit(&mut broker);
        }
        broker.queues[0].queue.work().visits - before.visits
    }

    #[test]
    fn a_delivery_takes_two_steps_with_one_key_and_with_a_hundred_thousand() {
        for (active, paused) in [(1, 0), (1_000, 0), (100_000, 0), (1_000, 100_000)] {
            let visits = visits(active, paused);
            assert!(visits <= 2_000, "{active} and {paused}: {visits}");
        }
    }
}
