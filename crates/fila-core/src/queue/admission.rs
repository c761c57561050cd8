//! How messages come in: checked, put into the batch, and let to their lanes once they are durable.

use std::time::Duration;

use drr::Weight;
use fila_store::{FairnessKey, MessageId, Meta, StoredMessage, Timestamp};

use super::batch_row::{BatchRow, Part};
use super::batches::Sent;
use super::line::Join;
use super::message::{Message, State, carried, ready_since};
use super::{Context, Queue};
use crate::limits::Limits;
use crate::memory::Memory;
use crate::{BatchId, EnqueueError, Enqueued, NewMessage, Ordering, Refused, Ttl};

impl Queue {
    /// Takes messages, and says what became of each. What is known of their batch is not taken again.
    ///
    /// # Errors
    /// If the batch cannot be the one that it says it is. Nothing has changed then.
    pub(crate) fn admit_all<T>(
        &mut self,
        context: &mut Context<'_, T>,
        batch_id: Option<&BatchId>,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Enqueued, EnqueueError>>, Refused> {
        match batch_id {
            Some(id) => self.admit_batch(context, id, messages),
            None => {
                let messages = messages.into_iter();
                Ok(messages.map(|it| self.admit(context, it)).collect())
            }
        }
    }

    fn admit_batch<T>(
        &mut self,
        context: &mut Context<'_, T>,
        id: &BatchId,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Enqueued, EnqueueError>>, Refused> {
        self.deduplication.forget_expired(context.now);
        self.batches.forget_expired(context.now);
        let sent = self.batches.find(id, messages.len()).inspect_err(|_| {
            self.totals.refused += messages.len() as u64;
        })?;
        self.batches.forget_answered(id.producer, id.answered_below);
        let window = self.definition.deduplication_window;
        let time = id.remember_max.map_or(window, |max| max.min(window));
        // A batch that is stored in part may take more entries than there is room for: at most one for each message.
        let max = context.settings.limits.deduplication_ids_per_queue;
        let is_full = !time.is_zero() && self.remembered() >= max;
        let mut results = Vec::with_capacity(messages.len());
        for (place, message) in (0..).zip(messages) {
            let known = match sent {
                Sent::Never => None,
                Sent::Whole(first) => Some(MessageId::from_number(first.get() + u64::from(place))),
                Sent::InPart => self.batches.message(id, place),
            };
            results.push(match known {
                Some(known) => {
                    self.totals.deduplicated += 1;
                    Ok(Enqueued::Duplicate(known))
                }
                None if is_full => {
                    self.totals.refused += 1;
                    Err(EnqueueError::TooManyDeduplicationIds { max })
                }
                None => self.admit(context, message),
            });
        }
        if !time.is_zero() {
            let until = context.now.saturating_add(time);
            self.remember_batch(id, &results, until);
        }
        Ok(results)
    }

    /// Remembers what was stored of a batch: by one entry if that is all of it, since its ids follow one another then.
    fn remember_batch(
        &mut self,
        id: &BatchId,
        results: &[Result<Enqueued, EnqueueError>],
        until: Timestamp,
    ) {
        let size = u32::try_from(results.len()).unwrap_or(u32::MAX);
        let stored = (0..)
            .zip(results)
            .filter_map(|(place, result)| match result {
                Ok(Enqueued::Stored(message)) => Some((Part::Message(place), *message)),
                Ok(Enqueued::Duplicate(_)) | Err(_) => None,
            });
        let is_whole = stored.clone().count() == results.len();
        let entries = if is_whole { 1 } else { results.len() };
        for (part, message) in stored.take(entries) {
            let part = if is_whole { Part::Whole } else { part };
            let row = BatchRow::new(id, size, part);
            self.batches.remember(&row, message, until);
            self.writes.batch.remember(row.encode(), message, until);
        }
    }

    /// Returns how much the queue remembers of what it was sent.
    fn remembered(&self) -> usize {
        self.deduplication.len() + self.batches.len()
    }

    /// Takes a message, or says why not. What was refused has changed nothing.
    fn admit<T>(
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
        if let Some(id) = &message.deduplication_id
            && let Some(known) = self.deduplication.find(id, context.now)
        {
            return Ok(Enqueued::Duplicate(known));
        }
        // What is stored already is not refused, so this comes after the look for it.
        if let Some(error) = &message.refusal {
            let error = error.clone();
            return Err(EnqueueError::HookFailed { error });
        }
        if message.deduplication_id.is_some() {
            self.batches.forget_expired(context.now);
            let max = limits.deduplication_ids_per_queue;
            if self.remembered() >= max {
                return Err(EnqueueError::TooManyDeduplicationIds { max });
            }
        }
        self.check_room(
            limits,
            &message.schedule.fairness_key,
            !message.delay.is_zero(),
        )?;
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
        let number = self.lane_for(limits, &message.schedule.fairness_key, weight);
        self.books.accept(number);
        self.books.delayed_uncommitted += u64::from(!message.delay.is_zero());
        let mut meta = Meta::new(message.schedule, context.now);
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
    pub(super) fn check_room(
        &self,
        limits: &Limits,
        key: &FairnessKey,
        is_delayed: bool,
    ) -> Result<(), EnqueueError> {
        let own = self.definition.depth_max.unwrap_or(u64::MAX);
        let max = limits.depth_per_queue.min(own);
        if self.books.depth >= max {
            return Err(EnqueueError::QueueFull { max });
        }
        let max = limits.delayed_per_queue;
        let delayed = self.books.stats.delayed + self.books.delayed_uncommitted;
        if is_delayed && delayed >= max {
            return Err(EnqueueError::TooManyDelayed { max });
        }
        let Some(&number) = self.books.keys.get(key) else {
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
    pub(super) fn lane_for(&mut self, limits: &Limits, key: &FairnessKey, weight: Weight) -> u32 {
        if let Some(&number) = self.books.keys.get(key) {
            self.books.reweigh(number, Some(weight), None);
            return number;
        }
        if self.books.keys.len() >= limits.keys_per_queue {
            self.books.forget_one();
        }
        let settings = self.settings_of(key);
        self.books.find_or_add(key, weight, settings)
    }

    /// Lets a message that is durable now to its lane.
    pub(super) fn confirm<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        message: StoredMessage,
    ) {
        self.totals.enqueued += 1;
        let books = &mut self.books;
        let meta = &message.meta;
        let bytes = carried(meta);
        books.stats.bytes += bytes;
        books.delayed_uncommitted -= u64::from(meta.deliver_after.is_some());
        let lane = books.lane_mut(number);
        lane.uncommitted -= 1;
        let is_early = meta.deliver_after.is_some_and(|due| due > context.now);
        let is_first = lane.depth() == 0;
        let has_room = is_early
            || context
                .memory
                .has_room_for_fresh(Memory::whole(meta.sizes), is_first);
        if message.payload.is_some() && lane.stored.is_none() && has_room {
            self.take_in(context, number, message);
        } else {
            lane.push_stored(message.id, meta);
            books.stats.ready += 1;
            books.stats.stored_only += 1;
        }
        self.books.refresh(number, &self.definition);
    }

    /// Takes a message into memory behind all others of its lane that are there.
    pub(super) fn take_in<T>(
        &mut self,
        context: &mut Context<'_, T>,
        lane: u32,
        message: StoredMessage,
    ) {
        let StoredMessage { id, meta, payload } = message;
        // A dead letter keeps its throttle keys for when it goes back, and takes no tokens until then.
        let is_dead = meta
            .history
            .as_ref()
            .is_some_and(|history| history.death.is_some());
        let aisle = match is_dead {
            true => None,
            false => self
                .books
                .enter_aisle(context.gates, lane, &meta.schedule.throttle_keys),
        };
        let since = ready_since(&meta);
        let was_delivered = meta.attempts > 0;
        let mut message = Message {
            id,
            lane,
            aisle,
            meta,
            payload,
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
            books.line_up(slot, Join::Behind);
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
    let key = message.schedule.fairness_key.as_bytes().len();
    if let Some((found, max)) = over(key, limits.fairness_key_bytes) {
        return Err(EnqueueError::FairnessKeyTooLong { found, max });
    }
    if let Some((found, max)) = over(message.schedule.throttle_keys.len(), limits.throttle_keys) {
        return Err(EnqueueError::TooManyThrottleKeys { found, max });
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
    weight(message.schedule.weight.get())
}

/// Returns this weight, if the engine knows it.
pub(super) fn weight(found: u32) -> Result<Weight, EnqueueError> {
    let weight = (found <= Weight::MAX.value())
        .then(|| Weight::new(u64::from(found)))
        .flatten();
    weight.ok_or(EnqueueError::InvalidWeight {
        found,
        max: Weight::MAX.value(),
    })
}
