//! The results of many messages.

use std::collections::BTreeMap;
use std::time::Duration;

use fila_sdk::{Error, Sent};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{count, duration, rate};

/// How many reasons are counted apart. A refusal may name its message, so there may be as many reasons as messages.
const REASONS_MAX: usize = 100;

/// How many reasons the error names.
const REASONS_NAMED: usize = 3;

#[derive(Debug, Default)]
pub(super) struct Tally {
    stored: u64,
    deduplicated: u64,
    refused: u64,
    reasons: BTreeMap<String, u64>,
}

/// A tally for programs.
#[derive(Debug, Serialize)]
pub(super) struct TallyJson<'a> {
    enqueued: u64,
    deduplicated: u64,
    refused: u64,
    reasons: &'a BTreeMap<String, u64>,
}

impl Tally {
    pub(super) fn add(&mut self, sent: Result<Sent, String>) {
        match sent {
            Ok(sent) if sent.deduplicated => self.deduplicated += 1,
            Ok(_) => self.stored += 1,
            Err(reason) => {
                self.refused += 1;
                let is_known = self.reasons.contains_key(&reason);
                let reason = if is_known || self.reasons.len() < REASONS_MAX {
                    reason
                } else {
                    "other reasons".to_owned()
                };
                *self.reasons.entry(reason).or_default() += 1;
            }
        }
    }

    pub(super) fn json(&self) -> TallyJson<'_> {
        TallyJson {
            enqueued: self.stored,
            deduplicated: self.deduplicated,
            refused: self.refused,
            reasons: &self.reasons,
        }
    }

    /// Returns how many messages were stored, and how fast.
    pub(super) fn summary(&self, queue: &str, time: Duration) -> String {
        let mut text = format!(
            "enqueued {} to queue `{queue}` in {} ({})",
            messages(self.stored),
            duration(time),
            rate(self.stored, time)
        );
        if self.deduplicated > 0 {
            text += &format!("; the queue already had {}", count(self.deduplicated));
        }
        text
    }

    /// Fails if any message was refused.
    pub(super) fn into_result(self) -> Result<(), Failure> {
        if self.refused == 0 {
            return Ok(());
        }
        let all = self.stored + self.deduplicated + self.refused;
        let mut reasons: Vec<(String, u64)> = self.reasons.into_iter().collect();
        reasons.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        let left_out = reasons.len().saturating_sub(REASONS_NAMED);
        reasons.truncate(REASONS_NAMED);
        let mut named: Vec<String> = reasons
            .into_iter()
            .map(|(reason, times)| match times {
                1 => reason,
                times => format!("{reason} ({} times)", count(times)),
            })
            .collect();
        if all == 1 {
            return Err(Failure::Other(anyhow::anyhow!(named.join("; "))));
        }
        if left_out > 0 {
            named.push(format!("and {left_out} other reasons"));
        }
        Err(Failure::Other(anyhow::anyhow!(
            "{} of {} refused: {}",
            count(self.refused),
            messages(all),
            named.join("; ")
        )))
    }

    /// Returns the failure of a run that has stopped early, with its progress.
    pub(super) fn given_up(&self, error: Error) -> Failure {
        let stored = self.stored + self.deduplicated;
        if stored == 0 {
            return error.into();
        }
        Failure::Other(anyhow::anyhow!(
            "stopped after {} that are stored: {error}",
            messages(stored)
        ))
    }
}

fn messages(number: u64) -> String {
    match number {
        1 => "1 message".to_owned(),
        number => format!("{} messages", count(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_named_with_how_often_they_happened() {
        let mut tally = Tally::default();
        for reason in ["large", "full", "large", "x", "y"] {
            tally.add(Err(reason.to_owned()));
        }
        let Err(Failure::Other(error)) = tally.into_result() else {
            panic!("some were refused");
        };
        assert_eq!(
            error.to_string(),
            "5 of 5 messages refused: large (2 times); full; x; and 1 other reasons"
        );
    }

    #[test]
    fn reasons_do_not_grow_with_the_input() {
        let mut tally = Tally::default();
        for number in 0..10_000 {
            tally.add(Err(format!("line {number} is wrong")));
        }
        assert!(tally.reasons.len() <= REASONS_MAX + 1);
        assert_eq!(tally.reasons.values().sum::<u64>(), 10_000);
    }
}
