//! Measures Firq beside the published crate of the same name, and beside plain queues without fairness.
//!
//! Machines are shared and noisy. So the bench takes every figure in the same run as the figures it is compared with, in
//! alternating samples where possible, and reports ratios.
//!
//! ```text
//! cargo run --release -p firq-bench
//! cargo run --release -p firq-bench -- http
//! cargo run --release -p firq-bench -- pair --json
//! ```

mod adversity;
mod asynchronous;
mod contenders;
mod http;
mod law;
mod memory;
mod noisy;
mod pair;
mod report;
mod shards;
mod threads;

use std::process::ExitCode;

use report::Report;

const USAGE: &str = "\
usage: firq-bench [SCENARIO...] [--quick] [--json] [--svg FILE]

scenarios (all, if none is named):
  pair       one thread: nanoseconds per enqueue and dequeue
  threads    producers and consumers on threads of their own
  shards     contention over shards, and a hot tenant
  noisy      what quiet tenants see beside one that floods
  law        the same beside an equal load without a flood, for Firq and shardqueue, as ratios
  adversity  deep costs, mass expiry, mass cancellation
  memory     bytes per task and per tenant
  async      Tokio: throughput and wake-ups
  http       an Axum server under load: throughput, a noisy neighbour, overload

--quick      just see that everything runs
--json       results for programs
--svg FILE   draws the tail latency of each tenant of `http`
--scenario S the same as S";

/// How long a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Enough for figures to compare.
    Full,
    /// Enough to see that everything runs.
    Quick,
}

/// The results of one scenario.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) reports: Vec<Report>,
    pub(crate) chart: Option<lab::BarChart>,
}

impl From<Vec<Report>> for Results {
    fn from(reports: Vec<Report>) -> Self {
        Self {
            reports,
            chart: None,
        }
    }
}

type Scenario = (&'static str, fn(Effort) -> Results);

const SCENARIOS: [Scenario; 9] = [
    ("pair", |effort| pair::run(effort).into()),
    ("threads", |effort| threads::run(effort).into()),
    ("shards", |effort| shards::run(effort).into()),
    ("noisy", |effort| noisy::run(effort).into()),
    ("law", |effort| law::run(effort).into()),
    ("adversity", |effort| adversity::run(effort).into()),
    ("memory", |effort| memory::run(effort).into()),
    ("async", |effort| asynchronous::run(effort).into()),
    ("http", http::run),
];

/// The arguments of the command line.
#[derive(Debug)]
struct Options {
    /// The scenarios to run; all if empty.
    chosen: Vec<String>,
    effort: Effort,
    is_json: bool,
    svg: Option<String>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            chosen: Vec::new(),
            effort: Effort::Full,
            is_json: false,
            svg: None,
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--scenario" => {
                    let name = arguments.next().ok_or("--scenario needs a name")?;
                    options.chosen.push(name);
                }
                "--svg" => options.svg = Some(arguments.next().ok_or("--svg needs a file")?),
                "--quick" => options.effort = Effort::Quick,
                "--json" => options.is_json = true,
                other if other.starts_with('-') => {
                    return Err(format!("`{other}` is not an option"));
                }
                name => options.chosen.push(name.to_owned()),
            }
        }
        options.chosen.retain(|name| name != "all");
        let is_known = |name: &&String| SCENARIOS.iter().any(|(known, _)| known == name);
        match options.chosen.iter().find(|name| !is_known(name)) {
            Some(unknown) => Err(format!("there is no scenario `{unknown}`")),
            None => Ok(options),
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.chosen.is_empty() || self.chosen.iter().any(|chosen| chosen == name)
    }
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help" || argument == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match Options::parse(std::env::args().skip(1)) {
        Ok(options) => run(&options),
        Err(why) => refuse(&why),
    }
}

fn run(options: &Options) -> ExitCode {
    let mut all = Vec::new();
    for (name, run) in SCENARIOS {
        if !options.wants(name) {
            continue;
        }
        let results = run(options.effort);
        if !options.is_json {
            results.reports.iter().for_each(|report| print!("{report}"));
        }
        if let Some(chart) = results.chart {
            if !options.is_json {
                println!("{chart}");
            }
            if let Some(path) = &options.svg
                && let Err(error) = std::fs::write(path, chart.to_svg())
            {
                eprintln!("cannot write {path}: {error}");
                return ExitCode::FAILURE;
            }
        }
        all.extend(results.reports);
    }
    if options.is_json {
        println!("{}", report::to_json(&all));
    }
    ExitCode::SUCCESS
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}\n{USAGE}");
    ExitCode::from(2)
}
