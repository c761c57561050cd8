//! Rounds: the unit of storing, with the answers that wait for it.
//!
//! The broker collects the changes of commands in one batch for each queue. [`Broker::seal`] takes all of them for one
//! commit: a *round*. A few rounds may be under way; the driver stores them in the order in which they were sealed, while
//! the broker collects the next one. An answer waits for the round that stores its changes. A queue delivers a message
//! once its round is durable.

use fila_store::{Batch, QueueId, Timestamp};

use super::Broker;
use crate::queue::Writes;
use crate::{Answer, Committed, Dismissal, Refused, Round, Tickets};

/// The most operations of a round. Its last command may exceed this; a batch of the store holds four times as many.
pub(super) const OPERATIONS_MAX: usize = Batch::OPERATIONS_MAX / 4;

/// The most rounds under way: enough that the driver never waits for the next one.
pub const ROUNDS_MAX: usize = 8;

/// The next round.
#[derive(Debug)]
pub(super) struct Collecting<T: Tickets> {
    /// Queues with changes to store, and the number of their operations.
    pub(super) writing: Vec<usize>,
    pub(super) operations: usize,
    /// Bytes to copy from queue to queue.
    pub(super) adopted: usize,
    pub(super) answers: Vec<PendingAnswer<T>>,
}

/// A round that the driver stores.
#[derive(Debug)]
pub(super) struct UnderWay<T: Tickets> {
    /// In the order of the round's batches.
    pub(super) writes: Vec<(usize, QueueId, Writes)>,
    pub(super) answers: Vec<PendingAnswer<T>>,
    pub(super) bytes: usize,
}

/// An answer that waits for its round.
#[derive(Debug)]
pub(super) struct PendingAnswer<T: Tickets> {
    pub(super) queue: QueueId,
    pub(super) answer: Answer<T>,
}

impl<T: Tickets> Broker<T> {
    /// Takes the result of the oldest round under way.
    pub fn committed(&mut self, now: Timestamp, committed: Committed) {
        self.advance(now);
        let Some(under_way) = self.under_way.pop_front() else {
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
                for PendingAnswer { queue, answer } in under_way.answers {
                    let is_gone = fenced.contains(&queue) || !self.numbers.contains_key(&queue);
                    self.effects.answers.push(if is_gone {
                        answer.refuse(Refused::QueueGone)
                    } else {
                        answer
                    });
                }
            }
            Committed::Unknown => self.fail(under_way.answers, Refused::OutcomeUnknown),
            Committed::Failed => self.fail(under_way.answers, Refused::StoreFailed),
        }
    }

    /// Returns the next round, if there are changes and fewer than [`ROUNDS_MAX`] rounds are under way.
    ///
    /// Without changes, the collected answers wait for the last round under way.
    pub fn seal(&mut self) -> Option<Round> {
        if self.under_way.len() >= ROUNDS_MAX || self.failure.is_some() {
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
            if let Some(last) = self.under_way.back_mut() {
                last.answers.extend(collected.answers);
                return None;
            }
            let answers = collected.answers.into_iter().map(|pending| pending.answer);
            self.effects.answers.extend(answers);
            return None;
        }
        self.under_way.push_back(UnderWay {
            writes,
            answers: collected.answers,
            bytes,
        });
        Some(Round { batches })
    }

    /// Returns whether the driver should give no more commands before a round is stored.
    pub fn is_full(&self) -> bool {
        let is_buffer_full = self.buffered >= self.settings.limits.buffered_bytes;
        self.collecting.operations >= OPERATIONS_MAX || self.is_storing() && is_buffer_full
    }

    /// Returns whether a round is under way.
    pub fn is_storing(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Returns whether changes wait to be stored or are under way. After a failed write there never are any.
    pub fn is_writing(&self) -> bool {
        self.failure.is_none()
            && (self.is_storing()
                || !self.collecting.writing.is_empty()
                || !self.collecting.answers.is_empty())
    }

    /// Stops storing for good, refuses every command that waits for a round, and dismisses all consumers: they would
    /// take the silence for an empty queue.
    fn fail(&mut self, answers: Vec<PendingAnswer<T>>, refused: Refused) {
        if self.failure.replace(Refused::StoreFailed).is_none() {
            for (_, entry) in &mut self.queues {
                let effects = &mut self.effects;
                entry.queue.dismiss_all(effects, Dismissal::StoreFailed);
            }
            self.consumers.clear();
        }
        let collected = std::mem::take(&mut self.collecting).answers;
        let answers = answers.into_iter().map(|pending| (pending, refused));
        let collected = collected.into_iter().map(|it| (it, Refused::StoreFailed));
        let all = answers.chain(collected);
        self.effects
            .answers
            .extend(all.map(|(pending, refused)| pending.answer.refuse(refused)));
    }
}

impl<T: Tickets> Default for Collecting<T> {
    fn default() -> Self {
        Self {
            writing: Vec::new(),
            operations: 0,
            adopted: 0,
            answers: Vec::new(),
        }
    }
}
