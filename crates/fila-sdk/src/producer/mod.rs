//! How messages get to the server: one stream for the whole client, batched by itself.
//!
//! Whoever sends puts a message into a line and waits for its answer. A task of its own ([`driver`]) takes everything
//! that is in the line and sends it in one frame; what comes while frames are under way gathers for the next. So one
//! sender alone waits for nobody, and a thousand at once share frames.
//!
//! What always holds:
//! - A message has one place in the buffer from before it is in the line until it is answered or given up.
//! - A frame keeps its name and its messages until it is answered. Sent again, on whatever connection, it is the same
//!   batch to the server, which stores it once.
//! - Messages of one queue are in frames in the order in which they came into the line.

mod driver;
mod frame;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use fila_proto::v1;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tonic::transport::Channel;

use self::driver::ProducerDriver;
use crate::client::Options;
use crate::{Error, Message, Sent};

/// Room in the buffer is counted in units of this many bytes.
const UNIT: usize = 256;

/// The way into the line.
#[derive(Debug)]
pub(crate) struct Producer {
    line: mpsc::UnboundedSender<Put>,
    room: Arc<Semaphore>,
    units: u32,
    trouble: Trouble,
}

/// What goes into the line.
#[expect(clippy::large_enum_variant, reason = "nearly all are messages")]
#[derive(Debug)]
pub(crate) enum Put {
    Message(QueuedMessage),
    /// To be answered when all before it are.
    Flush(oneshot::Sender<()>),
}

/// A message that is not answered yet.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) queue: Arc<str>,
    pub(crate) message: v1::Message,
    pub(crate) size: usize,
    /// Nobody waits after this.
    pub(crate) ends: Instant,
    pub(crate) answer: oneshot::Sender<Result<Sent, Error>>,
    /// Held for its drop.
    pub(crate) room: OwnedSemaphorePermit,
}

/// What keeps the server from answering, if anything does: for those who give up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble(Arc<Mutex<Option<String>>>);

/// The answer to come for a message that is in the line.
#[derive(Debug)]
pub(crate) struct Handed(oneshot::Receiver<Result<Sent, Error>>);

impl Producer {
    /// Starts the task that sends. It ends when the producer is dropped and all is answered or given up.
    pub(crate) fn start(service: FilaServiceClient<Channel>, options: &Options) -> Self {
        let units = options.buffer_bytes / UNIT;
        let units = units.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let (line, puts) = mpsc::unbounded_channel();
        let trouble = Trouble::default();
        let driver = ProducerDriver::new(service, options, puts, trouble.clone());
        tokio::spawn(driver.run());
        Self {
            line,
            room: Arc::new(Semaphore::new(units)),
            units: units as u32,
            trouble,
        }
    }

    /// Waits for room. A message that is larger than the whole buffer gets all of it.
    pub(crate) async fn room_for(&self, message: &Message) -> Result<OwnedSemaphorePermit, Error> {
        let units = message.size().div_ceil(UNIT).try_into();
        let units: u32 = units.unwrap_or(u32::MAX).min(self.units);
        let room = self.room.clone().acquire_many_owned(units);
        room.await.map_err(|_| Error::Closed)
    }

    /// Puts a message into the line.
    pub(crate) fn put(
        &self,
        queue: &Arc<str>,
        message: Message,
        ends: Instant,
        room: OwnedSemaphorePermit,
    ) -> Result<Handed, Error> {
        let (answer, handed) = oneshot::channel();
        let waiting = QueuedMessage {
            queue: queue.clone(),
            size: message.size(),
            message: message.wire,
            ends,
            answer,
            room,
        };
        let put = self.line.send(Put::Message(waiting));
        put.map_err(|_| Error::Closed)?;
        Ok(Handed(handed))
    }

    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.line.send(Put::Flush(done)).is_ok() {
            // The task has ended if it does not say: there is nothing left to wait for.
            let _ = flushed.await;
        }
    }

    /// Returns what keeps the server from answering, if anything does.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.get()
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
