//! Firq measured beside the crate of the same name that is published today, and beside floors that are fair
//! to nobody. Machines are shared and noisy: every figure is taken in the same run as those it is compared
//! with, in alternating samples where that is possible, and what counts is the ratio.
//!
//! ```text
//! cargo run --release -p firq-bench -- --scenario all
//! cargo run --release -p firq-bench -- --scenario pair --json
//! ```

mod adversity;
mod contenders;
mod memory;
mod noisy;
mod pair;
mod table;
mod threads;

use std::process::ExitCode;

use table::Table;

const USAGE: &str =
    "usage: firq-bench [--scenario all|pair|threads|noisy|adversity|memory] [--quick] [--json]";

/// How much patience a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Enough for figures to compare.
    Full,
    /// Enough to see that everything runs.
    Quick,
}

type Scenario = (&'static str, fn(Effort) -> Vec<Table>);

const SCENARIOS: [Scenario; 5] = [
    ("pair", pair::run),
    ("threads", threads::run),
    ("noisy", noisy::run),
    ("adversity", adversity::run),
    ("memory", memory::run),
];

fn main() -> ExitCode {
    let mut chosen = "all".to_owned();
    let mut effort = Effort::Full;
    let mut json = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--scenario" => match arguments.next() {
                Some(name) => chosen = name,
                None => return refuse("--scenario needs a name"),
            },
            "--quick" => effort = Effort::Quick,
            "--json" => json = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            other => return refuse(&format!("`{other}` is not an option")),
        }
    }
    let scenarios: Vec<Scenario> = SCENARIOS
        .into_iter()
        .filter(|(name, _)| chosen == "all" || chosen == *name)
        .collect();
    if scenarios.is_empty() {
        return refuse(&format!("there is no scenario `{chosen}`"));
    }
    let mut all = Vec::new();
    for (_, run) in scenarios {
        for table in run(effort) {
            if !json {
                println!("{table}");
            }
            all.push(table);
        }
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
