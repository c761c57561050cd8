//! One queue: who has messages in it, who takes them, and what is to be stored of that.
//!
//! # The states of a message
//! ```text
//!            Enqueue                    committed
//! producer ──────────▶ in the batch ───────────────▶ Ready ◀─────────────┐
//!                                     │  (delay)       │ dispatch        │ Nack, Release, expiry, consumer gone
//!                                     └──▶ Delayed ──▶ │                 │ (through Delayed, if there is a delay)
//!                                          due         ▼                 │
//!                                                    Leased ─────────────┘
//!                                                      │ Ack
//!                                                      ▼
//!                                            deleted in the batch
//! ```
//! A ready message is in memory, in memory without its payload, or in the store only; see [`lane`]. Its payload leaves
//! memory with its delivery: whoever gets it again gets it from the store.
//!
//! # What always holds
//! - A message is delivered only after it is durable, and at most one lease of it is alive.
//! - Results are taken under a live lease only. A lease ends with its first result, its expiry, its consumer, a purge.
//! - In a strictly ordered queue the next message of a key goes out when the one before is *durably* deleted; otherwise
//!   a crash could bring it back behind its successor.
//! - `depth = ready + delayed + leased + accepted and not yet durable`.

mod admission;
mod aisle;
mod batch_row;
mod batches;
mod books;
mod consumers;
mod deduplication;
mod dispatch;
mod explaining;
mod failing;
mod lane;
mod line;
mod loading;
mod message;
mod pace;
mod peeking;
mod redriving;
mod settling;

use drr::Weight;
use fila_store::{Batch, Epoch, Generation, QueueId, Timestamp};

pub(crate) use self::batch_row::BatchRow;
pub(crate) use self::batches::Batches;
use self::books::Books;
use self::consumers::Consumers;
use self::deduplication::Deduplication;
#[cfg(test)]
pub(crate) use self::dispatch::TURNED_AWAY_MAX;
pub(crate) use self::failing::Dying;
use self::lane::Stored;
pub(crate) use self::message::ready_since;
pub(crate) use self::settling::Stores;
use crate::effects::Garbage;
use crate::memory::Memory;
use crate::recovery::DeadLetters;
use crate::throttle::{Call, Gates, Waiter};
use crate::{
    ConsumerId, Definition, Demand, Dismissal, Effects, KeySettings, QueueStats, Recovery, Refused,
    Settings, Totals,
};

/// What a queue needs of the broker to do something.
pub(crate) struct Context<'a, T> {
    pub(crate) now: Timestamp,
    pub(crate) settings: &'a Settings,
    pub(crate) memory: &'a mut Memory,
    pub(crate) effects: &'a mut Effects<T>,
    pub(crate) gates: &'a mut Gates,
    /// Bytes that have been taken and are not confirmed.
    pub(crate) buffered: &'a mut usize,
    /// How many operations the round that is collected has room for.
    pub(crate) room: usize,
    /// Bytes that it copies from queue to queue.
    pub(crate) adopted: &'a mut usize,
    /// Messages of this queue that are to leave for another one.
    pub(crate) dying: &'a mut Vec<Dying>,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    epoch: Epoch,
    generation: Generation,
    definition: Definition,
    next_message: u64,
    next_lease: u64,
    consumers: Consumers,
    deduplication: Deduplication,
    batches: Batches,
    books: Box<Books>,
    dead_letters: Option<DeadLetters>,
    /// How many messages have been taken out of the store by others than their readers.
    redrives: u64,
    totals: Totals,
    /// What is to be stored next.
    pub(crate) writes: Writes,
    /// How far lanes have been looked at since the definition changed for all of them.
    resync: Option<usize>,
}

/// What one round stores of a queue, and who waits for it.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    pub(crate) batch: Batch,
    /// The lanes of the messages that are put, in their order.
    lanes: Vec<u32>,
    /// Strictly ordered lanes that wait for a deletion.
    settling: Vec<u32>,
    /// Lanes of which messages are deleted that are in the store only.
    removing: Vec<u32>,
    /// The books to which these lanes belong.
    serial: u64,
    /// Bytes of the messages that were accepted.
    pub(crate) bytes: usize,
    is_purge: bool,
}

impl Queue {
    pub(crate) fn open(now: Timestamp, settings: &Settings, mut recovery: Recovery) -> Self {
        let ordering = recovery.definition.ordering;
        let mut queue = Self {
            id: recovery.queue,
            epoch: recovery.epoch,
            generation: recovery.generation,
            definition: recovery.definition,
            next_message: 0,
            next_lease: 0,
            consumers: Consumers::default(),
            deduplication: Deduplication::default(),
            batches: recovery.batches,
            books: Box::new(Books::new(0, ordering, settings, now)),
            dead_letters: recovery.dead_letters,
            redrives: 0,
            totals: Totals::default(),
            writes: Writes::default(),
            resync: None,
        };
        for found in recovery.keys {
            let weight = Weight::new(u64::from(found.weight.get())).unwrap_or(Weight::MAX);
            let settings = queue.settings_of(&found.key);
            let books = &mut queue.books;
            let number = books.find_or_add(&found.key, weight, settings);
            books.lane_mut(number).stored = Some(Stored {
                after: fila_store::MessageId::from_number(0),
                last: found.last,
                count: found.messages,
                bytes: found.bytes,
                since: found.since,
            });
            books.depth += found.messages;
            books.stats.ready += found.messages;
            books.stats.stored_only += found.messages;
            books.stats.bytes += found.bytes;
            books.refresh(number, &queue.definition);
        }
        recovery.remembered.sort_by_key(|known| known.expires_at);
        for known in recovery.remembered {
            let (id, until) = (known.deduplication_id, known.expires_at);
            queue.deduplication.remember(id, known.id, until);
        }
        queue.batches.forget_expired(now);
        queue
    }

    fn settings_of(&self, key: &fila_store::FairnessKey) -> KeySettings {
        self.definition.keys.get(key).copied().unwrap_or_default()
    }

    /// Returns how the queue is.
    pub(crate) fn stats(&self) -> QueueStats {
        QueueStats {
            consumers: self.consumers.len() as u64,
            totals: self.totals,
            ..self.books.stats
        }
    }

    pub(crate) fn subscribe(&mut self, id: ConsumerId, demand: Demand) -> u32 {
        self.consumers.add(id, demand)
    }

    pub(crate) fn credit(&mut self, consumer: u32, more: u32) {
        self.consumers.credit(consumer, more);
    }

    /// Sends a consumer no more, and dismisses it once all it has is settled.
    pub(crate) fn drain<T>(&mut self, context: &mut Context<'_, T>, consumer: u32) {
        self.consumers.drain(consumer);
        self.dismiss_drained(context, consumer);
    }

    fn dismiss_drained<T>(&mut self, context: &mut Context<'_, T>, consumer: u32) {
        if let Some(id) = self.consumers.drained(consumer) {
            self.consumers.remove(consumer);
            context.effects.dismissed.push((id, Dismissal::Drained));
        }
    }

    /// Dismisses all consumers, since the queue is no more.
    pub(crate) fn dismiss_all<T>(&mut self, effects: &mut Effects<T>) {
        let names = self.consumers.names();
        effects
            .dismissed
            .extend(names.map(|id| (id, Dismissal::QueueGone)));
    }

    /// Follows a changed definition. The ordering stays what it was when the queue was made.
    pub(crate) fn update(&mut self, definition: Definition) {
        let ordering = self.definition.ordering;
        let before = std::mem::replace(&mut self.definition, definition);
        self.definition.ordering = ordering;
        if before.key_concurrency != self.definition.key_concurrency {
            self.resync = Some(0);
        }
        let named: Vec<_> = before
            .keys
            .keys()
            .chain(self.definition.keys.keys())
            .filter_map(|key| {
                let number = self.books.keys.get(key)?;
                let settings = self.definition.keys.get(key);
                Some((*number, settings.copied().unwrap_or_default()))
            })
            .collect();
        for (number, settings) in named {
            self.books.reweigh(number, None, Some(settings));
            self.books.refresh(number, &self.definition);
        }
    }

    /// Lets some lanes follow a definition that has changed for all of them; tells whether there are more.
    pub(crate) fn resync(&mut self) -> bool {
        const STEP: usize = 1024;
        let Some(from) = self.resync else {
            return false;
        };
        let to = (from + STEP).min(self.books.lanes.len());
        for number in from..to {
            if self.books.lanes[number].is_some() {
                self.books.refresh(number as u32, &self.definition);
            }
        }
        self.resync = (to < self.books.lanes.len()).then_some(to);
        self.resync.is_some()
    }

    /// Lets an aisle go on for which there is a token; tells whether it has waited for that.
    pub(crate) fn called(&mut self, gates: &Gates, call: &Call) -> bool {
        let number = call.waiter.lane;
        let Some(Some(lane)) = self.books.lanes.get_mut(number as usize) else {
            return false;
        };
        let called = match &mut lane.aisles {
            Some(aisles) => aisles.called(gates, call),
            None => None,
        };
        let Some(count) = called else {
            return false;
        };
        let count = match lane.held.take() {
            Some(_) => 1,
            None => count,
        };
        lane.throttled -= count;
        self.books.stats.throttled -= count;
        self.books.refresh(number, &self.definition);
        true
    }

    /// Tells whether an aisle still waits for its token.
    pub(crate) fn awaits(&self, waiter: &Waiter) -> bool {
        let lane = self.books.lanes.get(waiter.lane as usize);
        let lane = lane.and_then(Option::as_ref);
        let aisles = lane.and_then(|lane| lane.aisles.as_ref());
        aisles.is_some_and(|aisles| aisles.awaits(waiter))
    }

    /// Empties the queue, and returns how many messages there were. Constant work but for the consumers: the old books
    /// are for somebody else to throw away.
    ///
    /// # Errors
    /// If the queue has been purged too often to be purged again.
    pub(crate) fn purge<T>(&mut self, context: &mut Context<'_, T>) -> Result<u64, Refused> {
        if !self.writes.is_purge {
            self.generation = self.generation.next().ok_or(Refused::PurgesExhausted)?;
            self.writes.is_purge = true;
        }
        let purged = self.books.depth;
        let (serial, ordering) = (self.books.serial + 1, self.definition.ordering);
        let books = Books::new(serial, ordering, context.settings, context.now);
        let old = std::mem::replace(&mut self.books, Box::new(books));
        old.leave(context.memory);
        context.effects.garbage.push(Garbage(old));
        let deduplication = std::mem::take(&mut self.deduplication);
        let batches = std::mem::take(&mut self.batches);
        let garbage = Garbage(Box::new((deduplication, batches)));
        context.effects.garbage.push(garbage);
        for consumer in self.consumers.forget_leases() {
            self.dismiss_drained(context, consumer);
        }
        self.resync = None;
        self.totals.purged += purged;
        // A purge comes before whatever else is in its batch, so what was accepted earlier must not be in it.
        self.writes.batch.clear();
        self.writes.lanes.clear();
        self.writes.settling.clear();
        self.writes.removing.clear();
        self.writes.batch.purge(self.generation);
        self.writes.serial = self.books.serial;
        Ok(purged)
    }

    /// Takes what is to be stored now, in exchange for an empty batch to go on with.
    pub(crate) fn take_writes(&mut self, spare: Batch) -> Writes {
        let serial = self.books.serial;
        let fresh = Writes {
            batch: spare,
            serial,
            ..Writes::default()
        };
        std::mem::replace(&mut self.writes, fresh)
    }

    /// Takes note that something was stored: its messages can be delivered.
    pub(crate) fn stored<T>(
        &mut self,
        context: &mut Context<'_, T>,
        writes: &Writes,
        batch: &mut Batch,
    ) {
        if writes.serial != self.books.serial {
            // Purged since.
            return;
        }
        for (message, &lane) in batch.take_puts().zip(&writes.lanes) {
            self.confirm(context, lane, message);
        }
        for &lane in &writes.removing {
            self.books.lane_mut(lane).removing -= 1;
            self.books.refresh(lane, &self.definition);
        }
        for &lane in &writes.settling {
            self.books.lane_mut(lane).settling -= 1;
            self.books.refresh(lane, &self.definition);
        }
    }

    /// Returns when something is due.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        self.books.next_wake()
    }

    /// Returns what the engine has done so far to find who is next.
    #[cfg(test)]
    pub(crate) fn work(&self) -> drr::Work {
        self.books.engine.work()
    }

    /// Gives back the memory that its messages take.
    pub(crate) fn leave(&self, memory: &mut Memory) {
        self.books.leave(memory);
    }
}
