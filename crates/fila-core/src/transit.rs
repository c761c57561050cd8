//! Deliveries on their way to the sockets of consumers.
//!
//! A message that was delivered stays in the driver's memory until the consumer's socket takes it. Three bounds hold:
//!
//! - A consumer gets [`WINDOW`] bytes, and nothing more until it has read some of them. A consumer that has never read
//!   gets [`FIRST_WINDOW`].
//! - All consumers of a broker share a quarter of its memory; [`Pool`] says how much of that one of them may hold. A
//!   consumer that has read everything gets its next message beyond that, up to three eighths of memory. So consumers
//!   that stop reading in the middle hold up no consumer that reads.
//! - Consumers that have never read share an eighth of memory. So the others go on, however many do not read.
//!
//! A consumer below its bounds gets the next message whole, so a message of any size can be delivered.

use std::collections::VecDeque;

use drr::Pool;

/// The most bytes on their way to one consumer, before the last message.
const WINDOW: usize = 4 << 20;

/// The same for a consumer that has not read anything yet.
const FIRST_WINDOW: usize = 64 << 10;

/// The least room for the deliveries of all consumers, however small the budget is.
const CAPACITY_MIN: usize = 4 << 20;

/// The bytes on their way to all consumers of a broker.
#[derive(Debug)]
pub(crate) struct Transit {
    pub(crate) bytes: usize,
    /// How many of them are on their way to consumers that have never read.
    unproven: usize,
    capacity: usize,
    /// Queues with consumers that wait for room, in turns.
    pub(crate) crowded: VecDeque<usize>,
}

/// The bytes on their way to one consumer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConsumerTransit {
    pub(crate) bytes: usize,
    /// Bytes that are expected of deliveries whose messages are being read.
    expected: usize,
    pub(crate) has_read: bool,
}

impl Transit {
    /// Returns the room of a broker with this memory budget.
    pub(crate) fn new(budget: usize) -> Self {
        Self {
            bytes: 0,
            unproven: 0,
            capacity: (budget / 4).max(CAPACITY_MIN),
            crowded: VecDeque::new(),
        }
    }

    /// Tells whether all consumers together leave room for one more message to this consumer.
    pub(crate) fn admits(&self, consumer: ConsumerTransit) -> bool {
        let fits = |capacity: usize, used: usize| {
            let (capacity, used) = (capacity as u64, used as u64);
            (consumer.bytes as u64) < Pool { capacity, used }.part()
        };
        let has_room = if consumer.bytes == 0 {
            self.bytes < self.capacity + self.capacity / 2
        } else {
            fits(self.capacity, self.bytes)
        };
        has_room && (consumer.has_read || fits(self.capacity / 2, self.unproven))
    }

    /// Notes that a delivery is on its way to a consumer.
    pub(crate) fn send(&mut self, consumer: &mut ConsumerTransit, bytes: usize) {
        self.bytes += bytes;
        consumer.bytes += bytes;
        if !consumer.has_read {
            self.unproven += bytes;
        }
    }

    /// Notes that the socket of a consumer has taken bytes.
    pub(crate) fn take(&mut self, consumer: &mut ConsumerTransit, bytes: usize) {
        self.leave(*consumer);
        consumer.has_read = true;
        consumer.bytes = consumer.bytes.saturating_sub(bytes);
        self.release(bytes);
    }

    /// Notes that bytes have left memory.
    pub(crate) fn release(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.bytes, "only deliveries are taken");
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Notes that a consumer has left. Its bytes stay in memory until its connection takes or drops them.
    pub(crate) fn leave(&mut self, consumer: ConsumerTransit) {
        if !consumer.has_read {
            self.unproven -= consumer.bytes;
        }
    }
}

impl ConsumerTransit {
    /// Tells whether its own window is open.
    pub(crate) fn is_open(&self) -> bool {
        let window = if self.has_read { WINDOW } else { FIRST_WINDOW };
        self.bytes + self.expected < window
    }

    /// Expects a delivery of this many bytes.
    pub(crate) fn expect(&mut self, bytes: usize) {
        self.expected = self.expected.saturating_add(bytes);
    }

    /// Expects a delivery no longer: it was made, or cancelled.
    pub(crate) fn expect_less(&mut self, bytes: usize) {
        self.expected = self.expected.saturating_sub(bytes);
    }

    /// Expects no delivery any longer.
    pub(crate) fn expect_nothing(&mut self) {
        self.expected = 0;
    }

    /// Tells whether there is room in its own window for a delivery that was expected.
    pub(crate) fn has_room(&self) -> bool {
        Self {
            expected: 0,
            ..*self
        }
        .is_open()
    }
}
