//! The figures as tables, for people and for the documentation.

use lab::{Table, thousands};

use super::contestant::{Contestant, OURS};
use super::figures::{Figures, Metric};

/// The scope of a run, for its tables.
#[derive(Debug)]
pub(crate) struct ComparisonReport<'a> {
    pub(crate) figures: &'a Figures,
    pub(crate) contestants: &'a [&'static Contestant],
    pub(crate) sizes: &'a [usize],
    pub(crate) backlog: u64,
}

impl ComparisonReport<'_> {
    pub(crate) fn print(&self) {
        for size in self.sizes {
            let rates = Metric::RATES;
            self.table(
                &format!(
                    "{size} bytes, 256 unconfirmed, 256 in flight for each consumer; messages/s"
                ),
                &rates,
                *size,
            );
            self.ratios("more is better", &rates, *size);
        }
        for size in self.sizes {
            let latencies = Metric::LATENCIES;
            self.table(
                &format!("{size} bytes at 1,000 messages/s, from sent to received; µs"),
                &latencies,
                *size,
            );
            self.ratios("less is better", &latencies, *size);
        }
        let title = format!("{} messages of 1,024 bytes", thousands(self.backlog as f64));
        self.table(&title, &Metric::RESTARTS, 1024);
        self.goals();
    }

    fn table(&self, title: &str, metrics: &[Metric], size: usize) {
        let metrics = self.present(metrics, size);
        if metrics.is_empty() {
            return;
        }
        let header = [""]
            .into_iter()
            .chain(metrics.iter().map(|metric| metric.name()));
        let mut table = Table::new(header);
        for contestant in self.contestants {
            let values = metrics.iter().map(|metric| {
                let value = self.figures.median(*metric, size, contestant.name);
                value.map_or_else(|| "–".to_owned(), |value| metric.show(value))
            });
            table.row([contestant.name.to_owned()].into_iter().chain(values));
        }
        println!("\n{title}\n\n{table}");
    }

    /// Prints the ratios of Fila to each of the others.
    fn ratios(&self, sense: &str, metrics: &[Metric], size: usize) {
        let metrics = self.present(metrics, size);
        let others = self.contestants.iter().filter(|it| it.name != OURS);
        let title = format!("{OURS} ÷");
        let header = [title.as_str()].into_iter();
        let mut table = Table::new(header.chain(metrics.iter().map(|metric| metric.name())));
        for contestant in others {
            let ratio = |metric: &Metric| self.figures.ratio(*metric, size, contestant.name);
            let ratios: Vec<_> = metrics.iter().map(ratio).collect();
            if ratios.iter().any(Option::is_some) {
                let show = |ratio: Option<f64>| {
                    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
                };
                let name = [contestant.name.to_owned()].into_iter();
                table.row(name.chain(ratios.into_iter().map(show)));
            }
        }
        if !table.is_empty() {
            println!("\n{OURS} divided by each, in the same round; {sense}\n\n{table}");
        }
    }

    /// Returns the figures that at least one contestant has.
    fn present(&self, metrics: &[Metric], size: usize) -> Vec<Metric> {
        let has = |metric: &Metric| {
            let mut contestants = self.contestants.iter();
            contestants.any(|it| self.figures.median(*metric, size, it.name).is_some())
        };
        metrics.iter().copied().filter(has).collect()
    }

    /// Prints the goals, and whether this run reached them.
    fn goals(&self) {
        let goals = self.rate_goals().chain(self.latency_goals());
        let mut table = Table::new(["goal, 1 KiB", "is", "reached"]);
        for goal in goals.chain(self.restart_goals()) {
            if let Some(value) = goal.value {
                let is_reached = match goal.bound {
                    TargetBound::AtLeast(bound) => value >= bound,
                    TargetBound::AtMost(bound) => value <= bound,
                };
                let reached = if is_reached { "yes" } else { "no" };
                let value = format!("{value:.2}{}", goal.unit);
                table.row([goal.text, value, reached.to_owned()]);
            }
        }
        if !table.is_empty() {
            println!("\n{table}");
        }
    }

    fn rate_goals(&self) -> impl Iterator<Item = Target> {
        let peers = [
            ("nats", 1.5),
            ("redis-always", 1.5),
            ("rabbit-quorum", 1.5),
            ("redis-everysec", 1.0),
        ];
        peers.into_iter().flat_map(move |(name, bound)| {
            Metric::RATES.into_iter().map(move |metric| Target {
                text: format!("{} at least {bound}× {name}", metric.name()),
                value: self.figures.ratio(metric, 1024, name),
                unit: "×",
                bound: TargetBound::AtLeast(bound),
            })
        })
    }

    fn latency_goals(&self) -> impl Iterator<Item = Target> {
        let of = |metric, name| self.figures.median(metric, 1024, name);
        let p50 = of(Metric::P50, "fila-os").zip(of(Metric::P50, "nats"));
        let goals = [
            (
                "p99 at 1,000/s no worse than nats",
                self.figures.ratio(Metric::P99, 1024, "nats"),
            ),
            (
                "p50 of fila-os no worse than nats",
                p50.map(|(ours, theirs)| ours / theirs),
            ),
        ];
        goals.into_iter().map(|(text, value)| Target {
            text: text.to_owned(),
            value,
            unit: "×",
            bound: TargetBound::AtMost(1.0),
        })
    }

    fn restart_goals(&self) -> impl Iterator<Item = Target> {
        let goals = [
            (
                "first delivery after kill -9 within 0.5 s",
                Metric::Recovery,
                " s",
                0.5,
            ),
            (
                "the same with 1M within 3 s",
                Metric::DeepRecovery,
                " s",
                3.0,
            ),
            ("idle within 30 MiB", Metric::IdleMemory, " MiB", 30.0),
        ];
        goals
            .into_iter()
            .map(move |(text, metric, unit, bound)| Target {
                text: text.to_owned(),
                value: self.figures.median(metric, 1024, OURS),
                unit,
                bound: TargetBound::AtMost(bound),
            })
    }
}

/// A target for a figure.
struct Target {
    text: String,
    /// The measured figure, if this run has it.
    value: Option<f64>,
    unit: &'static str,
    bound: TargetBound,
}

enum TargetBound {
    AtLeast(f64),
    AtMost(f64),
}
