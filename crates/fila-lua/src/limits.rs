//! What scripts and their answers may take.

use std::time::Duration;

/// Bounds of one script. The defaults are the broker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long one call may run, in time of its thread; also how long the script may take to be loaded.
    pub timeout: Duration,
    /// Bytes that the script, its data and the message may take in the VM, on top of what the VM and its library take
    /// themselves (some 40 KiB). Texts that the library works on may take as much again outside of it for a moment.
    pub memory_bytes: usize,
    /// Bytes of the source.
    pub source_bytes: usize,
    /// Bytes of a fairness key.
    pub fairness_key_bytes: usize,
    /// Bytes of one throttle key.
    pub throttle_key_bytes: usize,
    /// Throttle keys of one message.
    pub throttle_keys: usize,
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
            weight: 65_536,
            delay: Duration::from_secs(365 * 24 * 3600),
        }
    }
}
