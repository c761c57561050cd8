//! One queue: its messages by fairness key, its consumers, and its changes to store.
//!
//! # The states of a message
//! ```text
//!            Enqueue                    committed
//! producer ──────────▶ in the batch ───────────────▶ Ready ◀─────────────┐
//!                                     │  (delay)       │ dispatch        │ Nack, Release, expiry, consumer lost
//!                                     └──▶ Delayed ──▶ │                 │ (through Delayed, if there is a delay)
//!                                          due         ▼                 │
//!                                                    Leased ─────────────┘
//!                                                      │ Ack
//!                                                      ▼
//!                                            deleted in the batch
//! ```
//! A ready message is in memory, in memory without its payload, or in the store only; see [`lane`]. Its payload leaves
//! memory with its delivery: the next delivery reads it from the store.
//!
//! # What always holds
//! - A message is delivered only after it is durable, and at most one lease of it is alive.
//! - Results are taken under a live lease only. A lease ends with its first result, its expiry, a purge, or some seconds
//!   after its consumer was lost; see [`settling`]. It outlives a planned stop; see [`kept_leases`].
//! - In a strictly ordered queue the next message of a key goes out when the one before is *durably* deleted; otherwise
//!   a crash could bring it back behind its successor.
//! - `depth = ready + delayed + leased + accepted and not yet durable`.
//! - A message that moves to another queue is in the counts of exactly one of the two at any time: from the command on in
//!   those of the other queue, although the store has it here until the round is durable.

mod admission;
mod batch_row;
mod batches;
mod blocked;
mod consumers;
mod counts;
mod deduplication;
mod dispatch;
mod duplicates;
mod explaining;
mod failing;
mod fifo;
mod groups;
mod index;
mod kept_leases;
mod lane;
mod lane_table;
mod line;
mod loading;
mod message;
mod pace;
mod parts;
mod peeking;
mod redriving;
mod room;
mod row_name;
mod settling;
mod snapshot;
mod throttle_sets;

use drr::Weight;
use fila_store::{Batch, Epoch, FairnessKey, Generation, GroupWeights, QueueId, Timestamp};

use self::consumers::Consumers;
use self::counts::Stage;
#[cfg(test)]
pub(crate) use self::dispatch::TURNED_AWAY_MAX;
pub(crate) use self::duplicates::Duplicates;
pub(crate) use self::failing::DeadLetter;
use self::groups::{NodeSettings, Paths, weight_of};
use self::index::QueueIndex;
pub(crate) use self::kept_leases::KeptLeases;
use self::lane::Backlog;
pub(crate) use self::message::ready_since;
use self::parts::Newcomer;
pub(crate) use self::settling::Stores;
use crate::effects::Garbage;
use crate::lease_ids::LeaseIds;
use crate::memory::Memory;
use crate::recovery::{DeadLetterQueue, RecoveredKey};
use crate::throttle::{Offer, Throttles, Waiter};
use crate::{
    ConsumerId, Demand, Dismissal, Effects, KeySeparator, KeySettings, Ordering, QueueSettings,
    QueueStats, Recovery, Refused, Settings, Totals,
};

/// The parts of the broker that a queue works with.
pub(crate) struct Context<'a, T> {
    pub(crate) now: Timestamp,
    pub(crate) settings: &'a Settings,
    pub(crate) memory: &'a mut Memory,
    pub(crate) effects: &'a mut Effects<T>,
    pub(crate) throttles: &'a mut Throttles,
    /// Bytes of messages that were accepted and are not durable yet.
    pub(crate) buffered: &'a mut usize,
    /// Whether the disk is full, so that no message is added.
    pub(crate) is_storage_full: bool,
    /// How many more operations the next round takes.
    pub(crate) room: usize,
    /// Bytes that the next round copies from queue to queue.
    pub(crate) adopted: &'a mut usize,
    /// Messages of this queue that become dead letters.
    pub(crate) dead_letters: &'a mut Vec<DeadLetter>,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    epoch: Epoch,
    generation: Generation,
    definition: QueueSettings,
    next_message: u64,
    lease_ids: LeaseIds,
    pub(crate) consumers: Consumers,
    duplicates: Duplicates,
    index: Box<QueueIndex>,
    dead_letter_queue: Option<DeadLetterQueue>,
    /// Whether it holds the dead letters of another queue.
    has_dead_letters: bool,
    /// How many messages were redriven out of a backlog, that is without being read first.
    redrives: u64,
    totals: Totals,
    /// Changes for the next round.
    pub(crate) writes: Writes,
    /// How many rounds have taken changes of this queue, and how many of them are durable.
    sealed: u64,
    stored: u64,
    /// How many rounds have to be durable before it delivers, since it became strictly ordered.
    ordered_from: u64,
    /// How many lanes follow the definition already since it changed for all of them.
    resynced: Option<usize>,
}

/// The changes of a queue in one round, and the lanes that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    pub(crate) batch: Batch,
    /// The lanes of the messages that are put, in their order.
    lanes: Vec<u32>,
    /// Strictly ordered lanes that wait for a deletion.
    settling: Vec<u32>,
    /// Lanes with deletions of messages that are in the store only.
    removing: Vec<u32>,
    /// The index to which these lanes belong.
    serial: u64,
    /// Bytes of the messages that were accepted.
    pub(crate) bytes: usize,
    is_purge: bool,
}

impl Queue {
    pub(crate) fn open(now: Timestamp, settings: &Settings, recovery: Recovery) -> Self {
        let index = QueueIndex::new(0, &recovery.definition, settings, now);
        let mut queue = Self {
            id: recovery.queue,
            epoch: recovery.epoch,
            generation: recovery.generation,
            definition: recovery.definition,
            next_message: 0,
            lease_ids: LeaseIds::new(settings.lease_key, recovery.queue, recovery.epoch),
            consumers: Consumers::default(),
            duplicates: recovery.duplicates,
            index: Box::new(index),
            dead_letter_queue: recovery.dead_letter_queue,
            has_dead_letters: false,
            redrives: 0,
            totals: Totals {
                damaged: recovery.damaged,
                ..Totals::default()
            },
            writes: Writes::default(),
            sealed: 0,
            stored: 0,
            ordered_from: 0,
            resynced: None,
        };
        for found in &recovery.keys {
            queue.recover_key(found);
        }
        queue.duplicates.sort();
        queue.duplicates.renest(queue.definition.key_separator);
        queue.duplicates.forget_expired(now);
        queue
    }

    /// Adds the messages of a key that were found in the store. They stay there until their turn comes.
    fn recover_key(&mut self, found: &RecoveredKey) {
        let weight = weight_of(found.weight);
        let newcomer = Newcomer {
            key: &found.key,
            group_weights: GroupWeights::NONE,
            is_delayed: false,
            source: None,
        };
        let number = self.enter_lane(usize::MAX, None, newcomer, weight);
        self.index.lane_mut(number).backlog = Some(Backlog {
            after: found.after,
            last: found.last,
            bytes: found.bytes,
            since: found.since,
            is_parked: false,
        });
        self.index
            .count(number, found.messages, None, Stage::Stored);
        self.index.add_bytes(found.bytes);
    }

    /// Follows the weights of groups that messages in the store name, in the order in which the messages came.
    pub(crate) fn recover_group_weights(&mut self, named: &[(FairnessKey, GroupWeights)]) {
        for (key, weights) in named {
            if let Some(number) = self.index.lanes.find(key) {
                self.index.lanes.name_weights(number, weights);
            }
        }
    }

    fn settings_of(&self, key: &FairnessKey) -> KeySettings {
        self.definition.keys.get(key).copied().unwrap_or_default()
    }

    /// Returns the lane for a message, with the weights that it names; made if there is none.
    fn enter_lane(
        &mut self,
        keys_max: usize,
        lane: Option<u32>,
        newcomer: Newcomer<'_>,
        weight: Weight,
    ) -> u32 {
        let lanes = &mut self.index.lanes;
        let number = match lane {
            Some(number) => {
                lanes.reweigh(number, Some(weight), None);
                number
            }
            None => {
                let paths = paths(&self.definition);
                lanes.refresh(&self.index.messages);
                lanes.add(newcomer.key, weight, paths, keys_max)
            }
        };
        lanes.name_weights(number, &newcomer.group_weights);
        lanes.bring(number, newcomer.source);
        number
    }

    /// Returns the gauges and totals of the queue.
    pub(crate) fn stats(&mut self) -> QueueStats {
        QueueStats {
            consumers: self.consumers.len() as u64,
            totals: self.totals,
            ..self.index.stats()
        }
    }

    pub(crate) fn subscribe(&mut self, id: ConsumerId, demand: Demand) -> u32 {
        self.consumers.add(id, demand)
    }

    pub(crate) fn credit(&mut self, consumer: u32, more: u32) {
        self.consumers.credit(consumer, more);
    }

    /// Sends a consumer nothing more, and dismisses it once all its deliveries are settled.
    pub(crate) fn drain<T>(&mut self, context: &mut Context<'_, T>, consumer: u32) {
        self.consumers.drain(consumer);
        self.dismiss_drained(context, consumer);
    }

    /// Dismisses the calls whose answers are complete. They keep their leases.
    pub(crate) fn dismiss_served<T>(&mut self, context: &mut Context<'_, T>) {
        let served = self.consumers.served();
        let served = served.map(|id| (id, Dismissal::Served));
        context.effects.dismissed.extend(served);
    }

    fn dismiss_drained<T>(&mut self, context: &mut Context<'_, T>, consumer: u32) {
        if let Some(id) = self.consumers.drained(consumer) {
            self.consumers.remove(&mut context.memory.transit, consumer);
            context.effects.dismissed.push((id, Dismissal::Drained));
        }
    }

    /// Dismisses all consumers. The queue delivers nothing more.
    pub(crate) fn dismiss_all<T>(&mut self, effects: &mut Effects<T>, why: Dismissal) {
        let names = self.consumers.names();
        effects.dismissed.extend(names.map(|id| (id, why)));
    }

    /// Follows a changed definition.
    pub(crate) fn update(&mut self, definition: QueueSettings) {
        let before = std::mem::replace(&mut self.definition, definition);
        if self.has_dead_letters {
            self.definition.key_separator = before.key_separator;
        }
        if before.ordering != self.definition.ordering {
            self.reorder();
        }
        if before.key_concurrency != self.definition.key_concurrency {
            self.index.lanes.key_concurrency = self.definition.key_concurrency;
            self.resynced = Some(0);
        }
        for key in before.keys.keys().chain(self.definition.keys.keys()) {
            let settings = NodeSettings::from(self.settings_of(key));
            if let Some(number) = self.index.lanes.find(key) {
                self.index.lanes.reweigh(number, None, Some(settings));
            }
            self.index.lanes.follow_group_settings(key, settings);
        }
        if before.key_separator != self.definition.key_separator {
            self.renest();
        }
    }

    /// Puts all keys into the groups that a changed separator says.
    fn renest(&mut self) {
        self.index.renest(paths(&self.definition));
        self.duplicates.renest(self.definition.key_separator);
    }

    /// Follows the separator of the queue whose dead letters it holds, in place of its own.
    pub(crate) fn follow_separator(&mut self, separator: Option<KeySeparator>) {
        self.has_dead_letters = true;
        if std::mem::replace(&mut self.definition.key_separator, separator) != separator {
            self.renest();
        }
    }

    /// Returns the queue of its dead letters, and the separator that both of them have.
    pub(crate) fn separator_of_dead_letters(&self) -> Option<(QueueId, Option<KeySeparator>)> {
        let dead_letters = self.dead_letter_queue.as_ref()?;
        Some((dead_letters.to, self.definition.key_separator))
    }

    /// Lets all lanes follow a changed ordering. Takes time in proportion to the messages in memory.
    fn reorder(&mut self) {
        self.index.reorder(self.definition.ordering);
        self.ordered_from = match self.definition.ordering {
            Ordering::None => 0,
            Ordering::Key => self.sealed + u64::from(!self.writes.batch.is_empty()),
        };
    }

    /// Tells whether strict order has to wait for deletions from before it: a crash could bring back what they delete.
    fn awaits_order(&self) -> bool {
        self.stored < self.ordered_from
    }

    /// Lets some lanes follow a definition that has changed for all of them; tells whether there are more.
    pub(crate) fn resync(&mut self) -> bool {
        const STEP: usize = 1024;
        let Some(from) = self.resynced else {
            return false;
        };
        let lanes = &mut self.index.lanes;
        let to = (from + STEP).min(lanes.places());
        for number in from as u32..to as u32 {
            if lanes.try_get(number).is_some() {
                lanes.get_mut(number);
            }
        }
        self.resynced = (to < lanes.places()).then_some(to);
        self.resynced.is_some()
    }

    /// Accepts a token for a throttle set; tells whether the set still waits for one.
    pub(crate) fn accept(&mut self, throttles: &Throttles, offer: &Offer) -> bool {
        if !self.awaits(&offer.waiter) {
            return false;
        }
        let number = offer.waiter.lane;
        let lane = self.index.lane_mut(number);
        let Some(count) = lane
            .sets
            .as_mut()
            .and_then(|sets| sets.accept(throttles, offer))
        else {
            return false;
        };
        self.index
            .count(number, count, Stage::Throttled, Stage::Ready);
        true
    }

    /// Tells whether a throttle set still waits for its token.
    pub(crate) fn awaits(&self, waiter: &Waiter) -> bool {
        let lane = self.index.lanes.try_get(waiter.lane);
        let sets = lane.and_then(|lane| lane.sets.as_ref());
        sets.is_some_and(|sets| sets.awaits(waiter))
    }

    /// Empties the queue, and returns how many messages there were. Constant work but for the consumers: another thread
    /// drops the old index.
    ///
    /// # Errors
    /// If the queue has been purged too often to be purged again.
    pub(crate) fn purge<T>(&mut self, context: &mut Context<'_, T>) -> Result<u64, Refused> {
        if !self.writes.is_purge {
            self.generation = self.generation.next().ok_or(Refused::PurgesExhausted)?;
            self.writes.is_purge = true;
        }
        let purged = self.index.counts().total();
        let serial = self.index.serial + 1;
        let index = QueueIndex::new(serial, &self.definition, context.settings, context.now);
        let old = std::mem::replace(&mut self.index, Box::new(index));
        old.leave(context.memory);
        context.effects.garbage.push(Garbage(old));
        let empty = Duplicates::new(self.definition.key_separator);
        let duplicates = std::mem::replace(&mut self.duplicates, empty);
        context.effects.garbage.push(Garbage(Box::new(duplicates)));
        for consumer in self.consumers.forget_leases() {
            self.dismiss_drained(context, consumer);
        }
        self.resynced = None;
        self.totals.purged += purged;
        // A purge comes before everything else in its batch, so earlier messages must not be in it.
        self.writes.batch.clear();
        self.writes.lanes.clear();
        self.writes.settling.clear();
        self.writes.removing.clear();
        self.writes.batch.purge(self.generation);
        self.writes.serial = self.index.serial;
        Ok(purged)
    }

    /// Takes the collected changes, in exchange for an empty batch to go on with.
    pub(crate) fn take_writes(&mut self, spare: Batch) -> Writes {
        self.sealed += 1;
        let fresh = Writes {
            batch: spare,
            serial: self.index.serial,
            ..Writes::default()
        };
        std::mem::replace(&mut self.writes, fresh)
    }

    /// Follows changes that are durable now: their messages can be delivered.
    pub(crate) fn stored<T>(
        &mut self,
        context: &mut Context<'_, T>,
        writes: &Writes,
        batch: &mut Batch,
    ) {
        self.stored += 1;
        if writes.serial != self.index.serial {
            return; // purged since
        }
        for (message, &lane) in batch.take_puts().zip(&writes.lanes) {
            self.confirm(context, lane, message);
        }
        for &lane in &writes.removing {
            self.index.lane_mut(lane).deletions.backlog -= 1;
        }
        for &lane in &writes.settling {
            self.index.lane_mut(lane).deletions.strict -= 1;
        }
    }

    /// Returns when something is due.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        self.index.next_wake()
    }

    /// Returns the work of the engine so far.
    #[cfg(test)]
    pub(crate) fn work(&mut self) -> drr::Work {
        self.index.lanes.refresh(&self.index.messages);
        self.index.lanes.refreshed().engine().work()
    }

    /// Gives back the memory that its messages take.
    pub(crate) fn leave(&self, memory: &mut Memory) {
        self.index.leave(memory);
        self.consumers.leave_all(&mut memory.transit);
    }
}

/// Returns how the keys of a queue nest.
const fn paths(definition: &QueueSettings) -> Paths<'_> {
    Paths {
        separator: definition.key_separator,
        keys: &definition.keys,
    }
}
