//! The answers of the server so far, and the rules that follow from them.

use std::collections::{BTreeMap, HashMap, HashSet};

use fila_proto::v1::{Delivery, EnqueueResult, Error, ErrorCode, LeaseRefusal, QueueStats};
use tonic::Status;

/// A lease id below this stands for an actual one, because an input cannot guess them.
const NAMED: u64 = 64;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Messages that were confirmed, by queue, since it was created.
    confirmed: BTreeMap<String, u64>,
    /// Ids of messages that were confirmed.
    stored: HashSet<String>,
    /// Ids of messages whose acknowledgement was confirmed.
    acked: HashSet<String>,
    /// Leases in the order in which they came, and their messages.
    pub(crate) leases: Vec<(u64, String)>,
    messages: HashMap<u64, String>,
    /// The number of refusals, by code.
    pub(crate) refused: BTreeMap<&'static str, u64>,
    /// Whether dead letters may have come back under new ids.
    pub(crate) redriven: bool,
}

impl Ledger {
    pub(crate) fn created(&mut self, queue: &str) {
        self.confirmed.insert(queue.to_owned(), 0);
    }

    /// Records the results of one request with this many messages.
    pub(crate) fn enqueued(&mut self, queue: &str, results: &[EnqueueResult], messages: usize) {
        assert_eq!(results.len(), messages, "a result for each message");
        for result in results {
            match &result.error {
                Some(error) => {
                    assert!(result.message_id.is_empty(), "{result:?}");
                    self.refusal(error);
                }
                None => self.stored(queue, &result.message_id, result.deduplicated),
            }
        }
    }

    pub(crate) fn stored(&mut self, queue: &str, id: &str, deduplicated: bool) {
        assert!(!id.is_empty(), "a stored message has an id");
        if deduplicated {
            assert!(self.stored.contains(id), "{id} was never stored");
        } else {
            assert!(self.stored.insert(id.to_owned()), "{id} was given twice");
            *self.confirmed.entry(queue.to_owned()).or_default() += 1;
        }
    }

    pub(crate) fn delivered(&mut self, queue: &str, deliveries: &[Delivery]) {
        for delivery in deliveries {
            let id = &delivery.message_id;
            assert!(!self.acked.contains(id), "{id} is back after its ack");
            let has_moved = self.redriven || queue.ends_with(".dlq");
            assert!(has_moved || self.stored.contains(id), "{id} is unknown");
            assert!(delivery.attempt > 0, "{delivery:?}");
            let lease = delivery.lease_id;
            let before = self.messages.insert(lease, id.clone());
            assert_eq!(before, None, "lease {lease} was given twice");
            self.leases.push((lease, id.clone()));
        }
    }

    pub(crate) fn acked(&mut self, lease: u64) {
        if let Some(message) = self.messages.get(&lease) {
            self.acked.insert(message.clone());
        }
    }

    pub(crate) fn lease_refusals(&mut self, refused: &[LeaseRefusal]) {
        for refusal in refused {
            self.refusal(refusal.error.as_ref().expect("a refusal says why"));
        }
    }

    pub(crate) fn refusal(&mut self, error: &Error) {
        assert!(!error.message.is_empty(), "{error:?}");
        let known = ErrorCode::try_from(error.code).expect("a code that is known");
        self.count(known, &error.message);
    }

    /// Takes the status of a call that was refused as a whole.
    pub(crate) fn status(&mut self, status: &Status) {
        let code = status.metadata().get("fila-error");
        let code = code.and_then(|code| code.to_str().ok());
        let known = code.and_then(ErrorCode::from_name);
        let known = known.unwrap_or_else(|| panic!("a refusal without a code: {status:?}"));
        self.count(known, status.message());
    }

    fn count(&mut self, code: ErrorCode, text: &str) {
        assert!(!text.is_empty(), "{code:?} without a word");
        let is_ours = matches!(
            code,
            ErrorCode::Unspecified
                | ErrorCode::StoreUnavailable
                | ErrorCode::OutcomeUnknown
                | ErrorCode::ShuttingDown
        );
        assert!(!is_ours, "{code:?}: {text}");
        *self.refused.entry(code.name()).or_default() += 1;
    }

    /// Returns the lease that a number stands for.
    pub(crate) fn lease(&self, number: u64) -> u64 {
        let place = usize::try_from(number).ok().filter(|_| number < NAMED);
        let named = place.and_then(|place| self.leases.get(place));
        named.map_or(number, |(lease, _)| *lease)
    }

    /// Returns the id that `#1` and so on stand for: that of the message of this lease.
    pub(crate) fn message(&self, text: &str) -> String {
        let place = text.strip_prefix('#').and_then(|text| text.parse().ok());
        let named = place.and_then(|place: usize| self.leases.get(place));
        named.map_or_else(|| text.to_owned(), |(_, id)| id.clone())
    }

    /// Returns how many messages of a queue were confirmed.
    pub(crate) fn confirmed(&self, queue: &str) -> u64 {
        self.confirmed.get(queue).copied().unwrap_or(0)
    }

    /// Checks that every message that came to a queue is in it, or has left it in one way.
    pub(crate) fn balance(&self, name: &str, stats: &QueueStats) {
        let left = stats.acked_total
            + stats.expired_total
            + stats.purged_total
            + stats.damaged_total
            + stats.dead_lettered_total
            + stats.redriven_total;
        let there = stats.ready + stats.delayed + stats.leased;
        assert_eq!(
            stats.enqueued_total,
            stats.depth + left,
            "{name}: {stats:?}"
        );
        assert_eq!(stats.depth, there, "{name}: {stats:?}");
        assert_eq!(stats.damaged_total, 0, "{name}: {stats:?}");
    }
}
