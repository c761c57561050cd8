//! Producing: one stream for the whole client, with automatic batches.
//!
//! A sender puts a message into a channel and waits for its answer. The task [`driver`] takes everything that is in the
//! channel and sends it in one frame; messages that come while frames are unanswered gather for the next one. So a
//! single sender never waits for others, and a thousand senders at once share frames.
//!
//! Invariants:
//! - A message holds its room in the buffer from before it enters the channel until its frame is answered or given up.
//! - The task answers every message by its deadline, with one timer for all of them. So a caller that waits needs none.
//! - A frame keeps its name and its messages until it is answered. If the client sends it again, even on another
//!   connection, the server recognizes the batch and stores it once.
//! - Frames hold the messages of one queue in the order in which they entered the channel.

mod driver;
mod frame;
mod timer;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use fila_proto::v1;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;

use self::driver::ProducerDriver;
use crate::client::Options;
use crate::{Error, Message, Sent};

/// The unit of room in the buffer, in bytes.
const UNIT: usize = 256;

/// The entrance to the channel.
#[derive(Debug)]
pub(crate) struct Producer {
    line: mpsc::UnboundedSender<Put>,
    room: Arc<Semaphore>,
    units: u32,
    no_answer: NoAnswer,
}

/// An entry of the channel.
#[expect(clippy::large_enum_variant, reason = "nearly all are messages")]
#[derive(Debug)]
pub(crate) enum Put {
    Message(QueuedMessage),
    /// Answered when all messages before it are.
    Flush(oneshot::Sender<()>),
}

/// A message without an answer.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) queue: Arc<str>,
    pub(crate) message: v1::Message,
    pub(crate) size: usize,
    /// When its caller gives up.
    pub(crate) ends: Instant,
    pub(crate) answer: oneshot::Sender<Result<Sent, Error>>,
    /// Its room in the buffer. The task gives it back.
    pub(crate) units: u32,
}

/// The error of messages whose deadline has passed.
#[derive(Clone, Debug)]
pub(crate) struct NoAnswer {
    deadline: Duration,
    trouble: Trouble,
}

/// The last error that keeps the server from answering, if there is one: for callers that give up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble(Arc<Mutex<Option<String>>>);

/// The future answer for a message in the channel.
#[derive(Debug)]
pub(crate) struct Handed(oneshot::Receiver<Result<Sent, Error>>);

impl Producer {
    /// Starts the task that sends. The task ends when the producer is dropped and all messages are answered or given
    /// up.
    pub(crate) fn start(channel: Channel, options: &Options) -> Self {
        let units = options.buffer_bytes / UNIT;
        let units = units.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let (line, puts) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(units));
        let no_answer = NoAnswer {
            deadline: options.deadline,
            trouble: Trouble::default(),
        };
        let driver = ProducerDriver::new(channel, options, (puts, room.clone()), no_answer.clone());
        tokio::spawn(driver.run());
        Self {
            line,
            room,
            units: units as u32,
            no_answer,
        }
    }

    /// Waits for room until the deadline. A message that is larger than the whole buffer gets all of it.
    pub(crate) async fn room_for(
        &self,
        message: &Message,
        ends: Instant,
    ) -> Result<SemaphorePermit<'_>, Error> {
        let units = message.size().div_ceil(UNIT).try_into();
        let units: u32 = units.unwrap_or(u32::MAX).min(self.units);
        if let Ok(room) = self.room.try_acquire_many(units) {
            return Ok(room);
        }
        match timeout_at(ends, self.room.acquire_many(units)).await {
            Ok(room) => room.map_err(|_| Error::Closed),
            Err(_) => Err(self.no_answer.error()),
        }
    }

    /// Puts a message into the channel.
    pub(crate) fn put(
        &self,
        queue: &Arc<str>,
        message: Message,
        ends: Instant,
        room: SemaphorePermit<'_>,
    ) -> Result<Handed, Error> {
        let (answer, handed) = oneshot::channel();
        let waiting = QueuedMessage {
            queue: queue.clone(),
            size: message.size(),
            message: message.wire,
            ends,
            answer,
            units: room.num_permits() as u32,
        };
        let put = self.line.send(Put::Message(waiting));
        put.map_err(|_| Error::Closed)?;
        room.forget(); // the task gives it back
        Ok(Handed(handed))
    }

    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.line.send(Put::Flush(done)).is_ok() {
            // An error means that the task has ended, so no message is left to wait for.
            let _ = flushed.await;
        }
    }
}

impl NoAnswer {
    fn error(&self) -> Error {
        Error::NoAnswer {
            after: self.deadline,
            cause: self.trouble.get(),
        }
    }
}

impl Trouble {
    fn get(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, cause: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = cause;
    }
}

impl Future for Handed {
    type Output = Result<Sent, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|answer| answer.unwrap_or(Err(Error::Closed)))
    }
}
