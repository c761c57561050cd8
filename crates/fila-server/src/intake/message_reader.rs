//! Reads the messages of a request's body, each when there is room for it.
//!
//! A gRPC message announces its length in its first five bytes. The reader takes room for all of it before it reads
//! on, and copies it together only if it spans several frames of the body. Further messages in the same frame lie in
//! memory as well: the reader takes room for the frame when it arrives.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use tokio::time::{Instant, Sleep, sleep_until};

use super::receiving::{Crowded, Room, RoomWait, Share};

/// The bytes before each message: whether it is compressed, and its length.
pub(super) const PREFIX: usize = 5;

/// How long the next bytes of a message may take, and how many bytes a second it must have from then on.
const PATIENT: Patience = Patience {
    pause: Duration::from_secs(30),
    bytes_per_second: 64 << 10,
};
/// The same while other connections wait for room.
const CROWDED: Patience = Patience {
    pause: Duration::from_secs(5),
    bytes_per_second: 1 << 20,
};

#[derive(Clone, Copy, Debug)]
struct Patience {
    pause: Duration,
    bytes_per_second: u32,
}

/// Why a message could not be received.
#[derive(Debug)]
pub(crate) enum ReceiveError {
    /// There was no room for it.
    Crowded,
    /// It stopped in the middle.
    Stalled,
    /// It is larger than the server takes.
    TooLarge { found: usize, max: usize },
    /// The body ended in the middle of it.
    Cut,
    /// The connection or the stream ended.
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl From<Crowded> for ReceiveError {
    fn from(_: Crowded) -> Self {
        Self::Crowded
    }
}

/// A message with its prefix, and the room that it takes.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) bytes: Bytes,
    pub(super) room: Room,
}

/// The messages of one body.
#[derive(Debug)]
pub(crate) struct MessageReader<B> {
    body: B,
    share: Arc<Share>,
    /// Bytes that have arrived and belong to no message yet, and their room.
    chunk: Bytes,
    chunk_room: Room,
    arriving: Option<Arriving>,
    waiting: Option<RoomWait>,
    stall: Option<Pin<Box<Sleep>>>,
}

/// A message of which a part has arrived.
#[derive(Debug)]
struct Arriving {
    bytes: BytesMut,
    /// Its size with the prefix, once the prefix is there.
    size: Option<usize>,
    /// The room for all of it, once there is some. Only then are its bytes taken.
    room: Option<Room>,
    begun: Instant,
    heard: Instant,
}

impl<B> MessageReader<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(super) fn new(body: B, share: Arc<Share>) -> Self {
        Self {
            body,
            share,
            chunk: Bytes::new(),
            chunk_room: Room::default(),
            arriving: None,
            waiting: None,
            stall: None,
        }
    }

    /// Returns the next message.
    pub(super) fn poll_message(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Received, ReceiveError>>> {
        loop {
            // The room of a message that is under way is there: it need not wait for that of the bytes behind it.
            if let Some(received) = self.fill() {
                return Poll::Ready(Some(Ok(received)));
            }
            if let Some(waiting) = &mut self.waiting {
                let room = ready!(waiting.poll(context));
                self.waiting = None;
                match room {
                    Ok(room) => self.granted(room),
                    Err(crowded) => return Poll::Ready(Some(Err(crowded.into()))),
                }
                continue;
            }
            if let Some(received) = self.whole() {
                return Poll::Ready(Some(Ok(received)));
            }
            let begun = if self.chunk.is_empty() {
                match ready!(self.poll_chunk(context)) {
                    Some(Ok(chunk)) => self.arrived(chunk),
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => return Poll::Ready(None),
                }
            } else {
                self.begin()
            };
            if let Err(error) = begun {
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    /// Reads the next bytes of the body. Ends with an error if a message is under way and no bytes come.
    fn poll_chunk(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, ReceiveError>>> {
        loop {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending => break,
                Poll::Ready(None) if self.arriving.is_some() => {
                    return Poll::Ready(Some(Err(ReceiveError::Cut)));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(ReceiveError::Broken(error.into()))));
                }
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers of a request say nothing.
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
            }
        }
        ready!(self.poll_stalled(context));
        self.share.refuse();
        Poll::Ready(Some(Err(ReceiveError::Stalled)))
    }

    /// Completes when the message under way has stalled.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(arriving) = &self.arriving else {
            return Poll::Pending;
        };
        let size = arriving.size.unwrap_or(PREFIX);
        let (early, late) = (arriving.due(CROWDED), arriving.due(PATIENT));
        let new = || Box::pin(sleep_until(early));
        let stall = self.stall.get_or_insert_with(new);
        loop {
            // A timer that rings too early costs less than one that is set again for each frame.
            if stall.deadline() > late {
                stall.as_mut().reset(late);
            }
            ready!(stall.as_mut().poll(context));
            let now = Instant::now();
            if now >= late || now >= early && self.share.do_others_wait(size) {
                return Poll::Ready(());
            }
            stall
                .as_mut()
                .reset(early.max(now + CROWDED.pause).min(late));
        }
    }

    /// Takes over bytes that have arrived, and takes room for those beyond the message under way.
    fn arrived(&mut self, chunk: Bytes) -> Result<(), ReceiveError> {
        let covered = match &mut self.arriving {
            Some(arriving) => {
                arriving.heard = Instant::now();
                arriving.covered()
            }
            None => 0,
        };
        let beyond = chunk.len().saturating_sub(covered);
        self.chunk = chunk;
        if beyond > 0 {
            match self.share.try_take(beyond) {
                Some(room) => self.chunk_room = room,
                None => self.waiting = Some(self.share.wait(beyond)?),
            }
        }
        Ok(())
    }

    fn granted(&mut self, room: Room) {
        match &mut self.arriving {
            Some(arriving) if arriving.size.is_some() && arriving.room.is_none() => {
                arriving.room = Some(room);
                arriving.begun = Instant::now();
                arriving.heard = arriving.begun;
            }
            _ => self.chunk_room = room,
        }
    }

    /// Returns the next message if all of it is in the bytes that have arrived, as it is with small ones.
    fn whole(&mut self) -> Option<Received> {
        let prefix: &[u8; PREFIX] = self.chunk.first_chunk()?;
        let size = PREFIX.checked_add(length(prefix))?;
        if self.arriving.is_some() || size > self.chunk.len() {
            return None;
        }
        let bytes = self.chunk.split_to(size);
        let room = if self.chunk.is_empty() {
            std::mem::take(&mut self.chunk_room)
        } else {
            self.chunk_room.split(size)
        };
        Some(Received { bytes, room })
    }

    /// Begins a message with the bytes that have arrived, or goes on with its prefix.
    fn begin(&mut self) -> Result<(), ReceiveError> {
        let arriving = self.arriving.get_or_insert_with(Arriving::new);
        let missing = PREFIX.saturating_sub(arriving.bytes.len());
        let mut prefix = [0; PREFIX];
        let have = PREFIX - missing;
        prefix[..have].copy_from_slice(&arriving.bytes[..have]);
        if self.chunk.len() < missing {
            arriving.bytes.extend_from_slice(&self.chunk);
            self.chunk = Bytes::new();
            self.chunk_room = Room::default();
            return Ok(());
        }
        prefix[have..].copy_from_slice(&self.chunk[..missing]);
        let length = length(&prefix);
        let max = self.share.message_max();
        if length > max {
            return Err(ReceiveError::TooLarge { found: length, max });
        }
        let size = PREFIX + length;
        arriving.size = Some(size);
        let rest = size - arriving.bytes.len();
        if rest <= self.chunk.len() {
            arriving.room = Some(self.chunk_room.split(rest));
            return Ok(());
        }
        // All bytes that are here belong to it, and count with it from now on.
        self.chunk_room = Room::default();
        match self.share.try_take(size) {
            Some(room) => arriving.room = Some(room),
            None => self.waiting = Some(self.share.wait(size)?),
        }
        Ok(())
    }

    /// Adds the bytes that have arrived to the message under way, and returns it if it is complete.
    fn fill(&mut self) -> Option<Received> {
        let arriving = self.arriving.as_mut()?;
        let size = arriving.size?;
        arriving.room.as_ref()?;
        let missing = size - arriving.bytes.len();
        if missing > self.chunk.len() {
            arriving.bytes.reserve(missing);
            arriving.bytes.extend_from_slice(&self.chunk);
            self.chunk = Bytes::new();
            return None;
        }
        let rest = self.chunk.split_to(missing);
        let Arriving {
            mut bytes, room, ..
        } = self.arriving.take()?;
        let bytes = if bytes.is_empty() {
            rest
        } else {
            bytes.extend_from_slice(&rest);
            bytes.freeze()
        };
        if self.chunk.is_empty() {
            self.chunk_room = Room::default();
        }
        let room = room.unwrap_or_default();
        Some(Received { bytes, room })
    }
}

/// Returns the length that a prefix announces.
fn length(prefix: &[u8; PREFIX]) -> usize {
    let [_, length @ ..] = prefix;
    u32::from_be_bytes(*length) as usize
}

impl Arriving {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            bytes: BytesMut::new(),
            size: None,
            room: None,
            begun: now,
            heard: now,
        }
    }

    /// Returns how many more bytes its room covers.
    fn covered(&self) -> usize {
        match (self.size, &self.room) {
            (Some(size), Some(_)) => size - self.bytes.len(),
            _ => 0,
        }
    }

    /// Returns when it has stalled, if no more bytes come.
    fn due(&self, patience: Patience) -> Instant {
        let size = self.size.unwrap_or(PREFIX);
        let slow = Duration::from_secs(1) * (size as u32) / patience.bytes_per_second;
        (self.heard + patience.pause).min(self.begun + patience.pause + slow)
    }
}

#[cfg(test)]
mod tests;
