//! Firq measured beside the crate of the same name that is published today, and beside floors that are fair
//! to nobody. Machines are shared and noisy: every figure is taken in the same run as those it is compared
//! with, in alternating samples where that is possible, and what counts is the ratio.
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
mod memory;
mod noisy;
mod pair;
mod shards;
mod statistics;
mod table;
mod threads;

use std::process::ExitCode;

use table::Table;

const USAGE: &str = "\
usage: firq-bench [SCENARIO...] [--quick] [--json] [--svg FILE]

scenarios (all, if none is named):
  pair       one thread: nanoseconds per enqueue and dequeue
  threads    producers and consumers on threads of their own
  shards     contention over shards, and a hot tenant
  noisy      what quiet tenants see beside one that floods
  adversity  deep costs, mass expiry, mass cancellation
  memory     bytes per task and per tenant
  async      Tokio: throughput and wake-ups
  http       an Axum server under load: throughput, a noisy neighbour, overload

--quick      just see that everything runs
--json       results for programs
--svg FILE   draws the tail latency of each tenant of `http`
--scenario S the same as S";

/// How much patience a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Enough for figures to compare.
    Full,
    /// Enough to see that everything runs.
    Quick,
}

/// What one scenario has to show: figures, and pictures of some.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) tables: Vec<Table>,
    pub(crate) bars: Option<http::bars::Bars>,
}

impl From<Vec<Table>> for Results {
    fn from(tables: Vec<Table>) -> Self {
        Self { tables, bars: None }
    }
}

type Scenario = (&'static str, fn(Effort) -> Results);

const SCENARIOS: [Scenario; 8] = [
    ("pair", |effort| pair::run(effort).into()),
    ("threads", |effort| threads::run(effort).into()),
    ("shards", |effort| shards::run(effort).into()),
    ("noisy", |effort| noisy::run(effort).into()),
    ("adversity", |effort| adversity::run(effort).into()),
    ("memory", |effort| memory::run(effort).into()),
    ("async", |effort| asynchronous::run(effort).into()),
    ("http", http::run),
];

fn main() -> ExitCode {
    let mut chosen: Vec<String> = Vec::new();
    let mut effort = Effort::Full;
    let mut json = false;
    let mut svg = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--scenario" => match arguments.next() {
                Some(name) => chosen.push(name),
                None => return refuse("--scenario needs a name"),
            },
            "--svg" => match arguments.next() {
                Some(path) => svg = Some(path),
                None => return refuse("--svg needs a file"),
            },
            "--quick" => effort = Effort::Quick,
            "--json" => json = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            other if other.starts_with('-') => {
                return refuse(&format!("`{other}` is not an option"));
            }
            name => chosen.push(name.to_owned()),
        }
    }
    chosen.retain(|name| name != "all");
    let is_known = |name: &String| SCENARIOS.iter().any(|(known, _)| known == name);
    if let Some(unknown) = chosen.iter().find(|name| !is_known(name)) {
        return refuse(&format!("there is no scenario `{unknown}`"));
    }
    let mut all = Vec::new();
    for (name, run) in SCENARIOS {
        if !chosen.is_empty() && !chosen.iter().any(|chosen| chosen == name) {
            continue;
        }
        let results = run(effort);
        if !json {
            results.tables.iter().for_each(|table| println!("{table}"));
        }
        if let Some(bars) = results.bars {
            if !json {
                println!("{bars}");
            }
            if let Some(path) = &svg
                && let Err(error) = std::fs::write(path, bars.to_svg())
            {
                eprintln!("cannot write {path}: {error}");
                return ExitCode::FAILURE;
            }
        }
        all.extend(results.tables);
    }
    if json {
        println!("{}", table::to_json(&all));
    }
    ExitCode::SUCCESS
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}\n{USAGE}");
    ExitCode::from(2)
}
