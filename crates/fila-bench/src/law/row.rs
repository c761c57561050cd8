//! A row of the table: the medians of its rounds, and the verdict.

use std::collections::BTreeMap;

use lab::{Latencies, median, thousands};

use super::noise::{Noise, NoiseCounts};
use super::round::{Aim, RoundResult};
use crate::honest::HonestFigures;

/// How much longer the p99 of the quiet tenants may be with the attack.
const RATIO_MAX: f64 = 1.10;

#[derive(Debug)]
pub(super) struct LawRow {
    noise: Noise,
    /// The rounds with the attack and those without it.
    with: Vec<HonestFigures>,
    without: Vec<HonestFigures>,
    counts: NoiseCounts,
}

/// The latency that a column shows.
#[derive(Clone, Copy, Debug)]
enum Leg {
    Enqueue,
    Deliver,
}

impl LawRow {
    pub(super) const HEADER: [&'static str; 8] = [
        "noisy tenant",
        "it sent",
        "refused",
        "refusals of quiet tenants",
        "lost keys",
        "enqueue p50, p99: without → with, ms",
        "deliver p50, p99: without → with, ms",
        "verdict",
    ];

    pub(super) fn new(noise: Noise) -> Self {
        Self {
            noise,
            with: Vec::new(),
            without: Vec::new(),
            counts: NoiseCounts::default(),
        }
    }

    pub(super) fn add(&mut self, aim: Aim, result: RoundResult) {
        match aim {
            Aim::Noisy => {
                self.with.push(result.quiet);
                self.counts.add(result.noise);
            }
            Aim::Decoy => self.without.push(result.quiet),
        }
    }

    /// Returns the refusals of the quiet tenants by code, in the rounds with the attack.
    fn refusals(&self) -> BTreeMap<&str, u64> {
        let mut refusals = BTreeMap::new();
        for (code, times) in self.with.iter().flat_map(|round| &round.refusals) {
            *refusals.entry(code.as_str()).or_default() += times;
        }
        refusals
    }

    fn lost_keys(&self) -> u64 {
        self.with.iter().map(|round| round.lost_keys).sum()
    }

    /// Returns a percentile of a leg in milliseconds, without the attack and with it: the medians of the rounds.
    fn times(&self, leg: Leg, part: f64) -> [Option<f64>; 2] {
        [&self.without, &self.with].map(|rounds| {
            let times = rounds.iter().map(|round| {
                let times: &Latencies = match leg {
                    Leg::Enqueue => &round.enqueue,
                    Leg::Deliver => &round.deliver,
                };
                times.percentile(part).as_secs_f64() * 1e3
            });
            median(times)
        })
    }

    /// Returns by how much the p99 of a leg is longer with the attack; nothing after a short run.
    fn ratio(&self, leg: Leg) -> Option<f64> {
        let [without, with] = self.times(leg, 0.99);
        Some(with? / without?)
    }

    fn is_refusal_free(&self) -> bool {
        let is_served = |round: &HonestFigures| !round.deliver.is_empty();
        self.refusals().is_empty() && self.lost_keys() == 0 && self.with.iter().all(is_served)
    }

    pub(super) fn holds(&self) -> bool {
        let mut ratios = [Leg::Enqueue, Leg::Deliver].into_iter();
        self.is_refusal_free()
            && ratios.all(|leg| self.ratio(leg).is_none_or(|ratio| ratio <= RATIO_MAX))
    }

    pub(super) fn verdict(&self) -> String {
        if !self.is_refusal_free() {
            return "broken: refusals, or lost keys".to_owned();
        }
        let ratios = [Leg::Enqueue, Leg::Deliver].map(|leg| self.ratio(leg));
        match ratios {
            [Some(enqueue), Some(deliver)] => {
                let word = if self.holds() { "holds" } else { "broken" };
                format!("{word}: p99 × {enqueue:.2} and × {deliver:.2}")
            }
            _ => "no refusals".to_owned(),
        }
    }

    pub(super) fn cells(&self) -> Vec<String> {
        let refused = self.counts.refused.values().sum::<u64>();
        let codes = self.counts.refused.iter().max_by_key(|(_, times)| **times);
        let times = |leg| {
            let [p50, p99] = [0.5, 0.99].map(|part| self.times(leg, part));
            let shown = |time: Option<f64>| {
                time.map_or_else(|| "–".to_owned(), |time| format!("{time:.1}"))
            };
            let side = |side: usize| format!("{}, {}", shown(p50[side]), shown(p99[side]));
            format!("{} → {}", side(0), side(1))
        };
        let refusals = self.refusals();
        let refusals: Vec<_> = refusals
            .iter()
            .map(|(code, n)| format!("{n} {code}"))
            .collect();
        vec![
            self.noise.name(),
            thousands(self.counts.sent as f64),
            match codes {
                None => "0".to_owned(),
                Some((code, _)) => format!("{}, most {code}", thousands(refused as f64)),
            },
            match refusals.as_slice() {
                [] => "0".to_owned(),
                some => some.join(", "),
            },
            self.lost_keys().to_string(),
            times(Leg::Enqueue),
            times(Leg::Deliver),
            self.verdict(),
        ]
    }
}
