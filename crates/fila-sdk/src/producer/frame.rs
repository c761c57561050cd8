//! Frames of messages, and the lines of messages that wait for a frame.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;

use fila_proto::v1;
use foldhash::fast::RandomState;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::QueuedMessage;
use crate::error::Refusal;
use crate::message::MessageId;
use crate::{Error, Sent};

/// The most messages of a frame, and the bytes after which it is full. Larger frames are not faster, and their first
/// messages would wait for the last.
pub(super) const MESSAGES_MAX: usize = 512;
const BYTES_MAX: usize = 1 << 20;

/// The most messages that the memory of an empty line has room for. Larger lines give it back.
const SPARE_MAX: usize = 2 * MESSAGES_MAX;

/// Messages of one queue that travel together, with the callers that wait for them.
#[derive(Debug)]
pub(super) struct Frame {
    /// The queue and the messages, which the connection reads while it sends them.
    pub(super) request: Arc<v1::ProduceRequest>,
    tickets: Vec<Ticket>,
    /// The room of its messages in the buffer.
    pub(super) units: usize,
    /// When the last caller gives up.
    pub(super) ends: Instant,
    /// The number of its first message, in the order of arrival.
    pub(super) first: u64,
    /// Whether the client has sent it on a stream that broke, so that the server may have stored it.
    pub(super) may_be_stored: bool,
}

#[derive(Debug)]
struct Ticket {
    /// `None` once the deadline has passed.
    answer: Option<oneshot::Sender<Result<Sent, Error>>>,
    ends: Instant,
}

impl Frame {
    /// Returns a frame of these messages, of which there is at least one.
    fn new(
        sequence: u64,
        queue: &str,
        waiting: impl ExactSizeIterator<Item = (u64, QueuedMessage)>,
    ) -> Self {
        let mut messages = Vec::with_capacity(waiting.len());
        let mut tickets: Vec<Ticket> = Vec::with_capacity(waiting.len());
        let (mut first, mut units) = (u64::MAX, 0);
        for (number, waiting) in waiting {
            first = first.min(number);
            units += waiting.units as usize;
            messages.push(waiting.message);
            tickets.push(Ticket {
                answer: Some(waiting.answer),
                ends: waiting.ends,
            });
        }
        let ends = tickets.iter().map(|ticket| ticket.ends).max();
        Self {
            request: Arc::new(v1::ProduceRequest {
                frame_id: sequence,
                queue: String::from(queue),
                messages,
                batch_id: None,
            }),
            ends: ends.expect("a frame has messages"),
            tickets,
            units,
            first,
            may_be_stored: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tickets.len()
    }

    /// Answers the messages whose deadline has passed. The frame keeps them: the server may store them. Returns the
    /// next deadline.
    pub(super) fn expire(&mut self, now: Instant, error: &Error) -> Option<Instant> {
        for ticket in &mut self.tickets {
            if ticket.ends <= now
                && let Some(answer) = ticket.answer.take()
            {
                // The caller may have stopped waiting.
                let _ = answer.send(Err(error.clone()));
            }
        }
        let ends = self.tickets.iter().map(|ticket| ticket.ends);
        ends.filter(|ends| *ends > now).min()
    }

    /// Answers each message with its result.
    pub(super) fn answer(self, results: Vec<v1::EnqueueResult>) {
        let mut results = results.into_iter();
        for (ticket, message) in self.tickets.into_iter().zip(&self.request.messages) {
            let answer = match results.next() {
                Some(result) => result_of(result, !message.deduplication_id.is_empty()),
                None => Err(Error::Refused(Refusal::new(
                    v1::ErrorCode::Unspecified,
                    "the server has answered fewer messages than were sent",
                ))),
            };
            ticket.tell(answer);
        }
    }

    /// Answers all messages with the same error.
    pub(super) fn fail(self, error: &Error) {
        for ticket in self.tickets {
            ticket.tell(Err(error.clone()));
        }
    }
}

impl Ticket {
    fn tell(self, result: Result<Sent, Error>) {
        if let Some(answer) = self.answer {
            // The caller may have stopped waiting.
            let _ = answer.send(result);
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
    /// The memory of a line that has become empty, for the next one.
    spare: VecDeque<(u64, QueuedMessage)>,
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
        let mut line = mem::take(&mut self.spare);
        line.push_back((number, waiting));
        self.lines.insert(queue, line);
    }

    /// Returns the next frame, with at most `messages_max` messages, which is not zero. Queues take turns.
    pub(super) fn next_frame(&mut self, sequence: u64, messages_max: usize) -> Option<Frame> {
        let queue = self.turns.pop_front()?;
        let line = self.lines.get_mut(&queue).expect("a turn is of a line");
        let mut bytes = 0;
        let sizes = line.iter().map(|(_, waiting)| waiting.size);
        let fits = sizes
            .take(messages_max.min(MESSAGES_MAX))
            .take_while(|size| {
                bytes += size;
                bytes == *size || bytes <= BYTES_MAX
            });
        let count = fits.count();
        self.len -= count;
        let frame = Frame::new(sequence, &queue, line.drain(..count));
        if !line.is_empty() {
            self.turns.push_back(queue);
        } else if let Some(line) = self.lines.remove(&queue)
            && line.capacity() <= SPARE_MAX
        {
            self.spare = line;
        }
        Some(frame)
    }

    /// Answers and drops messages whose deadline has passed. Returns their room, and the next deadline.
    pub(super) fn expire(&mut self, now: Instant, error: &Error) -> (usize, Option<Instant>) {
        let (mut units, mut next) = (0, None);
        for line in self.lines.values_mut() {
            let entries = mem::take(line);
            for (number, waiting) in entries {
                if waiting.ends > now {
                    next = earlier(next, Some(waiting.ends));
                    line.push_back((number, waiting));
                } else {
                    units += waiting.units as usize;
                    self.len -= 1;
                    // The caller may have stopped waiting.
                    let _ = waiting.answer.send(Err(error.clone()));
                }
            }
        }
        self.lines.retain(|_, line| !line.is_empty());
        let lines = &self.lines;
        self.turns.retain(|queue| lines.contains_key(queue));
        (units, next)
    }

    /// Answers all messages with the same error. Returns their room.
    pub(super) fn fail(&mut self, error: &Error) -> usize {
        self.len = 0;
        self.turns.clear();
        let mut units = 0;
        for (_, waiting) in mem::take(&mut self.lines).into_values().flatten() {
            units += waiting.units as usize;
            let _ = waiting.answer.send(Err(error.clone()));
        }
        units
    }
}

/// Returns the earlier of two moments that may not exist.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use allocation_counter::measure;
    use tokio::sync::oneshot::Receiver;

    use super::*;

    const MESSAGES: usize = 400;

    fn waiting(queue: &Arc<str>, ends: Instant) -> (QueuedMessage, Receiver<Result<Sent, Error>>) {
        let (answer, answered) = oneshot::channel();
        let message = v1::Message {
            fairness_key: "acme".to_owned(),
            payload: "x".into(),
            ..v1::Message::default()
        };
        let waiting = QueuedMessage {
            queue: queue.clone(),
            message,
            size: 300,
            ends,
            answer,
            units: 2,
        };
        (waiting, answered)
    }

    #[test]
    fn a_frame_costs_four_allocations_however_many_messages_it_has() {
        let queue: Arc<str> = "orders".into();
        let mut lines = Lines::default();
        for round in 0..3 {
            let (messages, answers): (Vec<_>, Vec<_>) = (0..MESSAGES)
                .map(|_| waiting(&queue, Instant::now()))
                .unzip();
            let results = vec![v1::EnqueueResult::default(); MESSAGES];
            let mut frame = None;
            let gathered = measure(|| {
                messages.into_iter().for_each(|message| lines.push(message));
                frame = lines.next_frame(round, MESSAGES);
            });
            let frame = frame.unwrap();
            assert_eq!((frame.len(), frame.units), (MESSAGES, 2 * MESSAGES));
            let answered = measure(|| {
                drop(frame.request.clone()); // as the connection has it
                frame.answer(results);
            });
            if round > 0 {
                // The messages, the callers, the name of the queue, and the frame itself.
                assert_eq!(
                    gathered.count_total, 4,
                    "the line has its memory from before"
                );
            }
            assert_eq!(answered.count_total, 0);
            let is_sent =
                |mut answer: Receiver<Result<Sent, Error>>| answer.try_recv().unwrap().is_ok();
            assert!(answers.into_iter().all(is_sent));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_of_one_message_leaves_the_others_of_its_frame_alone() {
        let queue: Arc<str> = "orders".into();
        let now = Instant::now();
        let [soon, later] = [1, 2].map(|secs| now + Duration::from_secs(secs));
        let mut lines = Lines::default();
        let (first, mut gives_up) = waiting(&queue, soon);
        let (second, mut waits) = waiting(&queue, later);
        lines.push(first);
        lines.push(second);
        let mut frame = lines.next_frame(0, MESSAGES).unwrap();
        assert_eq!(frame.expire(now, &Error::Closed), Some(soon));
        assert_eq!(frame.expire(soon, &Error::Closed), Some(later));
        assert_eq!(gives_up.try_recv().unwrap(), Err(Error::Closed));
        assert!(waits.try_recv().is_err(), "it has no answer yet");
        frame.answer(vec![v1::EnqueueResult::default(); 2]);
        assert!(waits.try_recv().unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_expire_in_their_line_are_answered_and_give_their_room_back() {
        let [orders, mails]: [Arc<str>; 2] = ["orders".into(), "mails".into()];
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut lines = Lines::default();
        let mut answers = Vec::new();
        for (queue, ends) in [(&mails, now), (&orders, later), (&orders, now)] {
            let (message, answer) = waiting(queue, ends);
            lines.push(message);
            answers.push(answer);
        }
        assert_eq!(lines.expire(now, &Error::Closed), (4, Some(later)));
        let is_answered = |answer: &mut Receiver<_>| answer.try_recv().is_ok();
        let answered: Vec<bool> = answers.iter_mut().map(is_answered).collect();
        assert_eq!(answered, [true, false, true]);
        let frame = lines.next_frame(0, MESSAGES).unwrap();
        assert_eq!((frame.request.queue.as_str(), frame.len()), ("orders", 1));
        assert!(lines.is_empty() && lines.next_frame(1, MESSAGES).is_none());
    }
}
