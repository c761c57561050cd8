//! How messages come in: checked, put into the batch, and let to their lanes once they are durable.

use std::time::Duration;

use drr::Weight;
use fila_store::{MessageId, Meta, Payload, Timestamp};

use super::message::{Message, State, carried, ready_since};
use super::{Context, Queue};
use crate::limits::Limits;
use crate::memory::Memory;
use crate::{EnqueueError, Enqueued, NewMessage, Ordering, Ttl};

impl Queue {
    /// Takes a message, or says why not. What was refused has changed nothing.
    pub(crate) fn admit<T>(
        &mut self,
        context: &mut Context<'_, T>,
        message: NewMessage,
    ) -> Result<Enqueued, EnqueueError> {
        let admitted = self.try_admit(context, message);
        match &admitted {
            Ok(Enqueued::Stored(_)) => {}
            Ok(Enqueued::Duplicate(_)) => self.totals.deduplicated += 1,
            Err(_) => self.totals.refused += 1,
        }
        admitted
    }

    fn try_admit<T>(
        &mut self,
        context: &mut Context<'_, T>,
        message: NewMessage,
    ) -> Result<Enqueued, EnqueueError> {
        let limits = &context.settings.limits;
        let weight = check(limits, &message)?;
        let ttl = match message.ttl {
            Ttl::Queue => self.definition.message_ttl,
            Ttl::Forever => None,
            Ttl::For(time) => Some(time),
        };
        self.deduplication.forget_expired(context.now);
        if let Some(id) = &message.deduplication_id {
            if let Some(known) = self.deduplication.find(id, context.now) {
                return Ok(Enqueued::Duplicate(known));
            }
            let max = limits.deduplication_ids_per_queue;
            if self.deduplication.len() >= max {
                return Err(EnqueueError::TooManyDeduplicationIds { max });
            }
        }
        self.check_room(limits, &message)?;
        let bytes = message.buffered_bytes();
        let max = limits.buffered_bytes;
        // A message alone always fits: its own limits have been checked.
        if *context.buffered > 0 && *context.buffered + bytes > max {
            return Err(EnqueueError::BufferFull { max });
        }
        let id = MessageId::new(self.epoch, self.next_message).ok_or(EnqueueError::IdsExhausted)?;

        self.next_message += 1;
        *context.buffered += bytes;
        self.writes.bytes += bytes;
        let number = self.lane_for(limits, &message, weight);
        self.books.accept(number);
        let mut meta = Meta::new(message.fairness_key, context.now);
        meta.weight = message.weight;
        meta.deliver_after =
            (!message.delay.is_zero()).then(|| context.now.saturating_add(message.delay));
        meta.expires_at = ttl.map(|ttl| context.now.saturating_add(ttl));
        if let Some(name) = message.deduplication_id {
            let window = self.definition.deduplication_window;
            let until = context.now.saturating_add(window);
            self.deduplication.remember(name.clone(), id, until);
            self.writes.batch.remember(name.clone(), id, until);
            meta.deduplication_id = Some(name);
        }
        self.writes.batch.put(id, meta, message.payload);
        self.writes.lanes.push(number);
        Ok(Enqueued::Stored(id))
    }

    /// Refuses what the queue or the key has no room for.
    fn check_room(&self, limits: &Limits, message: &NewMessage) -> Result<(), EnqueueError> {
        let own = self.definition.depth_max.unwrap_or(u64::MAX);
        let max = limits.depth_per_queue.min(own);
        if self.books.depth >= max {
            return Err(EnqueueError::QueueFull { max });
        }
        let max = limits.delayed_per_queue;
        if !message.delay.is_zero() && self.books.stats.delayed >= max {
            return Err(EnqueueError::TooManyDelayed { max });
        }
        let Some(&number) = self.books.keys.get(&message.fairness_key) else {
            let max = limits.keys_per_queue;
            return if self.books.busy >= max {
                Err(EnqueueError::TooManyKeys { max })
            } else {
                Ok(())
            };
        };
        let lane = self.books.lane(number);
        let own = self.definition.key_depth_max.unwrap_or(u64::MAX);
        let max = limits.depth_per_key.min(own);
        if lane.depth() + u64::from(lane.uncommitted) >= max {
            return Err(EnqueueError::KeyFull { max });
        }
        Ok(())
    }

    /// Returns the lane of a message, which has the message's weight from now on.
    fn lane_for(&mut self, limits: &Limits, message: &NewMessage, weight: Weight) -> u32 {
        if let Some(&number) = self.books.keys.get(&message.fairness_key) {
            self.books.reweigh(number, Some(weight), None);
            return number;
        }
        if self.books.keys.len() >= limits.keys_per_queue {
            self.books.forget_one();
        }
        let settings = self.settings_of(&message.fairness_key);
        self.books
            .find_or_add(&message.fairness_key, weight, settings)
    }

    /// Lets a message that is durable now to its lane.
    pub(super) fn confirm<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        id: MessageId,
        meta: Meta,
        payload: Payload,
    ) {
        self.totals.enqueued += 1;
        let books = &mut self.books;
        let bytes = carried(&meta);
        books.stats.bytes += bytes;
        let lane = books.lane_mut(number);
        lane.uncommitted -= 1;
        let is_early = meta.deliver_after.is_some_and(|due| due > context.now);
        let is_first = lane.depth() == 0;
        let has_room = is_early
            || context
                .memory
                .has_room_for_fresh(Memory::whole(meta.sizes), is_first);
        if lane.stored.is_some() || !has_room {
            lane.push_stored(id, &meta);
            books.stats.ready += 1;
            books.stats.stored_only += 1;
        } else {
            self.take_in(context, number, id, meta, payload);
        }
        self.books.refresh(number, &self.definition);
    }

    /// Takes a message into memory behind all others of its lane that are there.
    pub(super) fn take_in<T>(
        &mut self,
        context: &mut Context<'_, T>,
        lane: u32,
        id: MessageId,
        meta: Meta,
        payload: Payload,
    ) {
        let since = ready_since(&meta);
        let was_delivered = meta.attempts > 0;
        let mut message = Message {
            id,
            lane,
            meta,
            payload: Some(payload),
            state: State::Ready { since },
            was_delivered,
            timer: None,
        };
        let is_early = message.is_early(context.now);
        if is_early {
            message.state = State::Delayed;
            // Its time may be far, and the store has it.
            message.payload = None;
        }
        let moment = if is_early {
            earliest(message.meta.deliver_after, message.meta.expires_at)
        } else {
            message.meta.expires_at
        };
        let books = &mut self.books;
        let slot = books.insert(context.memory, message);
        books.arm(slot, moment);
        // What waits for its time waits outside of the line, unless the line is strict.
        if !is_early || self.definition.ordering == Ordering::Key {
            let handle = books.messages[slot as usize].handle(slot);
            let ready = &mut books.lane_mut(lane).ready;
            debug_assert!(ready.back().is_none_or(|last| last.id < id));
            ready.push_back(handle);
        } else {
            books.away.insert(id, slot);
        }
    }
}

pub(super) fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    [one, other].into_iter().flatten().min()
}

/// Refuses what no queue takes, and returns the weight.
fn check(limits: &Limits, message: &NewMessage) -> Result<Weight, EnqueueError> {
    let sizes = message.payload.sizes();
    let over = |found: usize, max: usize| (found > max).then_some((found, max));
    if let Some((found, max)) = over(sizes.body as usize, limits.payload_bytes) {
        return Err(EnqueueError::PayloadTooLarge { found, max });
    }
    if let Some((found, max)) = over(message.payload.headers().len(), limits.headers) {
        return Err(EnqueueError::TooManyHeaders { found, max });
    }
    if let Some((found, max)) = over(sizes.headers as usize, limits.header_bytes) {
        return Err(EnqueueError::HeadersTooLarge { found, max });
    }
    let key = message.fairness_key.as_bytes().len();
    if let Some((found, max)) = over(key, limits.fairness_key_bytes) {
        return Err(EnqueueError::FairnessKeyTooLong { found, max });
    }
    let ttl = match message.ttl {
        Ttl::Queue | Ttl::Forever => Duration::ZERO,
        Ttl::For(time) => time,
    };
    let longest = message.delay.max(ttl);
    if longest > limits.delay {
        return Err(EnqueueError::DelayTooLong {
            found: longest,
            max: limits.delay,
        });
    }
    let found = message.weight.get();
    let weight = (found <= Weight::MAX.value())
        .then(|| Weight::new(u64::from(found)))
        .flatten();
    weight.ok_or(EnqueueError::InvalidWeight {
        found,
        max: Weight::MAX.value(),
    })
}
