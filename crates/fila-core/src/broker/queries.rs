//! Queries. They answer at once and change nothing that others can see.

use fila_store::{FairnessKey, QueueId, StoredMessage, Timestamp};

use super::Broker;
use crate::{
    Explanation, GroupStats, KeyCursor, KeyStats, MessageStatus, QueueStats, Refused, Snapshot,
    Tickets,
};

impl<T: Tickets> Broker<T> {
    /// Returns the statistics of a queue.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn stats(&mut self, queue: QueueId) -> Result<QueueStats, Refused> {
        let number = self.find(queue)?;
        Ok(self.queues[number].queue.stats())
    }

    /// Returns the fairness keys that have messages among the next `limit` places, and the cursor for the next page.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn keys(
        &mut self,
        now: Timestamp,
        queue: QueueId,
        after: KeyCursor,
        limit: usize,
    ) -> Result<(Vec<KeyStats>, Option<KeyCursor>), Refused> {
        self.advance(now);
        let number = self.find(queue)?;
        Ok(self.queues[number].queue.keys(self.now, after, limit))
    }

    /// Returns the groups of fairness keys that have messages among the next `limit` places, and the cursor for the next
    /// page. A group comes before or after those around it.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn groups(
        &mut self,
        now: Timestamp,
        queue: QueueId,
        after: KeyCursor,
        limit: usize,
    ) -> Result<(Vec<GroupStats>, Option<KeyCursor>), Refused> {
        self.advance(now);
        let number = self.find(queue)?;
        Ok(self.queues[number].queue.groups(self.now, after, limit))
    }

    /// Returns why a fairness key waits. A key without messages has an explanation, too.
    ///
    /// # Errors
    /// If there is no such queue, or the store takes no more writes: that is why nothing is delivered.
    pub fn explain(
        &mut self,
        now: Timestamp,
        queue: QueueId,
        key: &FairnessKey,
    ) -> Result<Explanation, Refused> {
        self.advance(now);
        let number = self.find_writable(queue)?;
        let queue = &mut self.queues[number].queue;
        Ok(queue.explain(self.now, &mut self.throttles, key))
    }

    /// Returns a copy of what decides about a queue's coming deliveries, to try other settings on.
    ///
    /// It takes up to 350 ns for each fairness key that the queue has in memory.
    ///
    /// # Errors
    /// If there is no such queue, or it has more than [`SNAPSHOT_KEYS_MAX`](crate::SNAPSHOT_KEYS_MAX) keys.
    pub fn snapshot(&mut self, now: Timestamp, queue: QueueId) -> Result<Snapshot, Refused> {
        self.advance(now);
        let number = self.find(queue)?;
        self.queues[number].queue.snapshot(self.now)
    }

    /// Returns the status of each of these messages, which [`Shard::scan`](fila_store::Shard::scan) has found in the
    /// store; none if the message is gone or not durable yet.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn peek<'a>(
        &mut self,
        now: Timestamp,
        queue: QueueId,
        messages: impl IntoIterator<Item = &'a StoredMessage>,
    ) -> Result<Vec<Option<MessageStatus>>, Refused> {
        self.advance(now);
        let queue = &self.queues[self.find(queue)?].queue;
        let status = |entry| queue.peek(self.now, entry);
        Ok(messages.into_iter().map(status).collect())
    }
}
