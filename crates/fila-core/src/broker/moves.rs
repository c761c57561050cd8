//! Moves messages between queues: into the dead-letter queue, and back.
//!
//! Both queues belong to this broker, and one round stores the changes of both. So a message is always in exactly one of
//! the two queues, and the store has the whole move or nothing of it.

use fila_store::{MessageId, Meta, QueueId};

use super::Broker;
use crate::{
    Answer, EnqueueError, MovedMessage, RedriveError, RedriveResults, RedriveStamp, Refused,
    Tickets,
};

impl<T: Tickets> Broker<T> {
    /// Moves the messages that a queue has given up to its dead-letter queue, or lets the queue keep them.
    pub(super) fn move_to_dlq(&mut self, number: usize) {
        if self.dead_letters.is_empty() {
            return;
        }
        let now = self.now;
        let mut dead_letters = std::mem::take(&mut self.dead_letters);
        for dead in dead_letters.drain(..) {
            let slot = dead.slot;
            let queue = &self.queues[number].queue;
            let target = queue.dead_letter(now, &dead).and_then(|(to, letter)| {
                let target = *self.numbers.get(&to)?;
                Some((target, letter.meta, queue.origin(letter.from)))
            });
            let Some((target, meta, origin)) = target else {
                // The dead-letter queue is closed, and this queue will be closed next.
                self.collect(number, |queue, context| queue.keep(context, slot));
                continue;
            };
            let adopted = self.collect(target, |queue, context| queue.adopt(context, meta, origin));
            match adopted {
                Ok(_) => {
                    self.touch(target);
                    self.collect(number, |queue, context| queue.delete_moved(context, slot));
                }
                Err(EnqueueError::BufferFull { .. }) => {
                    self.collect(number, |queue, _| queue.keep_for_a_moment(now, slot));
                }
                Err(_) => self.collect(number, |queue, context| queue.keep(context, slot)),
            }
        }
        self.touch(number);
        self.dead_letters = dead_letters;
    }

    /// Moves dead letters into another queue, as far as that queue accepts them.
    pub(super) fn redrive(
        &mut self,
        (from, to): (QueueId, QueueId),
        stamp: RedriveStamp,
        messages: Vec<MovedMessage>,
        ticket: T::Ticket<RedriveResults>,
    ) {
        let moved = self.redrive_all((from, to), stamp, messages);
        // The answer waits even if nothing was moved: the store must show all moves before the driver reads it again.
        self.answer_after(from, moved.is_ok(), Answer::Redriven(ticket, moved));
    }

    fn redrive_all(
        &mut self,
        (from, to): (QueueId, QueueId),
        stamp: RedriveStamp,
        messages: Vec<MovedMessage>,
    ) -> Result<RedriveResults, Refused> {
        let number = self.find_writable(from)?;
        let target = self.find_writable(to)?;
        if target == number {
            return Err(Refused::QueueGone);
        }
        let is_fresh = self.queues[number].queue.redrive_stamp() == stamp;
        let mut results = Vec::with_capacity(messages.len());
        let mut last = None;
        for message in messages {
            let place = &message.from;
            // A message that is named twice must not be taken out twice.
            let is_next = last.replace(place.clone()).is_none_or(|last| last < *place);
            results.push(self.redrive_one((number, target), message, is_fresh && is_next));
        }
        self.touch(number);
        self.touch(target);
        let stamp = self.queues[number].queue.redrive_stamp();
        Ok(RedriveResults { results, stamp })
    }

    fn redrive_one(
        &mut self,
        (number, target): (usize, usize),
        message: MovedMessage,
        is_fresh: bool,
    ) -> Result<MessageId, RedriveError> {
        let queue = &self.queues[number].queue;
        let MovedMessage { from, meta: before } = message;
        let source = queue.redrive_source(&from, is_fresh)?;
        let origin = queue.origin(from.clone());
        let mut meta = Meta::new(before.schedule, self.now);
        meta.deduplication_id = before.deduplication_id;
        meta.sizes = before.sizes;
        // With it, the message keeps its lasting id.
        meta.history = before.history;
        let adopted = self.collect(target, |queue, context| queue.adopt(context, meta, origin));
        let id = adopted.map_err(RedriveError::Refused)?;
        self.collect(number, |queue, context| {
            queue.take_out(context, from, before.sizes.total(), source);
        });
        Ok(id)
    }
}
