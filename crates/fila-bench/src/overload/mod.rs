//! Overloads the server in many ways and checks that memory stays bounded, refusals have a code, a quiet tenant is served,
//! no confirmed message is lost, and the server recovers.
//!
//! Each scenario has its own server, the real program with `fsync`. The exit code is 1 if a bound is broken.

mod books;
mod idle;
mod scenarios;
mod traffic;
mod trial;

use std::time::Duration;

use anyhow::bail;
use tokio::task::LocalSet;

use self::trial::TrialReport;

#[derive(Debug, clap::Args)]
pub(crate) struct OverloadArguments {
    /// A short run: a tenth of everything, about a minute
    #[arg(long)]
    quick: bool,
    /// Only the scenario of this name; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrialScale {
    pub(super) is_quick: bool,
}

impl TrialScale {
    pub(super) const fn of(self, full: u64) -> u64 {
        if self.is_quick { full / 10 } else { full }
    }

    pub(super) const fn time(self, full: u64) -> Duration {
        let millis = if self.is_quick {
            full * 100
        } else {
            full * 1000
        };
        Duration::from_millis(millis)
    }
}

pub(crate) async fn run(arguments: OverloadArguments) -> anyhow::Result<()> {
    let scale = TrialScale {
        is_quick: arguments.quick,
    };
    let names = scenarios::NAMES;
    for name in &arguments.only {
        if !names.contains(&name.as_str()) {
            bail!(
                "there is no scenario `{name}`; choose of {}",
                names.join(", ")
            );
        }
    }
    let chosen =
        |name: &&&str| arguments.only.is_empty() || arguments.only.iter().any(|it| it == **name);
    let mut broken = 0;
    println!("{HEAD}");
    for name in names.iter().filter(chosen) {
        // Dropping the set ends the tasks that are left when a scenario has ended.
        let report = LocalSet::new()
            .run_until(scenarios::play(name, scale))
            .await;
        match report {
            Ok(report) => {
                print(&report);
                broken += report.faults.len();
            }
            Err(error) => {
                println!("| {name} | BROKEN: {error:#} |");
                broken += 1;
            }
        }
    }
    if broken > 0 {
        bail!("{broken} bounds were broken");
    }
    Ok(())
}

const HEAD: &str = "\
| scenario | what was done | memory idle / most / after (allowed) | refusals | quiet p50, p99 calm | quiet p50, p99 loaded | confirmed = taken | as before after |
|---|---|---|---|---|---|---|---|";

fn print(report: &TrialReport) {
    let [idle, peak, after, allowed] = report.memory;
    let refusals = report.refusals.iter();
    let refusals: Vec<String> = refusals
        .map(|(code, times)| format!("{code} {times}"))
        .collect();
    let refusals = match refusals.is_empty() {
        true => "none".to_owned(),
        false => refusals.join(", "),
    };
    let recovered = report.recovered.map_or_else(
        || "never".to_owned(),
        |time| format!("{:.1} s", time.as_secs_f64()),
    );
    let millis = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    let times = |times: trial::QuietTimes| format!("{}, {}", millis(times.p50), millis(times.p99));
    println!(
        "| {} | {} | {idle} / {peak} / {after} MiB ({allowed}) | {refusals} | {} | {} | {} | {recovered} |",
        report.name,
        report.done,
        times(report.calm),
        times(report.loaded),
        report.confirmed,
    );
    for fault in &report.faults {
        println!("  BROKEN: {}: {fault}", report.name);
    }
}
