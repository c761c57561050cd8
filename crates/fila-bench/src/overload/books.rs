//! The ledger of a scenario: for every message, by its producer and number, whether the server confirmed it and its
//! acknowledgement.

use lab::Latencies;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::ensure;

/// The producer of few messages, whose latency is measured.
pub(super) const QUIET: u64 = 0;

const CONFIRMED: u8 = 1;
const ACKED: u8 = 2;

#[derive(Debug, Default)]
pub(super) struct Books {
    /// The state of each message, by producer and number.
    messages: HashMap<u64, Vec<u8>>,
    pub(super) confirmed: u64,
    pub(super) acked: u64,
    /// The number of refusals, by code.
    pub(super) refusals: BTreeMap<String, u64>,
    /// The number of refusals of the quiet tenant.
    pub(super) quiet_refused: u64,
    quiet_sent: HashMap<u64, Instant>,
    /// When each message of the quiet tenant was sent, and its latency to the consumer.
    pub(super) quiet: Vec<(Instant, Duration)>,
}

impl Books {
    fn mark(&mut self, producer: u64, number: u64, mark: u8) -> u8 {
        let messages = self.messages.entry(producer).or_default();
        let place = number as usize;
        if messages.len() <= place {
            messages.resize(place + 1, 0);
        }
        let known = messages[place];
        messages[place] |= mark;
        known
    }

    pub(super) fn sent(&mut self, producer: u64, number: u64) {
        if producer == QUIET {
            self.quiet_sent.insert(number, Instant::now());
        }
    }

    pub(super) fn confirm(&mut self, producer: u64, number: u64) {
        self.mark(producer, number, CONFIRMED);
        self.confirmed += 1;
    }

    pub(super) fn refuse(&mut self, producer: u64, code: &str) {
        *self.refusals.entry(code.to_owned()).or_default() += 1;
        self.quiet_refused += u64::from(producer == QUIET);
    }

    pub(super) fn deliver(&mut self, producer: u64, number: u64) -> anyhow::Result<()> {
        let known = self.mark(producer, number, 0);
        ensure!(
            known & ACKED == 0,
            "message {number} of producer {producer} is back after its acknowledgement was confirmed"
        );
        if producer == QUIET
            && let Some(sent) = self.quiet_sent.remove(&number)
        {
            self.quiet.push((sent, sent.elapsed()));
        }
        Ok(())
    }

    pub(super) fn ack(&mut self, producer: u64, number: u64) {
        self.mark(producer, number, ACKED);
        self.acked += 1;
    }

    /// Returns how many messages were confirmed and never delivered, and how many were delivered and never confirmed.
    pub(super) fn astray(&self) -> (usize, usize) {
        let all = || self.messages.values().flatten();
        let lost = all().filter(|known| **known == CONFIRMED).count();
        (lost, all().filter(|known| **known == ACKED).count())
    }

    /// Returns the quiet tenant's latency, of the messages sent within this time.
    pub(super) fn quiet_times(&self, from: Instant, to: Instant) -> QuietTimes {
        let within = self.quiet.iter();
        let within = within.filter(|(sent, _)| (from..to).contains(sent));
        let times: Latencies = within.map(|(_, time)| *time).collect();
        QuietTimes {
            count: times.len(),
            p50: times.p50(),
            p99: times.p99(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuietTimes {
    pub(super) count: usize,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}
