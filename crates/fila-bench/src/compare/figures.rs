//! The samples: one for each figure, size, contestant and round. Also their medians and ratios.

use std::collections::HashMap;

use lab::{median, thousands};
use serde_json::{Value, json};

use super::contestant::{Contestant, OURS};

/// One kind of figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Metric {
    Produce,
    Lifecycle1,
    Lifecycle4,
    Drain1,
    Drain4,
    P50,
    P90,
    P99,
    P999,
    Recovery,
    DeepRecovery,
    IdleMemory,
    BacklogMemory,
}

impl Metric {
    pub(crate) const RATES: [Self; 5] = [
        Self::Produce,
        Self::Lifecycle1,
        Self::Lifecycle4,
        Self::Drain1,
        Self::Drain4,
    ];
    pub(crate) const LATENCIES: [Self; 4] = [Self::P50, Self::P90, Self::P99, Self::P999];
    pub(crate) const RESTARTS: [Self; 4] = [
        Self::Recovery,
        Self::DeepRecovery,
        Self::IdleMemory,
        Self::BacklogMemory,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Produce => "produce",
            Self::Lifecycle1 => "lifecycle, 1 consumer",
            Self::Lifecycle4 => "lifecycle, 4 consumers",
            Self::Drain1 => "drain, 1 consumer",
            Self::Drain4 => "drain, 4 consumers",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::Recovery => "kill -9 to first delivery, s",
            Self::DeepRecovery => "the same with 1M, s",
            Self::IdleMemory => "idle, MiB",
            Self::BacklogMemory => "with backlog, MiB",
        }
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Produce | Self::Lifecycle1 | Self::Lifecycle4 | Self::Drain1 | Self::Drain4 => {
                "messages/s"
            }
            Self::P50 | Self::P90 | Self::P99 | Self::P999 => "us",
            Self::Recovery | Self::DeepRecovery => "s",
            Self::IdleMemory | Self::BacklogMemory => "MiB",
        }
    }

    /// Formats a figure for people.
    pub(crate) fn show(self, value: f64) -> String {
        match self.unit() {
            "messages/s" | "us" => thousands(value),
            "s" => format!("{value:.2}"),
            _ => format!("{value:.0}"),
        }
    }
}

/// All samples, in the order of the rounds. A failed one is NaN.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    samples: HashMap<(Metric, usize, &'static str), Vec<f64>>,
}

impl Figures {
    pub(crate) fn add(&mut self, metric: Metric, size: usize, contestant: &Contestant, value: f64) {
        let key = (metric, size, contestant.name);
        self.samples.entry(key).or_default().push(value);
    }

    fn samples(&self, metric: Metric, size: usize, name: &'static str) -> &[f64] {
        let samples = self.samples.get(&(metric, size, name));
        samples.map_or(&[], Vec::as_slice)
    }

    /// Returns the median of all rounds.
    pub(crate) fn median(&self, metric: Metric, size: usize, name: &'static str) -> Option<f64> {
        median(self.samples(metric, size, name).iter().copied())
    }

    /// Returns the median of the ratio of our figure to another's in the same round.
    pub(crate) fn ratio(&self, metric: Metric, size: usize, name: &'static str) -> Option<f64> {
        let ours = self.samples(metric, size, OURS);
        let theirs = self.samples(metric, size, name);
        median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs))
    }

    /// Returns all samples as JSON.
    pub(crate) fn json(&self, contestants: &[&'static Contestant], sizes: &[usize]) -> Vec<Value> {
        let mut rows = Vec::new();
        let metrics = Metric::RATES.into_iter().chain(Metric::LATENCIES);
        for metric in metrics.chain(Metric::RESTARTS) {
            for size in sizes {
                for contestant in contestants {
                    let name = contestant.name;
                    let samples = self.samples(metric, *size, name);
                    if samples.is_empty() {
                        continue;
                    }
                    rows.push(json!({
                        "figure": metric.name(),
                        "unit": metric.unit(),
                        "bytes": size,
                        "contestant": name,
                        "median": self.median(metric, *size, name),
                        "fila_fsync_divided_by_it": self.ratio(metric, *size, name),
                        "samples": samples,
                    }));
                }
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::contestant;

    #[test]
    fn ratios_are_of_the_same_round() {
        let [ours, .., theirs] = &contestant::ALL;
        let mut figures = Figures::default();
        // The machine is twice as slow in the second round, and slowest in the third.
        for (a, b) in [(100.0, 50.0), (50.0, 25.0), (20.0, 10.0)] {
            figures.add(Metric::Produce, 64, ours, a);
            figures.add(Metric::Produce, 64, theirs, b);
        }
        assert_eq!(figures.ratio(Metric::Produce, 64, theirs.name), Some(2.0));
        assert_eq!(figures.ratio(Metric::Drain1, 64, theirs.name), None);
    }
}
