//! How messages come in: checked, put into the batch, and put into their lanes once they are durable.

use std::time::Duration;

use drr::Weight;
use fila_store::{FairnessKey, MessageId, Meta, StoredMessage, Timestamp};

use super::batch_row::{BatchRow, Part};
use super::batches::Sent;
use super::counts::Stage;
use super::message::{Message, State, carried, ready_since};
use super::parts::Newcomer;
use super::row_name::RowName;
use super::{Context, Queue};
use crate::limits::Limits;
use crate::memory::Memory;
use crate::{BatchId, DeduplicationScope, EnqueueError, Enqueued, NewMessage, Refused, Ttl};

impl Queue {
    /// Takes messages, and returns the result of each. Messages of the batch that are stored already are duplicates.
    ///
    /// # Errors
    /// If another batch was sent under this id, or it was answered. Nothing has changed then.
    pub(crate) fn admit_all<T>(
        &mut self,
        context: &mut Context<'_, T>,
        batch_id: Option<&BatchId>,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Enqueued, EnqueueError>>, Refused> {
        if let Some(id) = batch_id {
            return self.admit_batch(context, id, messages);
        }
        let admitted = messages.into_iter().map(|it| self.admit(context, it));
        Ok(admitted.collect())
    }

    fn admit_batch<T>(
        &mut self,
        context: &mut Context<'_, T>,
        id: &BatchId,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Enqueued, EnqueueError>>, Refused> {
        self.duplicates.forget_expired(context.now);
        let sent = self.duplicates.find_batch(id, messages.len());
        let sent = sent.inspect_err(|_| self.totals.refused += messages.len() as u64)?;
        let window = self.definition.deduplication_window;
        let time = id.remember_max.map_or(window, |max| max.min(window));
        // A batch that is stored in part may take more entries than there is room for: at most one for each message.
        let first = messages.first().filter(|_| !time.is_zero());
        // The batch counts for the key of its first message.
        let key = first.map(|it| it.schedule.fairness_key.clone());
        let room = key.as_ref().map_or(Ok(()), |key| {
            self.check_remembered(&context.settings.limits, key)
        });
        let mut results = Vec::with_capacity(messages.len());
        for (place, message) in (0..).zip(messages) {
            let known = match sent {
                Sent::Never => None,
                Sent::Whole(first) => Some(MessageId::from_number(first.get() + u64::from(place))),
                Sent::InPart => self.duplicates.batch_message(id, place),
            };
            results.push(match (known, &room) {
                (Some(known), _) => {
                    self.totals.deduplicated += 1;
                    Ok(Enqueued::Duplicate(known))
                }
                (None, Err(error)) => {
                    self.count_refusal(error);
                    Err(error.clone())
                }
                (None, Ok(())) => self.admit(context, message),
            });
        }
        if let Some(key) = key {
            let until = context.now.saturating_add(time);
            self.remember_batch(&key, id, &results, until);
        }
        Ok(results)
    }

    /// Remembers which messages of a batch were stored. One entry is enough for all of them, since their ids follow one
    /// another then.
    fn remember_batch(
        &mut self,
        key: &FairnessKey,
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
            self.duplicates.remember_batch(key, &row, message, until);
            let name = RowName::encode(DeduplicationScope::Queue, key, &row.encode());
            self.writes.batch.remember(name, message, until);
        }
    }

    /// Takes a message, and counts duplicates and refusals. A message that is refused changes nothing.
    fn admit<T>(
        &mut self,
        context: &mut Context<'_, T>,
        message: NewMessage,
    ) -> Result<Enqueued, EnqueueError> {
        let admitted = self.try_admit(context, message);
        match &admitted {
            Ok(Enqueued::Stored(_)) => {}
            Ok(Enqueued::Duplicate(_)) => self.totals.deduplicated += 1,
            Err(error) => self.count_refusal(error),
        }
        admitted
    }

    fn count_refusal(&mut self, error: &EnqueueError) {
        self.totals.refused += 1;
        self.totals.over_part += u64::from(matches!(error, EnqueueError::OverPart { .. }));
    }

    fn try_admit<T>(
        &mut self,
        context: &mut Context<'_, T>,
        message: NewMessage,
    ) -> Result<Enqueued, EnqueueError> {
        let limits = &context.settings.limits;
        let weight = check(limits, &message)?;
        if let Some(known) = self.find_duplicate(context.now, &message) {
            return Ok(Enqueued::Duplicate(known));
        }
        // A message that is stored already is not refused, so this comes after the look for it.
        if let Some(error) = &message.refusal {
            let error = error.clone();
            return Err(EnqueueError::HookFailed { error });
        }
        if let Some(separator) = self.definition.key_separator {
            let key = message.schedule.fairness_key.as_bytes();
            separator.check(key).map_err(EnqueueError::InvalidPath)?;
        }
        let delay = message.delay;
        if let Some(ttl) = self.ttl_of(&message)
            && ttl <= delay
            && !delay.is_zero()
        {
            return Err(EnqueueError::ExpiresTooEarly { ttl, delay });
        }
        if context.is_storage_full {
            return Err(EnqueueError::StorageFull);
        }
        if message.deduplication_id.is_some() {
            self.duplicates.forget_expired(context.now);
            self.check_remembered(limits, &message.schedule.fairness_key)?;
        }
        let newcomer = Newcomer {
            key: &message.schedule.fairness_key,
            group_weights: message.schedule.group_weights,
            is_delayed: !message.delay.is_zero(),
            source: message.source,
        };
        let lane = self.check_room(context.now, limits, newcomer)?;
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
        let number = self.enter_lane(limits.keys_per_queue, lane, newcomer, weight);
        self.index.count(number, 1, None, Stage::Uncommitted);
        self.put(context.now, number, id, message);
        Ok(Enqueued::Stored(id))
    }

    fn find_duplicate(&mut self, now: Timestamp, message: &NewMessage) -> Option<MessageId> {
        self.duplicates.forget_expired_ids(now);
        let id = message.deduplication_id.as_ref()?;
        let key = &message.schedule.fairness_key;
        let scope = self.definition.deduplication_scope;
        self.duplicates.find_id(scope, key, id, now)
    }

    /// Returns how long a message lives.
    fn ttl_of(&self, message: &NewMessage) -> Option<Duration> {
        match message.ttl {
            Ttl::Queue => self.definition.message_ttl,
            Ttl::Forever => None,
            Ttl::For(time) => Some(time),
        }
    }

    /// Puts a message that is accepted into the batch.
    #[inline]
    fn put(&mut self, now: Timestamp, number: u32, id: MessageId, message: NewMessage) {
        let ttl = self.ttl_of(&message);
        let is_delayed = !message.delay.is_zero();
        if is_delayed {
            self.index.delayed_uncommitted += 1;
            self.index.lanes.count_delayed_uncommitted(number, 1, 0);
        }
        let mut meta = Meta::new(message.schedule, now);
        meta.deliver_after = is_delayed.then(|| now.saturating_add(message.delay));
        meta.expires_at = ttl.map(|ttl| now.saturating_add(ttl));
        if let Some(once) = message.deduplication_id {
            let until = now.saturating_add(self.definition.deduplication_window);
            let (scope, key) = (
                self.definition.deduplication_scope,
                &meta.schedule.fairness_key,
            );
            let name = RowName::encode(scope, key, &once);
            self.writes.batch.remember(name, id, until);
            self.duplicates
                .remember_id(scope, key, once.clone(), id, until);
            meta.deduplication_id = Some(once);
        }
        self.writes.batch.put(id, meta, message.payload);
        self.writes.lanes.push(number);
    }

    /// Puts a message that is durable now into its lane.
    pub(super) fn confirm<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        message: StoredMessage,
    ) {
        self.totals.enqueued += 1;
        let (index, meta) = (&mut self.index, &message.meta);
        // A message that has moved comes without its payload, and its bytes are counted already.
        let from = match &message.payload {
            Some(_) => Stage::Uncommitted,
            None => Stage::Moving,
        };
        if from == Stage::Uncommitted {
            index.add_bytes(carried(meta));
        }
        let is_delayed = meta.deliver_after.is_some();
        if is_delayed {
            index.delayed_uncommitted -= 1;
            index.lanes.count_delayed_uncommitted(number, 0, 1);
        }
        let lane = index.lane_mut(number);
        if from == Stage::Uncommitted {
            lane.totals.arrivals.count(context.now);
        }
        let is_early = meta.deliver_after.is_some_and(|due| due > context.now);
        let is_first = lane.counts.durable() == 0;
        let has_room = is_early
            || context
                .memory
                .has_room_for_fresh(Memory::whole(meta.sizes), is_first);
        if message.payload.is_some() && lane.backlog.is_none() && has_room {
            self.take_in(context, number, message, from);
        } else {
            lane.push_stored(message.id, meta);
            index.count(number, 1, from, Stage::Stored);
        }
    }

    /// Takes a message into memory behind all others of its lane that are there.
    #[inline]
    pub(super) fn take_in<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        message: StoredMessage,
        from: impl Into<Option<Stage>>,
    ) {
        let mut message = self.ready_message(context, number, message);
        if message.is_early(context.now) {
            message.state = State::Delayed;
            // It may be due much later, and the store has it.
            message.payload = None;
        }
        let moment = message.next_moment(context.now);
        let slot = self.index.insert(context.memory, message, from);
        self.index.arm(slot, moment);
    }

    /// Returns a message for memory, as one that is ready.
    #[inline]
    pub(super) fn ready_message<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        message: StoredMessage,
    ) -> Message {
        let StoredMessage { id, meta, payload } = message;
        // A dead letter keeps its throttle keys for when it goes back, and takes no tokens until then. It is in a queue
        // that has no dead letters of its own.
        let history = meta.history.as_ref();
        let has_died = history.is_some_and(|history| history.death.is_some());
        let set = if has_died && self.dead_letter_queue.is_none() {
            None
        } else {
            let keys = &meta.schedule.throttle_keys;
            self.index.enter_set(context.throttles, number, keys)
        };
        let since = ready_since(&meta);
        let was_delivered = meta.attempts > 0;
        Message {
            id,
            lane: number,
            set,
            meta,
            payload,
            state: State::Ready { since },
            was_delivered,
            lost: 0,
            timer: None,
        }
    }
}

/// Refuses a message that no queue takes, and returns its weight.
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
    for (_, found) in message.schedule.group_weights.iter() {
        weight(found.get())?;
    }
    weight(message.schedule.weight.get())
}

/// Returns this weight, if the engine knows it.
pub(super) fn weight(found: u32) -> Result<Weight, EnqueueError> {
    let max = Weight::MAX.value();
    Weight::new(u64::from(found))
        .filter(|_| found <= max)
        .ok_or(EnqueueError::InvalidWeight { found, max })
}
