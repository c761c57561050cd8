//! A configuration in the making: the values so far, where each was set, and what is wrong with them.

use std::collections::HashMap;

use super::error::{ConfigError, Location, Problem};
use super::keys::Key;
use super::kinds::Given;
use super::table::Config;
use super::values::ByteSize;
use crate::grpc::request_bytes_max;

/// A configuration in the making. Starts as the default.
#[derive(Debug, Default)]
pub(super) struct Draft {
    config: Config,
    /// The strongest location that set each key, by the key's path. A key that keeps its default is absent.
    origins: HashMap<String, Location>,
    problems: Vec<Problem>,
}

impl Draft {
    /// Sets a key, or notes why it cannot be set.
    pub(super) fn set(&mut self, key: &Key, location: Location, given: &Given<'_>) {
        match (key.set)(&mut self.config, given) {
            Ok(()) => {
                self.origins.insert(key.path(), location);
            }
            Err(message) => self.problems.push(Problem {
                location,
                key: Some(key.path()),
                message,
            }),
        }
    }

    /// Notes a mistake that concerns no key.
    pub(super) fn note(&mut self, location: Location, message: impl Into<String>) {
        self.problems.push(Problem {
            location,
            key: None,
            message: message.into(),
        });
    }

    /// Returns the configuration if nothing is wrong with it.
    pub(super) fn finish(mut self) -> Result<Config, ConfigError> {
        for conflict in conflicts(&self.config).into_iter().flatten() {
            // The strongest source is reported, because the user gave it last.
            let keys = conflict.keys.iter();
            let blamed = keys.max_by_key(|path| self.origins.get(**path));
            let origin = blamed.and_then(|path| self.origins.get(*path));
            self.problems.push(Problem {
                location: origin.cloned().unwrap_or(Location::Default),
                key: blamed.map(|path| (*path).to_owned()),
                message: conflict.message,
            });
        }
        if self.problems.is_empty() {
            Ok(self.config)
        } else {
            Err(ConfigError::new(self.problems))
        }
    }
}

/// Values that are each allowed, and not together.
#[derive(Debug)]
struct Conflict {
    /// The keys that could be changed to solve it.
    keys: &'static [&'static str],
    message: String,
}

fn conflicts(config: &Config) -> [Option<Conflict>; 4] {
    [
        reachable_by_others(config),
        prefetch_beyond_limit(config),
        buffer_below_message(config),
        receiving_below_request(config),
    ]
}

fn reachable_by_others(config: &Config) -> Option<Conflict> {
    let address = config.server.address;
    let is_refused = !address.ip().to_canonical().is_loopback() && !config.server.insecure;
    is_refused.then(|| Conflict {
        keys: &["server.address"],
        message: format!(
            "other machines can reach `{address}`, and there is neither TLS nor authentication yet; \
             listen on a loopback address such as `127.0.0.1:5555`, or allow it with `--insecure` \
             or `server.insecure = true` if everybody on that network may read and delete messages"
        ),
    })
}

fn prefetch_beyond_limit(config: &Config) -> Option<Conflict> {
    let limits = &config.limits;
    let (prefetch, max) = (limits.prefetch_default, limits.in_flight_per_consumer);
    (prefetch > max).then(|| Conflict {
        keys: &["limits.prefetch_default", "limits.in_flight_per_consumer"],
        message: format!(
            "limits.prefetch_default is {prefetch} and limits.in_flight_per_consumer only {max}; \
             lower the first or raise the second"
        ),
    })
}

fn buffer_below_message(config: &Config) -> Option<Conflict> {
    let limits = &config.limits;
    let message = limits.message.payload_bytes.bytes() + limits.message.header_bytes.bytes();
    let buffered = limits.buffered_bytes;
    (buffered.bytes() < message).then(|| Conflict {
        keys: &[
            "limits.payload_bytes",
            "limits.header_bytes",
            "limits.buffered_bytes",
        ],
        message: format!(
            "limits.buffered_bytes is `{buffered}`, less than the largest message of `{}`; \
             raise it, or lower limits.payload_bytes or limits.header_bytes",
            ByteSize::new(message)
        ),
    })
}

/// One request may take three quarters of the three quarters that are for large ones.
fn receiving_below_request(config: &Config) -> Option<Conflict> {
    let limits = &config.limits;
    let request = request_bytes_max(limits) as u64;
    let receiving = limits.receiving_bytes;
    (receiving.bytes() < 2 * request).then(|| Conflict {
        keys: &[
            "limits.payload_bytes",
            "limits.header_bytes",
            "limits.receiving_bytes",
        ],
        message: format!(
            "limits.receiving_bytes is `{receiving}`, less than twice the largest request of `{}`; \
             raise it, or lower limits.payload_bytes or limits.header_bytes",
            ByteSize::new(request)
        ),
    })
}
