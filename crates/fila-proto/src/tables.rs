//! The settings and the statistics of a queue, each declared once.
//!
//! A setting is a field in `admin.proto`, a field in `fila-core` and a row here. So is a statistic. The SDK's types, the
//! server's conversions, the flags of the command line, its JSON and its text are all generated from the rows.
//!
//! The tables are macros, because a row becomes a field and a method in one crate and a conversion in another. Each
//! takes the name of a macro and calls it with all rows. Types are named as the calling crate knows them.

/// Calls a macro with one row for each setting of a queue.
///
/// A row has: the name, which is also the flag's, and its type in the SDK; the field on the wire and in JSON; the field
/// in `fila-core`; the default as a flag writes it; optionally what zero means; and the help.
#[macro_export]
macro_rules! queue_settings {
    ($generate:ident) => {
        $generate! {
            visibility_timeout: Duration, visibility_timeout_ms, visibility_timeout, default "30s",
                "How long a message is leased";
            ordering: Ordering, ordering, ordering, default "none",
                "The order in which messages of one fairness key are delivered";
            key_concurrency: u32, key_concurrency, key_concurrency, default "0", zero "no limit",
                "The most messages of one fairness key that are leased at once";
            charge: Charge, charge, charge, default "message",
                "The unit in which a delivery counts against its fairness key's share";
            deduplication_window: Duration, deduplication_window_ms, deduplication_window, default "5m",
                "How long the queue remembers a deduplication id";
            deduplication_scope: DeduplicationScope, deduplication_scope, deduplication_scope, default "key",
                "The messages among which a deduplication id is unique";
            depth_max: u64, depth_max, depth_max, default "0", zero "the server's limit",
                "The most messages in the queue";
            key_depth_max: u64, key_depth_max, key_depth_max, default "0", zero "the server's limit",
                "The most messages of one fairness key";
            key_separator: String, key_separator, key_separator, default "/",
                "The character that makes a fairness key a path, as in `acme/alice`";
            message_ttl: Duration, message_ttl_ms, message_ttl, default "0", zero "no expiry",
                "The time to live of messages that are sent without one";
            retry_attempts_max: u32, retry_attempts_max, retry.attempts_max, default "10", zero "no limit",
                "The number of failed deliveries after which a message becomes a dead letter";
            retry_backoff: Duration, retry_backoff_ms, retry.backoff, default "1s",
                "How long a message waits after its first failed delivery; the wait doubles with every attempt";
            retry_backoff_max: Duration, retry_backoff_max_ms, retry.backoff_max, default "5m",
                "The longest wait after a failed delivery";
            retry_jitter_percent: u32, retry_jitter_percent, retry.jitter_percent, default "10",
                "By how much a wait may be longer or shorter, from 0 to 100 percent";
            script: String, script, script, default "none",
                "The queue's hooks in Lua: `on_enqueue`, `on_failure` or both";
            hook_fallback: HookFallback, hook_fallback, hook_fallback, default "last_good",
                "What the broker does when `on_enqueue` fails";
        }
    };
}

/// Calls a macro with one row for each statistic of a queue, in two groups: `now` and `totals`.
///
/// A row has: the name; its unit, `count`, `bytes` or `time`; the field on the wire and in JSON; the field in
/// `fila-core`; and the help.
#[macro_export]
macro_rules! queue_stats {
    ($generate:ident) => {
        $generate! {
            now {
                depth: count, depth, depth(), "Messages in the queue: ready, delayed and leased";
                ready: count, ready, ready, "Messages that can be delivered now";
                throttled: count, throttled, throttled,
                    "Ready messages that wait for a token of a throttle, of those in memory";
                delayed: count, delayed, delayed, "Messages that wait for a delay or a retry to end";
                leased: count, leased, leased, "Messages that a consumer has";
                stored_only: count, stored_only, stored_only, "Ready messages that are in the store and not in memory";
                bytes: bytes, bytes, bytes, "Bytes of headers and payloads of all messages in the queue";
                active_keys: count, active_keys, active_keys, "Fairness keys that have messages";
                active_groups: count, active_groups, active_groups, "Groups of fairness keys that have messages";
                consumers: count, consumers, consumers, "Connected consumers";
            }
            totals {
                enqueued: count, enqueued_total, totals.enqueued, "Messages that were stored";
                deduplicated: count, deduplicated_total, totals.deduplicated,
                    "Messages that were not stored again, because they are duplicates";
                delivered: count, delivered_total, totals.delivered, "Deliveries";
                acked: count, acked_total, totals.acked, "Deliveries that a consumer acknowledged";
                nacked: count, nacked_total, totals.nacked, "Deliveries that a consumer reported as failed";
                lease_expired: count, lease_expired_total, totals.lease_expired, "Leases that ran out";
                released: count, released_total, totals.released,
                    "Leases that a consumer gave back, or that ended with its connection";
                expired: count, expired_total, totals.expired, "Messages whose time to live passed";
                purged: count, purged_total, totals.purged, "Messages that were purged";
                damaged: count, damaged_total, totals.damaged,
                    "Messages that the broker could not read back from the store, and did not deliver";
                first_delivered: count, first_delivered_total, totals.first_delivered,
                    "Deliveries that were the first of their message";
                waited: time, waited_ms_total, totals.waited,
                    "The sum of the times that messages waited for their first delivery";
                retried: count, retried_total, totals.retried,
                    "Failed deliveries after which the message was scheduled for another attempt";
                dead_lettered: count, dead_lettered_total, totals.dead_lettered, "Messages that became dead letters";
                dead_letters_refused: count, dead_letters_refused_total, totals.dead_letters_refused,
                    "Messages that stayed and were tried again, because the dead-letter queue was full";
                redriven: count, redriven_total, totals.redriven,
                    "Dead letters that were moved back to the queue they came from";
            }
        }
    };
}
