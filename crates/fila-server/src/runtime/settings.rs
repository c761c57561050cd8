//! The settings of a broker, from the configuration.

use drr::Quantum;
use fila_core::{LeaseKey, Limits, Settings};
use tracing::warn;

use super::error::StartError;
use crate::config::Config;

/// Returns the settings of one scheduler thread's broker. The scheduler threads divide shared limits evenly.
pub(super) fn settings(config: &Config, lease_key: LeaseKey) -> Settings {
    let threads = config.scheduler.threads.get();
    let given = &config.limits;
    let mut settings = Settings {
        lease_key,
        ..Settings::default()
    };
    match Quantum::new(config.scheduler.quantum.get()) {
        Some(quantum) => settings.quantum = quantum,
        None => warn!("scheduler.quantum is out of range; the default is used"),
    }
    #[cfg(feature = "fifo")]
    {
        warn!(
            "this build delivers in the order of arrival, without fairness; it is for benches only"
        );
        settings.is_fifo = true;
    }
    settings.memory_budget = config.storage.memory_budget.as_usize() / threads;
    let mut limits = Limits::default();
    limits.payload_bytes = given.message.payload_bytes.as_usize();
    limits.headers = given.message.headers;
    limits.header_bytes = given.message.header_bytes.as_usize();
    limits.fairness_key_bytes = given.message.fairness_key_bytes.as_usize();
    limits.delay = given.delay;
    limits.keys_per_queue = given.keys_per_queue.get();
    limits.depth_per_queue = given.depth_per_queue.get();
    limits.depth_per_key = given.depth_per_key.get();
    limits.delayed_per_queue = given.delayed_per_queue as u64;
    limits.deduplication_ids_per_queue = given.deduplication_ids_per_queue;
    limits.key_settings_per_queue = given.key_settings_per_queue;
    limits.consumers = given.consumers.get();
    limits.in_flight_per_consumer = given.in_flight_per_consumer.get();
    limits.buffered_bytes = given.buffered_bytes.as_usize() / threads;
    settings.limits = limits;
    settings
}

/// Draws the secret of this start's lease ids.
///
/// # Errors
/// If the system has no random numbers: with others, a client could guess the leases of another.
pub(super) fn draw_lease_key() -> Result<LeaseKey, StartError> {
    let mut key = [0; 16];
    getrandom::fill(&mut key).map_err(StartError::Randomness)?;
    Ok(LeaseKey::new(key))
}
