//! The figures as tables, for people and for the documentation.

use super::contestant::{Contestant, OURS};
use super::figures::{Figures, Metric};

/// What is measured here, for its tables.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) figures: &'a Figures,
    pub(crate) contestants: &'a [&'static Contestant],
    pub(crate) sizes: &'a [usize],
    pub(crate) backlog: u64,
}

impl Report<'_> {
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
        let title = format!(
            "{} messages of 1,024 bytes",
            super::figures::thousands(self.backlog as f64)
        );
        self.table(&title, &Metric::RESTARTS, 1024);
        self.goals();
    }

    fn table(&self, title: &str, metrics: &[Metric], size: usize) {
        let metrics = self.present(metrics, size);
        if metrics.is_empty() {
            return;
        }
        let mut header = vec![""];
        header.extend(metrics.iter().map(|metric| metric.name()));
        let rows = self.contestants.iter().map(|contestant| {
            let mut row = vec![contestant.name.to_owned()];
            row.extend(metrics.iter().map(|metric| {
                let value = self.figures.median(*metric, size, contestant.name);
                value.map_or_else(|| "–".to_owned(), |value| metric.show(value))
            }));
            row
        });
        println!(
            "\n{title}\n\n{}",
            markdown(&header, &rows.collect::<Vec<_>>())
        );
    }

    /// Prints how we compare with each of the others.
    fn ratios(&self, sense: &str, metrics: &[Metric], size: usize) {
        let metrics = self.present(metrics, size);
        let others = self.contestants.iter().filter(|it| it.name != OURS);
        let rows = others.filter_map(|contestant| {
            let mut row = vec![contestant.name.to_owned()];
            let ratios = metrics.iter().map(|metric| {
                let ratio = self.figures.ratio(*metric, size, contestant.name);
                ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
            });
            row.extend(ratios);
            row[1..].iter().any(|cell| cell != "–").then_some(row)
        });
        let rows: Vec<_> = rows.collect();
        if !rows.is_empty() {
            let title = format!("{OURS} ÷");
            let mut header = vec![title.as_str()];
            header.extend(metrics.iter().map(|metric| metric.name()));
            println!(
                "\n{OURS} divided by each, in the same round; {sense}\n\n{}",
                markdown(&header, &rows)
            );
        }
    }

    /// Returns the figures that somebody has.
    fn present(&self, metrics: &[Metric], size: usize) -> Vec<Metric> {
        let has = |metric: &Metric| {
            let mut contestants = self.contestants.iter();
            contestants.any(|it| self.figures.median(*metric, size, it.name).is_some())
        };
        metrics.iter().copied().filter(has).collect()
    }

    /// Prints what was aimed at, and whether it is reached.
    fn goals(&self) {
        let mut rows = Vec::new();
        let mut goal = |goal: String,
                        value: Option<f64>,
                        unit: &str,
                        holds: fn(f64, f64) -> bool,
                        bound: f64| {
            if let Some(value) = value {
                let reached = if holds(value, bound) { "yes" } else { "no" };
                rows.push(vec![goal, format!("{value:.2}{unit}"), reached.to_owned()]);
            }
        };
        let at_least: fn(f64, f64) -> bool = |value, bound| value >= bound;
        let at_most: fn(f64, f64) -> bool = |value, bound| value <= bound;
        for (names, bound) in [
            (["nats", "redis-always", "rabbit-quorum"].as_slice(), 1.5),
            (&["redis-everysec"], 1.0),
        ] {
            for name in names {
                for metric in Metric::RATES {
                    let text = format!("{} at least {bound}× {name}", metric.name());
                    goal(
                        text,
                        self.figures.ratio(metric, 1024, name),
                        "×",
                        at_least,
                        bound,
                    );
                }
            }
        }
        let p99 = self.figures.ratio(Metric::P99, 1024, "nats");
        goal(
            "p99 at 1,000/s no worse than nats".to_owned(),
            p99,
            "×",
            at_most,
            1.0,
        );
        let of = |metric, name| self.figures.median(metric, 1024, name);
        let p50 = of(Metric::P50, "fila-os").zip(of(Metric::P50, "nats"));
        let p50 = p50.map(|(ours, theirs)| ours / theirs);
        goal(
            "p50 of fila-os no worse than nats".to_owned(),
            p50,
            "×",
            at_most,
            1.0,
        );
        for (text, metric, unit, bound) in [
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
        ] {
            goal(text.to_owned(), of(metric, OURS), unit, at_most, bound);
        }
        if !rows.is_empty() {
            println!("\n{}", markdown(&["goal, 1 KiB", "is", "reached"], &rows));
        }
    }
}

/// Writes a table as Markdown whose columns are aligned: numbers at their end, words at their beginning.
pub(crate) fn markdown(header: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let is_number = |cell: &String| {
        cell.is_empty() || cell.starts_with(['–', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'])
    };
    let columns: Vec<(usize, bool)> = (0..header.len())
        .map(|column| {
            let widest = cells(column).map(|cell| cell.chars().count()).max();
            let width = widest.unwrap_or(0).max(header[column].chars().count());
            (width, column > 0 && cells(column).all(is_number))
        })
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells
            .zip(&columns)
            .map(|(cell, (width, is_number))| match is_number {
                true => format!(" {cell:>width$} "),
                false => format!(" {cell:<width$} "),
            });
        format!("|{}|\n", cells.collect::<Vec<_>>().join("|"))
    };
    let mut text = line(&mut header.iter().copied());
    let rule = columns.iter().map(|(width, is_number)| match is_number {
        true => format!("{}:", "-".repeat(width + 1)),
        false => "-".repeat(width + 2),
    });
    text.push_str(&format!("|{}|\n", rule.collect::<Vec<_>>().join("|")));
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_is_markdown() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["µs", "1", "yes"]), row(["b", "1,000", "no"])];
        let expected = "| a  |     n | is  |\n|----|------:|-----|\n| µs |     1 | yes |\n| b  | 1,000 | no  |\n";
        assert_eq!(markdown(&["a", "n", "is"], &rows), expected);
    }
}
