//! Rules between keys: values that are allowed each, and not together.

use super::byte_size::ByteSize;
use super::sections::Config;

/// Values that do not go together.
#[derive(Debug)]
pub(super) struct Conflict {
    /// The keys that could be changed to solve it.
    pub(super) keys: &'static [&'static str],
    pub(super) message: String,
}

/// Returns what does not go together.
pub(super) fn conflicts(config: &Config) -> Vec<Conflict> {
    let found = [
        reachable_by_others(config),
        prefetch_beyond_limit(config),
        buffer_below_message(config),
    ];
    found.into_iter().flatten().collect()
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
    let message = limits.payload_bytes.bytes() + limits.header_bytes.bytes();
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
