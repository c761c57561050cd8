//! How messages move between queues: dead letters that come, and dead letters that go back.
//!
//! What a message carries stays in the store: it is copied there when the round is stored. So a message that has come is
//! in the store only, like one for which there was no room in memory.
//!
//! A message that is to go back was found in the store by somebody else. If it is in memory here, that tells how it is.
//! Of those in the store only nothing is known but how many there are. So whoever wants to take one out shows the
//! [stamp](RedriveStamp) that the last such command was answered with: then nothing has been taken out since he looked.
//! And while the deletion is not durable nothing is read of that key, since it might still be found.

use fila_store::{Locator, MessageId, Meta, Origin};

use super::lane::Loading;
use super::message::{State, carried};
use super::{Context, Queue};
use crate::{EnqueueError, Ordering, RedriveError, RedriveStamp};

/// Bytes that one round may copy from queue to queue: they are in memory while it is stored.
const ADOPTED_MAX: usize = 32 << 20;

/// What a message counts for beside what it carries: it is looked up one by one while others wait for the round.
const LOOKUP: usize = 4 << 10;

/// Where a message is that is to be taken out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whereabouts {
    InMemory(u32),
    /// In the store only, in the backlog of this lane.
    InStore(u32),
}

/// Returns how many messages a round has room for that are moved from queue to queue, if they carry nothing, and so much
/// has been moved already.
pub(super) const fn room_for_moves(adopted: usize) -> usize {
    ADOPTED_MAX.saturating_sub(adopted) / LOOKUP
}

impl Queue {
    /// Takes a message in that is in another queue, or says why not. What was refused has changed nothing.
    pub(crate) fn adopt<T>(
        &mut self,
        context: &mut Context<'_, T>,
        mut meta: Meta,
        origin: Origin,
    ) -> Result<MessageId, EnqueueError> {
        let limits = &context.settings.limits;
        let weight = super::admission::weight(meta.schedule.weight.get())?;
        self.check_room(limits, &meta.schedule.fairness_key, false)?;
        let bytes = LOOKUP + carried(&meta) as usize;
        if *context.adopted > 0 && *context.adopted + bytes > ADOPTED_MAX {
            return Err(EnqueueError::BufferFull { max: ADOPTED_MAX });
        }
        let id = MessageId::new(self.epoch, self.next_message).ok_or(EnqueueError::IdsExhausted)?;
        self.next_message += 1;
        *context.adopted += bytes;
        let number = self.lane_for(limits, &meta.schedule.fairness_key, weight);
        self.books.accept(number);
        let ttl = self.definition.message_ttl;
        meta.expires_at = ttl.map(|ttl| context.now.saturating_add(ttl));
        self.writes.batch.adopt(id, meta, origin);
        self.writes.lanes.push(number);
        Ok(id)
    }

    /// Returns the stamp of what has been taken out so far.
    pub(crate) fn redrive_stamp(&self) -> RedriveStamp {
        RedriveStamp {
            generation: self.books.serial,
            taken: self.redrives,
        }
    }

    /// Returns where a message is that was found in the store, if it can be taken out; `is_fresh` if nothing has been
    /// taken out since it was found.
    pub(crate) fn whereabouts(
        &self,
        place: &Locator,
        is_fresh: bool,
    ) -> Result<Whereabouts, RedriveError> {
        let number = self.books.keys.get(&place.fairness_key);
        let number = *number.ok_or(RedriveError::Gone)?;
        let lane = self.books.lane(number);
        if let Some(slot) = self.books.slot_of(lane, place.id) {
            return match self.books.messages[slot as usize].state {
                State::Ready { .. } | State::Delayed => Ok(Whereabouts::InMemory(slot)),
                State::Leased { .. } | State::Failing { .. } => Err(RedriveError::Leased),
            };
        }
        let stored = lane.stored.ok_or(RedriveError::Gone)?;
        // What comes before is gone; what comes behind is not confirmed.
        if place.id <= stored.after || place.id > stored.last {
            return Err(RedriveError::Gone);
        }
        if !is_fresh {
            return Err(RedriveError::Stale);
        }
        match lane.loading {
            Loading::Nothing | Loading::Failed => Ok(Whereabouts::InStore(number)),
            Loading::Backlog(_) | Loading::Payloads(_) => Err(RedriveError::Busy),
        }
    }

    /// Returns where a message of this queue lies, for the queue that is to adopt it.
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
        whereabouts: Whereabouts,
    ) {
        self.totals.redriven += 1;
        let number = match whereabouts {
            Whereabouts::InMemory(slot) => return self.depart(context, slot),
            Whereabouts::InStore(number) => number,
        };
        self.redrives += 1;
        self.writes.batch.delete(place);
        self.writes.removing.push(number);
        self.books.depth -= 1;
        self.books.stats.ready -= 1;
        self.books.stats.stored_only -= 1;
        self.books.stats.bytes -= bytes;
        let lane = self.books.lane_mut(number);
        lane.removing += 1;
        if let Some(stored) = &mut lane.stored {
            stored.count -= 1;
            stored.bytes = stored.bytes.saturating_sub(bytes);
            if stored.count == 0 {
                lane.stored = None;
            }
        }
        if self.definition.ordering == Ordering::Key {
            lane.settling += 1;
            self.writes.settling.push(number);
        }
        self.books.refresh(number, &self.definition);
    }
}
