//! The limits of scripts and of their answers.

use std::time::Duration;

/// The limits of one script. The defaults are those of the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest call, in time of its thread; also the longest load of the script.
    pub timeout: Duration,
    /// Bytes of the script, its data and the message in the VM, on top of the VM and its library (some 40 KiB). Texts that
    /// the library builds may take as much again outside of the VM for a moment.
    pub memory_bytes: usize,
    /// Bytes of the source.
    pub source_bytes: usize,
    /// Bytes of a fairness key.
    pub fairness_key_bytes: usize,
    /// Bytes of one throttle key.
    pub throttle_key_bytes: usize,
    /// Throttle keys of one message.
    pub throttle_keys: usize,
    /// Entries in the weights of groups of one message. A key is in three groups at most.
    pub weights: usize,
    /// The largest weight.
    pub weight: u32,
    /// The longest delay before a retry.
    pub delay: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(10),
            memory_bytes: 1 << 20,
            source_bytes: 64 << 10,
            fairness_key_bytes: 256,
            throttle_key_bytes: 256,
            throttle_keys: 16,
            weights: 16,
            weight: 65_536,
            delay: Duration::from_secs(365 * 24 * 3600),
        }
    }
}
