//! The output: tables, JSON, and pictures.

use std::path::Path;

use anyhow::Context;
use serde_json::json;

use super::Bench;
use super::figures::Metric;
use super::plot;
use super::report::ComparisonReport;

impl Bench {
    /// Prints the tables, and writes the files that the arguments name.
    pub(super) fn report(&self) -> anyhow::Result<()> {
        let report = ComparisonReport {
            figures: &self.figures,
            contestants: &self.contestants,
            sizes: &self.arguments.size,
            backlog: self.arguments.scaled(self.arguments.backlog),
        };
        println!(
            "{} messages in each piece of work, median of {} rounds; clients on {} threads",
            lab::thousands(self.arguments.load(0).messages as f64),
            self.arguments.rounds(),
            self.arguments.threads
        );
        report.print();
        self.fairness.print();
        if let Some(file) = &self.arguments.json {
            let text = format!("{:#}\n", self.json());
            std::fs::write(file, text).with_context(|| file.display().to_string())?;
        }
        if let Some(directory) = &self.arguments.svg {
            self.draw(directory)?;
        }
        Ok(())
    }

    fn json(&self) -> serde_json::Value {
        let contestants = self.contestants.iter().map(|contestant| {
            json!({
                "name": contestant.name,
                "version": contestant.version().ok(),
                "setting": contestant.setting,
                "confirmed": contestant.confirms,
                "survives": contestant.survives,
            })
        });
        json!({
            "contestants": contestants.collect::<Vec<_>>(),
            "messages": self.arguments.load(0).messages,
            "backlog": self.arguments.scaled(self.arguments.backlog),
            "rounds": self.arguments.rounds(),
            "client_threads": self.arguments.threads,
            "figures": self.figures.json(&self.contestants, &self.arguments.size),
            "fairness": self.fairness.json(),
        })
    }

    fn draw(&self, directory: &Path) -> anyhow::Result<()> {
        let groups = |metrics: &[Metric]| {
            let group = |&metric| plot::group(&self.figures, metric, 1024, &self.contestants);
            metrics.iter().map(group).collect()
        };
        std::fs::create_dir_all(directory)?;
        for (file, title, metrics) in [
            (
                "compare-speed.svg",
                "Messages a second: server, clients and disk on one machine",
                Metric::RATES.as_slice(),
            ),
            (
                "compare-latency.svg",
                "From sent to received at 1,000 messages a second",
                &[Metric::P50, Metric::P99, Metric::P999],
            ),
        ] {
            let path = directory.join(file);
            let picture = plot::draw(title, groups(metrics));
            std::fs::write(&path, picture).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}
