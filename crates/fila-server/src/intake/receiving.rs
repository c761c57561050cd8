//! The budget of requests that are being received, and what each connection has of it.
//!
//! Messages of up to 64 KiB have a quarter of the budget to themselves, so that large messages that stall hold up no
//! small one. In each of the two a connection may hold at most three times what is left after it has taken. Beside the
//! budget each connection has 16 KiB of its own, which no other connection can take.
//!
//! Bytes that the client has sent and the server has not asked for yet are bounded by the windows of HTTP/2. Each
//! connection gets an eighth of the windows that are left, but at least 64 KiB. So the windows of all connections
//! together are half the budget, and 64 KiB for each connection. While a call waits for room, one frame of it lies
//! beside the windows. A connection has so few places for such calls that these frames together are less than its window.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use super::fair_room::{FairRoom, Part, Turn};

/// The largest message that counts as small.
const SMALL: u64 = 64 << 10;

/// How much each connection has beside the budget.
const OWN: u64 = 16 << 10;

/// How long a call waits for room.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The bounds of the window of a connection, and of a stream on it.
const CONNECTION_WINDOW: (u64, u64) = (64 << 10, 4 << 20);
const STREAM_WINDOW: (u64, u64) = (16 << 10, 64 << 10);

/// The windows of the streams of a connection that can be full before the window of the connection is.
const STREAMS_PER_WINDOW: u64 = 64;

/// The bytes of requests that are being received, of all connections.
#[derive(Debug)]
pub(crate) struct Receiving {
    small: Arc<FairRoom<u64>>,
    large: Arc<FairRoom<u64>>,
    windows_left: AtomicU64,
    next_connection: AtomicU64,
    refused: AtomicU64,
    /// The size of the largest message.
    message_max: usize,
}

/// How many bytes a client may send ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    pub(crate) connection: u32,
    pub(crate) stream: u32,
}

impl Windows {
    /// The windows of a connection from which no body is expected.
    pub(crate) const SMALLEST: Self = Self {
        connection: 64 << 10,
        stream: 64 << 10,
    };
}

/// What one connection has of the budget.
#[derive(Debug)]
pub(crate) struct Share {
    receiving: Arc<Receiving>,
    connection: u64,
    /// How much of its own is taken.
    own: AtomicU64,
    small: Arc<Part<u64>>,
    large: Arc<Part<u64>>,
    windows: Windows,
    /// How many more of its calls may wait for room.
    places: AtomicUsize,
}

/// Why a call gets no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowded;

impl Receiving {
    pub(crate) fn new(budget: u64, message_max: usize) -> Self {
        let small = budget / 4;
        Self {
            small: Arc::new(FairRoom::new(small)),
            large: Arc::new(FairRoom::new(budget - small)),
            windows_left: AtomicU64::new(budget / 2),
            next_connection: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            message_max,
        }
    }

    /// Returns how many bytes of the budget are taken.
    pub(crate) fn used(&self) -> u64 {
        self.small.used() + self.large.used()
    }

    /// Returns how many bytes it holds at most.
    pub(crate) fn budget(&self) -> u64 {
        self.small.capacity() + self.large.capacity()
    }

    /// Returns how many calls were refused, because they found no room or stalled.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the share of a new connection.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        let connection = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let window_of = |left: u64| (left / 8).clamp(CONNECTION_WINDOW.0, CONNECTION_WINDOW.1);
        let left = self
            .windows_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                Some(left.saturating_sub(window_of(left) - CONNECTION_WINDOW.0))
            });
        let window = window_of(left.unwrap_or_else(|left| left));
        let stream = (window / STREAMS_PER_WINDOW).clamp(STREAM_WINDOW.0, STREAM_WINDOW.1);
        let streams = window / stream;
        // The others can go on while so many wait.
        let places = streams.saturating_sub(4).max(1);
        Share {
            receiving: self.clone(),
            connection,
            own: AtomicU64::new(0),
            small: Arc::new(Part::new(connection)),
            large: Arc::new(Part::new(connection)),
            windows: Windows {
                connection: window as u32,
                stream: stream as u32,
            },
            places: AtomicUsize::new(places as usize),
        }
    }
}

impl Share {
    pub(crate) fn windows(&self) -> Windows {
        self.windows
    }

    pub(super) fn message_max(&self) -> usize {
        self.receiving.message_max
    }

    /// Takes room for a message, if there is some and nothing waits for it.
    pub(super) fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Room> {
        if self.take_own(bytes as u64) {
            return Some(Room {
                share: Some(self.clone()),
                own: bytes as u64,
                ..Room::default()
            });
        }
        let (is_small, bytes) = self.charge(bytes);
        let (room, part) = self.class(is_small);
        room.try_take(bytes, Some(part))
            .then(|| Room::new(self.clone(), is_small, bytes))
    }

    fn take_own(&self, bytes: u64) -> bool {
        let taken = self
            .own
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |own| {
                Some(own + bytes).filter(|own| *own <= OWN)
            });
        taken.is_ok()
    }

    /// Tells whether other connections wait for the room that a message of this size takes.
    pub(super) fn do_others_wait(&self, bytes: usize) -> bool {
        let (is_small, _) = self.charge(bytes);
        self.class(is_small).0.do_others_wait(&self.connection)
    }

    /// Waits for room for a message.
    pub(super) fn wait(self: &Arc<Self>, bytes: usize) -> Result<RoomWait, Crowded> {
        let place = Place::take(self).ok_or_else(|| self.refuse())?;
        let (is_small, bytes) = self.charge(bytes);
        let (room, part) = self.class(is_small);
        let turn = room.wait(&self.connection, bytes, Some(part.clone()));
        Ok(RoomWait {
            turn: turn.map_err(|_| Crowded)?,
            bytes,
            is_small,
            place,
            timeout: Box::pin(tokio::time::sleep(WAIT_MAX)),
        })
    }

    /// Counts a call that is refused.
    pub(super) fn refuse(&self) -> Crowded {
        self.receiving.refused.fetch_add(1, Ordering::Relaxed);
        Crowded
    }

    /// Returns whether a message is small, and what it counts for. A message that is larger than what one connection
    /// may hold counts for that much.
    fn charge(&self, bytes: usize) -> (bool, u64) {
        let bytes = bytes as u64;
        let is_small = bytes <= SMALL;
        let most = self.class(is_small).0.capacity() / 4 * 3;
        (is_small, bytes.min(most))
    }

    fn class(&self, is_small: bool) -> (&Arc<FairRoom<u64>>, &Arc<Part<u64>>) {
        if is_small {
            (&self.receiving.small, &self.small)
        } else {
            (&self.receiving.large, &self.large)
        }
    }

    fn give_back(&self, is_small: bool, bytes: u64) {
        if bytes > 0 {
            let (room, part) = self.class(is_small);
            room.give_back(bytes, Some(part));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let beyond = u64::from(self.windows.connection) - CONNECTION_WINDOW.0;
        self.receiving
            .windows_left
            .fetch_add(beyond, Ordering::Relaxed);
    }
}

/// One of the places of a connection for calls that wait.
#[derive(Debug)]
struct Place(Arc<Share>);

impl Place {
    fn take(share: &Arc<Share>) -> Option<Self> {
        let taken = share
            .places
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        taken.ok().map(|_| Self(share.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.places.fetch_add(1, Ordering::Relaxed);
    }
}

/// A call that waits for room.
#[derive(Debug)]
pub(super) struct RoomWait {
    turn: Turn<u64>,
    bytes: u64,
    is_small: bool,
    place: Place,
    timeout: Pin<Box<Sleep>>,
}

impl RoomWait {
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Room, Crowded>> {
        let share = &self.place.0;
        if let Poll::Ready(granted) = Pin::new(&mut self.turn).poll(context) {
            let room = granted.map(|()| Room::new(share.clone(), self.is_small, self.bytes));
            return Poll::Ready(room.map_err(|_| Crowded));
        }
        std::task::ready!(self.timeout.as_mut().poll(context));
        Poll::Ready(Err(share.refuse()))
    }
}

/// Room that a call holds. Dropping it gives the room back.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Room {
    /// Absent if it is empty.
    share: Option<Arc<Share>>,
    own: u64,
    small: u64,
    large: u64,
}

impl Room {
    fn new(share: Arc<Share>, is_small: bool, bytes: u64) -> Self {
        let (small, large) = if is_small { (bytes, 0) } else { (0, bytes) };
        Self {
            share: Some(share),
            own: 0,
            small,
            large,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.own + self.small + self.large
    }

    /// Splits off at most so many bytes.
    pub(super) fn split(&mut self, bytes: usize) -> Self {
        let mut left = bytes as u64;
        if left >= self.bytes() {
            return std::mem::take(self);
        }
        let mut some_of = |amount: &mut u64| {
            let some = left.min(*amount);
            left -= some;
            *amount -= some;
            some
        };
        Self {
            share: self.share.clone(),
            own: some_of(&mut self.own),
            small: some_of(&mut self.small),
            large: some_of(&mut self.large),
        }
    }

    /// Adds room of the same connection.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        if self.share.is_none() {
            *self = other;
            return;
        }
        self.own += std::mem::take(&mut other.own);
        self.small += std::mem::take(&mut other.small);
        self.large += std::mem::take(&mut other.large);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(share) = &self.share {
            share.own.fetch_sub(self.own, Ordering::Relaxed);
            share.give_back(true, self.small);
            share.give_back(false, self.large);
        }
    }
}
