//! A configuration in the making: the values so far, where each was set, and what is wrong with them.

use std::collections::HashMap;

use super::error::{ConfigError, Location, Problem};
use super::keys::Key;
use super::kinds::Given;
use super::table::{Config, TlsConfig};
use super::values::{ByteSize, ClientCertificates};
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

fn conflicts(config: &Config) -> [Option<Conflict>; 7] {
    [
        reachable_by_others(config),
        half_a_pair(config),
        client_ca_without_use(config),
        metrics_without_probe(config),
        prefetch_beyond_limit(config),
        buffer_below_message(config),
        receiving_below_request(config),
    ]
}

/// Says what is missing to keep strangers out; none if nothing is.
fn missing_protection(tls: &TlsConfig) -> Option<&'static str> {
    let authenticates = tls.client_certificates == ClientCertificates::Required;
    match (tls.is_on(), authenticates) {
        (true, true) => None,
        (true, false) => Some(
            "the server does not authenticate clients (`tls.client_certificates = \"required\"`)",
        ),
        (false, _) => Some("there is neither TLS (`tls.certificate_file`) nor authentication"),
    }
}

fn reachable_by_others(config: &Config) -> Option<Conflict> {
    let address = config.server.address;
    let is_closed = address.ip().to_canonical().is_loopback() || config.server.insecure;
    let missing = missing_protection(&config.tls).filter(|_| !is_closed)?;
    Some(Conflict {
        keys: &["server.address"],
        message: format!(
            "other machines can reach `{address}`, and {missing}; \
             listen on a loopback address such as `127.0.0.1:5555`, or allow it with `--insecure` \
             or `server.insecure = true` if everybody on that network may read and delete messages"
        ),
    })
}

fn half_a_pair(config: &Config) -> Option<Conflict> {
    let tls = &config.tls;
    let (given, missing) = match (&tls.certificate_file, &tls.key_file) {
        (Some(_), None) => ("tls.certificate_file", "tls.key_file"),
        (None, Some(_)) => ("tls.key_file", "tls.certificate_file"),
        (Some(_), Some(_)) | (None, None) => return None,
    };
    Some(Conflict {
        keys: &["tls.certificate_file", "tls.key_file"],
        message: format!("{given} is set and {missing} is not; TLS needs both files"),
    })
}

fn client_ca_without_use(config: &Config) -> Option<Conflict> {
    let tls = &config.tls;
    let asks = tls.client_certificates != ClientCertificates::Off;
    let message = match (asks, &tls.client_ca_file) {
        (true, None) => {
            "tls.client_certificates asks for certificates of clients; set tls.client_ca_file, \
             the file with the certificates that sign them"
        }
        (false, Some(_)) => {
            "tls.client_ca_file is set, and the server asks for no certificates of clients; \
             set tls.client_certificates to `optional` or `required`"
        }
        (true, Some(_)) if !tls.is_on() => {
            "tls.client_certificates asks for certificates of clients, and there is no TLS; \
             set tls.certificate_file and tls.key_file"
        }
        _ => return None,
    };
    Some(Conflict {
        keys: &["tls.client_certificates", "tls.client_ca_file"],
        message: message.to_owned(),
    })
}

fn metrics_without_probe(config: &Config) -> Option<Conflict> {
    let server = &config.server;
    let is_useless = server.probe_metrics && server.probe_address.is_none();
    is_useless.then(|| Conflict {
        keys: &["server.probe_metrics"],
        message: "server.probe_metrics needs an address; set server.probe_address".to_owned(),
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
