//! Changes the runtime configuration, one change at a time.
//!
//! The writer stores a change, then publishes the next state as a whole, so that no reader sees half of a change. It
//! blocks, and runs on threads that may block. A change that has begun is finished even if its caller no longer waits.
//! Every change is logged with the length of its value, not with the value, which may be a secret.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use fila_store::{ConfigKey, Engine, EngineError, Expected, Version};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::config::{ByteSize, LimitsConfig};
use crate::metrics::Metrics;
use crate::runtime::config::throttles::Throttling;
use crate::runtime::error::{CallError, StartError};
use crate::runtime::status::Status;
use crate::runtime::store::Store;
use crate::runtime_config::{self, Entries, Entry};

/// Changes the runtime configuration.
pub(crate) struct ConfigWriter {
    pub(crate) store: Arc<dyn Store>,
    /// The present entries, which all readers share.
    pub(crate) entries: watch::Sender<Arc<Entries>>,
    pub(crate) limits: LimitsConfig,
    pub(crate) status: Arc<Status>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) throttling: Throttling,
    /// A change holds it until it is done.
    pub(crate) turn: Mutex<()>,
}

/// Reads the runtime configuration from the store.
pub(crate) fn load(engine: &impl Engine) -> Result<Entries, StartError> {
    let stored = engine.configs("")?;
    let entries = stored.iter().map(|stored| {
        let entry = Entry::from_stored(stored);
        let entry = entry.map_err(|source| StartError::RuntimeConfig {
            key: stored.key.clone(),
            source,
        })?;
        if runtime_config::check(entry.key.as_str(), &entry.value).is_err() {
            // The reason would show the value, which may be a secret.
            warn!(key = %entry.key, "an entry of the runtime configuration is not allowed and has no effect; set it anew");
        }
        Ok(entry)
    });
    let entries: Entries = entries.collect::<Result<_, StartError>>()?;
    info!(
        entries = entries.len(),
        throttles = entries.throttles().len(),
        "runtime configuration read"
    );
    Ok(entries)
}

impl ConfigWriter {
    fn refused(&self, key: &ConfigKey, failure: &EngineError) -> CallError {
        // There is one writer, so an unexpected version is the trace of a failed write.
        let is_failure = matches!(
            failure,
            EngineError::Commit(_) | EngineError::Read(_) | EngineError::Conflict { .. }
        );
        if is_failure {
            let source = std::error::Error::source(failure).map(ToString::to_string);
            let source = source.unwrap_or_default();
            error!(%key, error = %failure, source, "the runtime configuration was not changed");
        }
        if let EngineError::Commit(_) = failure {
            self.status.fail("the store takes no more writes");
        }
        CallError::of_config(failure)
    }

    /// Checks that a key and a value are not too long.
    fn fits(&self, key: &str, value: &str) -> Result<(), CallError> {
        let (keys, values) = (
            self.limits.runtime_config.key_bytes,
            self.limits.runtime_config.value_bytes,
        );
        within("key", key.len(), keys, "limits.config_key_bytes")?;
        within("value", value.len(), values, "limits.config_value_bytes")
    }

    /// Checks that an entry of `bytes` bytes fits in place of `old`. An entry that does not grow always fits.
    fn has_room(&self, now: &Entries, old: Option<&Entry>, bytes: usize) -> Result<(), CallError> {
        let max = self.limits.runtime_config.entries;
        if old.is_none() && now.len() >= max {
            let limit = "limits.config_entries";
            return Err(CallError::ConfigFull {
                what: "entries",
                max,
                limit,
            });
        }
        let (freed, max) = (
            old.map_or(0, Entry::bytes),
            self.limits.runtime_config.bytes.as_usize(),
        );
        if bytes > freed && now.bytes() - freed + bytes > max {
            let limit = "limits.config_bytes";
            return Err(CallError::ConfigFull {
                what: "bytes",
                max,
                limit,
            });
        }
        Ok(())
    }

    fn publish(&self, now: &Entries, next: Entries) {
        let next = Arc::new(next);
        self.entries.send_replace(next.clone());
        if !Arc::ptr_eq(now.throttles(), next.throttles()) {
            self.throttling.follow(now.throttles(), next.throttles());
        }
        self.metrics.config_changed();
    }
}

impl ConfigWriter {
    /// Sets an entry. `client` is the address of the caller, if it is known.
    pub(crate) fn set(
        &self,
        key: &str,
        value: String,
        expected: Expected,
        client: Option<SocketAddr>,
    ) -> Result<Arc<Entry>, CallError> {
        // This check goes first, because other errors show the key.
        self.fits(key, &value)?;
        runtime_config::check(key, &value)?;
        let key = ConfigKey::parse(key).map_err(|error| CallError::Invalid(error.to_string()))?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.entries.borrow().clone();
        let old = now.entry(key.as_str());
        let found = old.map(|old| old.version);
        if !expected.matches(found) {
            return Err(CallError::ConfigChanged { key, found });
        }
        if let Some(old) = old
            && old.value == value
        {
            return Ok(old.clone());
        }
        let bytes = key.as_str().len() + value.len();
        self.has_room(&now, old.map(Arc::as_ref), bytes)?;
        let seen = found.map_or(Expected::Absent, Expected::Version);
        let set = self.store.set_config(&key, seen, value.clone().into());
        let version = set.map_err(|error| self.refused(&key, &error))?;
        let entry = Arc::new(Entry::new(key, value, version));
        self.publish(&now, now.with(entry.clone()));
        info!(
            key = %entry.key,
            value_bytes = entry.value.len(),
            old_value_bytes = old.map(|old| old.value.len()),
            version = version.get(),
            client = client.map(tracing::field::display),
            "runtime configuration set",
        );
        Ok(entry)
    }

    /// Deletes an entry.
    pub(crate) fn delete(
        &self,
        key: &str,
        expected: Option<Version>,
        client: Option<SocketAddr>,
    ) -> Result<(), CallError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.entries.borrow().clone();
        let Some(old) = now.entry(key) else {
            return Err(CallError::unknown_config(key));
        };
        let (key, found) = (&old.key, old.version);
        if expected.is_some_and(|expected| expected != found) {
            let (key, found) = (key.clone(), Some(found));
            return Err(CallError::ConfigChanged { key, found });
        }
        let removed = self.store.remove_config(key, Expected::Version(found));
        removed.map_err(|error| self.refused(key, &error))?;
        self.publish(&now, now.without(key));
        info!(
            %key,
            old_value_bytes = old.value.len(),
            client = client.map(tracing::field::display),
            "runtime configuration deleted",
        );
        Ok(())
    }
}

fn within(
    what: &'static str,
    found: usize,
    max: ByteSize,
    limit: &'static str,
) -> Result<(), CallError> {
    let max = max.as_usize();
    if found <= max {
        return Ok(());
    }
    Err(CallError::ConfigTooLarge {
        what,
        found,
        max,
        limit,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fila_store::{MemoryDisk, MemoryEngine};

    use super::*;

    fn stored(entries: &[(&str, &'static [u8])]) -> MemoryEngine {
        let engine = MemoryEngine::open(&MemoryDisk::default()).unwrap();
        for (key, value) in entries {
            let key = ConfigKey::parse(key).unwrap();
            let value = Bytes::from_static(value);
            Store::set_config(&engine, &key, Expected::Any, value).unwrap();
        }
        engine
    }

    #[test]
    fn an_entry_that_would_be_refused_today_is_kept_and_has_no_effect() {
        let engine = stored(&[("throttle:a:rate", b"many"), ("throttle:b:rate", b"1")]);
        let entries = load(&engine).unwrap();
        assert_eq!(entries.get("throttle:a:rate"), Some("many"));
        let throttles: Vec<_> = entries.throttles().iter().collect();
        assert_eq!((throttles.len(), &**throttles[0].0), (1, "b"));
    }

    #[test]
    fn a_value_that_is_no_text_is_named_and_not_guessed() {
        let failure = load(&stored(&[("a", b"x"), ("odd", b"\xff")])).unwrap_err();
        let StartError::RuntimeConfig { key, .. } = failure else {
            panic!("{failure}");
        };
        assert_eq!(key.as_str(), "odd");
    }
}
