//! Frames of messages, and the lines of messages that wait for a frame.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;

use fila_proto::v1;
use foldhash::fast::RandomState;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::QueuedMessage;
use crate::error::Refusal;
use crate::message::MessageId;
use crate::{Error, Sent};

/// The most messages of a frame, and the bytes after which it is full. Larger frames are not faster, and their first
/// messages would wait for the last.
pub(super) const MESSAGES_MAX: usize = 512;
const BYTES_MAX: usize = 1 << 20;

/// Messages of one queue that travel together, with the callers that wait for them.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) queue: Arc<str>,
    pub(super) messages: Vec<v1::Message>,
    tickets: Vec<Ticket>,
    /// When the last caller gives up.
    pub(super) ends: Instant,
    /// The number of its first message, in the order of arrival.
    pub(super) first: u64,
    /// Whether the client has sent it on a stream that broke, so that the server may have stored it.
    pub(super) may_be_stored: bool,
}

#[derive(Debug)]
struct Ticket {
    answer: oneshot::Sender<Result<Sent, Error>>,
    /// Its drop frees the place in the buffer when the message is answered.
    _room: OwnedSemaphorePermit,
}

impl Frame {
    fn new(queue: Arc<str>, ends: Instant) -> Self {
        Self {
            queue,
            messages: Vec::new(),
            tickets: Vec::new(),
            ends,
            first: u64::MAX,
            may_be_stored: false,
        }
    }

    fn push(&mut self, number: u64, waiting: QueuedMessage) {
        self.first = self.first.min(number);
        self.messages.push(waiting.message);
        self.ends = self.ends.max(waiting.ends);
        self.tickets.push(Ticket {
            answer: waiting.answer,
            _room: waiting.room,
        });
    }

    /// Answers each message with its result.
    pub(super) fn answer(self, results: Vec<v1::EnqueueResult>) {
        let mut results = results.into_iter();
        for (ticket, message) in self.tickets.into_iter().zip(self.messages) {
            let answer = match results.next() {
                Some(result) => result_of(result, !message.deduplication_id.is_empty()),
                None => Err(Error::Refused(Refusal::new(
                    v1::ErrorCode::Unspecified,
                    "the server has answered fewer messages than were sent",
                ))),
            };
            // The caller may have stopped waiting.
            let _ = ticket.answer.send(answer);
        }
    }

    /// Answers all messages with the same error.
    pub(super) fn fail(self, error: &Error) {
        for ticket in self.tickets {
            let _ = ticket.answer.send(Err(error.clone()));
        }
    }
}

fn result_of(result: v1::EnqueueResult, is_named: bool) -> Result<Sent, Error> {
    match result.error {
        Some(error) => Err(Refusal::from_wire(error).into()),
        None => Ok(Sent {
            id: MessageId::new(result.message_id),
            // Without a deduplication id of its own, the message can only repeat one that this client sent before the
            // connection broke.
            deduplicated: result.deduplicated && is_named,
        }),
    }
}

/// Messages that wait for a frame: a line for each queue, and the queues in the order of their turns.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: HashMap<Arc<str>, VecDeque<(u64, QueuedMessage)>, RandomState>,
    turns: VecDeque<Arc<str>>,
    len: usize,
    /// How many messages have ever come: the number of the next one.
    ever: u64,
}

impl Lines {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many messages have ever come.
    pub(super) fn ever(&self) -> u64 {
        self.ever
    }

    /// Returns the number of the oldest waiting message.
    pub(super) fn first(&self) -> Option<u64> {
        let fronts = self.lines.values().filter_map(VecDeque::front);
        fronts.map(|(number, _)| *number).min()
    }

    pub(super) fn push(&mut self, waiting: QueuedMessage) {
        self.len += 1;
        let number = self.ever;
        self.ever += 1;
        if let Some(line) = self.lines.get_mut(&waiting.queue) {
            line.push_back((number, waiting));
            return;
        }
        let queue = waiting.queue.clone();
        self.turns.push_back(queue.clone());
        self.lines
            .insert(queue, VecDeque::from([(number, waiting)]));
    }

    /// Returns the next frame, with at most `messages_max` messages. Queues take turns. Leaves out messages whose
    /// callers have given up.
    pub(super) fn next_frame(&mut self, messages_max: usize, now: Instant) -> Option<Frame> {
        while let Some(queue) = self.turns.pop_front() {
            let Some(line) = self.lines.get_mut(&queue) else {
                continue;
            };
            let mut frame = Frame::new(queue.clone(), now);
            let mut bytes = 0;
            while frame.messages.len() < messages_max.min(MESSAGES_MAX)
                && let Some((_, first)) = line.front()
                && (bytes == 0 || bytes + first.size <= BYTES_MAX)
            {
                let Some((number, waiting)) = line.pop_front() else {
                    break;
                };
                self.len -= 1;
                if waiting.ends > now {
                    bytes += waiting.size;
                    frame.push(number, waiting);
                }
            }
            if line.is_empty() {
                self.lines.remove(&queue);
            } else {
                self.turns.push_back(queue);
            }
            if !frame.messages.is_empty() {
                return Some(frame);
            }
        }
        None
    }

    /// Drops messages whose callers have given up.
    pub(super) fn forget_expired(&mut self, now: Instant) {
        for line in self.lines.values_mut() {
            let before = line.len();
            line.retain(|(_, waiting)| waiting.ends > now);
            self.len -= before - line.len();
        }
        if self.len == 0 {
            self.lines.clear();
            self.turns.clear();
        }
    }

    /// Answers all messages with the same error.
    pub(super) fn fail(&mut self, error: &Error) {
        self.len = 0;
        self.turns.clear();
        for (_, waiting) in mem::take(&mut self.lines).into_values().flatten() {
            let _ = waiting.answer.send(Err(error.clone()));
        }
    }
}
