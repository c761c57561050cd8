//! Moves messages between queues: dead letters arrive and go back.
//!
//! The broker does not read payloads: the store copies them when it stores the round. So an adopted message is in the store
//! only, like a message for which memory had no room.
//!
//! The driver finds the messages that go back in the store. If one is in memory here, its state is known. Of a backlog
//! only the number of messages is known. So a command that takes messages out of a backlog shows the
//! [stamp](RedriveStamp) that the last such command was answered with: it proves that nothing was taken out since the
//! driver looked. While the deletion is not durable, the lane reads nothing, since a read might still find the message.

use fila_store::{Locator, MessageId, Meta, Origin};

use super::counts::Stage;
use super::lane::Loading;
use super::message::{State, carried};
use super::parts::Newcomer;
use super::{Context, Queue};
use crate::{EnqueueError, Ordering, RedriveError, RedriveStamp};

/// The most bytes that one round copies from queue to queue: they are in memory while it is stored.
const ADOPTED_MAX: usize = 32 << 20;

/// The bytes that a message counts for beside its headers and payload: each takes a lookup while the round waits.
const LOOKUP: usize = 4 << 10;

/// Where a message is that goes back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RedriveSource {
    /// In memory, in this slot.
    Memory(u32),
    /// In the backlog of this lane.
    Backlog(u32),
}

/// Returns how many messages without payload a round can still copy from queue to queue, after `adopted` bytes.
pub(super) const fn room_for_moves(adopted: usize) -> usize {
    ADOPTED_MAX.saturating_sub(adopted) / LOOKUP
}

impl Queue {
    /// Takes in a message of another queue.
    ///
    /// # Errors
    /// If it is refused. Nothing has changed then.
    pub(crate) fn adopt<T>(
        &mut self,
        context: &mut Context<'_, T>,
        mut meta: Meta,
        origin: Origin,
    ) -> Result<MessageId, EnqueueError> {
        if context.is_storage_full {
            // Its payload would be copied before the original is removed.
            return Err(EnqueueError::StorageFull);
        }
        let limits = &context.settings.limits;
        let weight = super::admission::weight(meta.schedule.weight.get())?;
        let newcomer = Newcomer {
            key: &meta.schedule.fairness_key,
            group_weights: meta.schedule.group_weights,
            is_delayed: false,
            source: None,
        };
        let lane = self.check_room(context.now, limits, newcomer)?;
        let bytes = LOOKUP + carried(&meta) as usize;
        if *context.adopted > 0 && *context.adopted + bytes > ADOPTED_MAX {
            return Err(EnqueueError::BufferFull { max: ADOPTED_MAX });
        }
        let id = MessageId::new(self.epoch, self.next_message).ok_or(EnqueueError::IdsExhausted)?;
        self.next_message += 1;
        *context.adopted += bytes;
        let number = self.enter_lane(limits.keys_per_queue, lane, newcomer, weight);
        self.index.count(number, 1, None, Stage::Moving);
        self.index.add_bytes(carried(&meta));
        let ttl = self.definition.message_ttl;
        meta.expires_at = ttl.map(|ttl| context.now.saturating_add(ttl));
        self.writes.batch.adopt(id, meta, origin);
        self.writes.lanes.push(number);
        Ok(id)
    }

    /// Returns the stamp of what has been taken out so far.
    pub(crate) fn redrive_stamp(&self) -> RedriveStamp {
        RedriveStamp {
            generation: self.index.serial,
            taken: self.redrives,
        }
    }

    /// Returns where a message is that was found in the store, if it can be taken out; `is_fresh` if nothing was taken
    /// out of the backlog since it was found.
    pub(crate) fn redrive_source(
        &self,
        place: &Locator,
        is_fresh: bool,
    ) -> Result<RedriveSource, RedriveError> {
        let number = self.index.lanes.find(&place.fairness_key);
        let number = number.ok_or(RedriveError::Gone)?;
        let lane = self.index.lane(number);
        if let Some(slot) = self.index.slot_of(lane, place.id) {
            return match self.index.messages[slot as usize].state {
                State::Ready { .. } | State::Delayed => Ok(RedriveSource::Memory(slot)),
                State::Leased { .. } | State::Failing { .. } => Err(RedriveError::Leased),
            };
        }
        if !lane
            .backlog
            .is_some_and(|backlog| backlog.contains(place.id))
        {
            return Err(RedriveError::Gone);
        }
        if !is_fresh {
            return Err(RedriveError::Stale);
        }
        match lane.loading {
            Loading::Idle | Loading::Failed => Ok(RedriveSource::Backlog(number)),
            Loading::UnderWay(_) => Err(RedriveError::Busy),
        }
    }

    /// Returns where a message of this queue lies, for the queue that adopts it.
    pub(crate) fn origin(&self, locator: Locator) -> Origin {
        Origin {
            queue: self.id,
            generation: self.generation,
            locator,
        }
    }

    /// Deletes a message that another queue has adopted.
    pub(crate) fn take_out<T>(
        &mut self,
        context: &mut Context<'_, T>,
        place: Locator,
        bytes: u64,
        source: RedriveSource,
    ) {
        self.totals.redriven += 1;
        let number = match source {
            RedriveSource::Memory(slot) => return self.depart(context, slot),
            RedriveSource::Backlog(number) => number,
        };
        self.redrives += 1;
        self.writes.batch.delete(place);
        self.writes.removing.push(number);
        let lane = self.index.lane_mut(number);
        lane.deletions.backlog += 1;
        if let Some(backlog) = &mut lane.backlog {
            backlog.bytes = backlog.bytes.saturating_sub(bytes);
        }
        if self.definition.ordering == Ordering::Key {
            lane.deletions.strict += 1;
            self.writes.settling.push(number);
        }
        self.index.count(number, 1, Stage::Stored, None);
        self.index.subtract_bytes(bytes);
    }
}
