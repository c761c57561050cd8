//! The limits of one broker. Each limit has its own refusal; exceeding one never panics.

use std::time::Duration;

use drr::Quantum;

use crate::LeaseKey;

/// The scheduling parameters and limits of a broker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Credit that a key of weight 1 gets in a round, in thousandths of a message.
    pub quantum: Quantum,
    /// Bytes of messages to keep in memory; the broker reads the rest back when its turn comes.
    pub memory_budget: usize,
    /// How long a failure waits for the decision of a hook, before its queue decides.
    pub judging_time: Duration,
    /// The secret behind the ids of leases. The default is no secret: a server draws one at each start.
    pub lease_key: LeaseKey,
    /// The limits of producers and consumers.
    pub limits: Limits,
    /// Whether queues deliver in the order of arrival, without keys and without the engine: the baseline of benches.
    #[cfg(feature = "fifo")]
    pub is_fifo: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            quantum: Quantum::new(1000).expect("it is not zero"),
            memory_budget: 256 << 20,
            judging_time: Duration::from_secs(10),
            lease_key: LeaseKey::new([0; 16]),
            limits: Limits::default(),
            #[cfg(feature = "fifo")]
            is_fifo: false,
        }
    }
}

/// The limits of producers and consumers.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of one message's payload.
    pub payload_bytes: usize,
    /// Headers of one message.
    pub headers: usize,
    /// Bytes of all names and values of one message's headers.
    pub header_bytes: usize,
    /// Bytes of a fairness key.
    pub fairness_key_bytes: usize,
    /// Throttle keys of one message.
    pub throttle_keys: usize,
    /// The longest delay and time to live.
    pub delay: Duration,
    /// Fairness keys with messages in one queue. Clients share them.
    pub keys_per_queue: usize,
    /// Messages in one queue, unless the queue sets less. Fairness keys share them.
    pub depth_per_queue: u64,
    /// Messages of one fairness key, unless the queue sets less.
    pub depth_per_key: u64,
    /// Messages of one queue that wait for their time; each takes a few hundred bytes of memory. Fairness keys share them.
    pub delayed_per_queue: u64,
    /// Deduplication ids that one queue remembers, with its unanswered batches and their producers. Fairness keys share
    /// them. A batch that is stored in part may exceed it by the number of its messages.
    pub deduplication_ids_per_queue: usize,
    /// Fairness keys of one queue with settings of their own.
    pub key_settings_per_queue: usize,
    /// Consumers of all queues.
    pub consumers: usize,
    /// Messages leased to one consumer.
    pub in_flight_per_consumer: u32,
    /// Accepted bytes that are not durable yet; see
    /// [`NewMessage::buffered_bytes`](crate::NewMessage::buffered_bytes).
    pub buffered_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes: 1 << 20,
            headers: 64,
            header_bytes: 16 << 10,
            fairness_key_bytes: 256,
            throttle_keys: 16,
            delay: Duration::from_secs(365 * 24 * 3600),
            keys_per_queue: 1_000_000,
            depth_per_queue: 100_000_000,
            depth_per_key: 100_000_000,
            delayed_per_queue: 1_000_000,
            deduplication_ids_per_queue: 1_000_000,
            key_settings_per_queue: 10_000,
            consumers: 10_000,
            in_flight_per_consumer: 10_000,
            buffered_bytes: 64 << 20,
        }
    }
}
