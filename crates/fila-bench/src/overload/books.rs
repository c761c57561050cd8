//! What was promised and what was kept: every message by its producer and number, whether it was confirmed, and whether
//! its acknowledgement was.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::ensure;

/// The producer of few messages, whose time is taken.
pub(super) const QUIET: u64 = 0;

const CONFIRMED: u8 = 1;
const ACKED: u8 = 2;

#[derive(Debug, Default)]
pub(super) struct Books {
    /// What is known of each message, by producer and number.
    messages: HashMap<u64, Vec<u8>>,
    pub(super) confirmed: u64,
    pub(super) acked: u64,
    /// What was refused, by code.
    pub(super) refusals: BTreeMap<String, u64>,
    /// Of these, how many messages of the quiet tenant.
    pub(super) quiet_refused: u64,
    quiet_sent: HashMap<u64, Instant>,
    /// When each message of the quiet tenant was sent, and how long it took to its consumer.
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

    /// Returns how many messages were confirmed and never taken, and how many were taken that were never confirmed.
    pub(super) fn astray(&self) -> (usize, usize) {
        let all = || self.messages.values().flatten();
        let lost = all().filter(|known| **known == CONFIRMED).count();
        (lost, all().filter(|known| **known == ACKED).count())
    }

    /// Returns the times within which half of the quiet tenant's messages came and 99 of 100, of those sent in between.
    pub(super) fn quiet_times(&self, from: Instant, to: Instant) -> Times {
        let within = self.quiet.iter();
        let within = within.filter(|(sent, _)| (from..to).contains(sent));
        let mut times: Vec<Duration> = within.map(|(_, time)| *time).collect();
        times.sort_unstable();
        let at = |percent: usize| {
            let place = (times.len() * percent / 100).min(times.len().saturating_sub(1));
            times.get(place).copied().unwrap_or_default()
        };
        Times {
            count: times.len(),
            p50: at(50),
            p99: at(99),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) count: usize,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}
