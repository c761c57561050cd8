//! The law of the noisy tenant, as a table: one tenant sends a hundred times what it may, over 1, 100 and 1,000
//! submitters, with short and long work, and fails all of it where work can fail. The others must see no refusal and at
//! most a tenth more p99 than under the same load of the machine without it.
//!
//! *The same load* is a neighbour that keeps the server as busy and floods nothing, while the same submitters flood a
//! second instance that serves as little of it. Both sides take turns, and the table has the median of each.

mod executor;
mod scheduler;

use std::time::{Duration, Instant};

use firq_core::BackpressurePolicy;
use lab::Latencies;

use crate::Effort;
use crate::report::{Cell, Report};

/// Quiet tenants, which send one piece of work after another in turns.
const QUIET: u64 = 9;
const NOISY: u64 = QUIET;

/// How long a quiet tenant's work takes.
const QUIET_WORK: Duration = Duration::from_micros(100);

const SUBMITTERS: [u32; 3] = [1, 100, 1_000];

/// The load beside the quiet tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// A tenant that always has two pieces of work queued. The flood goes to another instance.
    Neighbour,
    Flood,
}

/// How the noisy tenant floods.
#[derive(Clone, Copy, Debug)]
struct Attack {
    submitters: u32,
    /// How long one piece of its work takes.
    work: Duration,
}

impl Attack {
    /// Returns how often each submitter sends, and how much each time: a hundred times the noisy tenant's share in all.
    fn pace(self) -> (Duration, u32) {
        let pause = Duration::from_millis(10) * self.submitters.min(10);
        let share = pause.as_secs_f64() / self.work.as_secs_f64() / (QUIET + 1) as f64;
        let each = 100.0 * share / f64::from(self.submitters);
        (pause, (each as u32).max(1))
    }

    /// Returns the pause before a piece of quiet work: together they use at most a fifth of the server. Pauses differ, so
    /// that they do not keep step with the noisy work.
    fn quiet_pause(self, number: u32) -> Duration {
        let usual = (5 * QUIET_WORK).max(self.work);
        usual / 2 + usual * (number * 5 % 8) / 8
    }
}

/// What the quiet tenants saw.
#[derive(Debug, Default)]
struct QuietView {
    waits: Vec<Duration>,
    refused: u64,
}

impl QuietView {
    fn p99(self) -> f64 {
        let waits: Latencies = self.waits.into_iter().collect();
        waits.percentile(0.99).as_secs_f64() * 1e3
    }
}

/// Measures one side for a while.
type Measure = fn(Attack, Beside, Duration) -> QuietView;

const SYSTEMS: [(&str, Measure); 4] = [
    ("Firq, ShedFair", |attack, beside, time| {
        scheduler::measure(BackpressurePolicy::ShedFair, attack, beside, time)
    }),
    ("Firq, Reject", |attack, beside, time| {
        scheduler::measure(BackpressurePolicy::Reject, attack, beside, time)
    }),
    ("shardqueue, key backs off", |attack, beside, time| {
        executor::measure(executor::Failure::Retried, attack, beside, time)
    }),
    ("shardqueue, key never backs off", |attack, beside, time| {
        executor::measure(executor::Failure::Permanent, attack, beside, time)
    }),
];

pub(crate) fn run(effort: Effort) -> Vec<Report> {
    let (time, rounds) = match effort {
        Effort::Full => (Duration::from_secs(2), 5),
        Effort::Quick => (Duration::from_millis(60), 1),
    };
    let mut rows = Vec::new();
    for (system, measure) in SYSTEMS {
        for work in [QUIET_WORK, Duration::from_millis(5)] {
            for submitters in SUBMITTERS {
                let attack = Attack { submitters, work };
                rows.push(row(system, measure, attack, (time, rounds)));
            }
        }
    }
    vec![Report {
        title:
            "The law: what nine quiet tenants see beside one that sends a hundred times what it may"
                .to_owned(),
        note: "p99 in ms from sending to the begin of the work, median of the rounds. \
               Without: a neighbour keeps the server as busy, and the same submitters flood another instance. \
               Work of shardqueue's noisy key fails; a key that backs off leaves the server idle. Wanted: nothing quiet refused, ratio at most 1.10.",
        columns: vec![
            "system",
            "noisy work ms",
            "submitters",
            "quiet refused",
            "p99 without",
            "p99 with",
            "ratio",
        ],
        rows,
    }]
}

fn row(
    system: &str,
    measure: Measure,
    attack: Attack,
    (time, rounds): (Duration, usize),
) -> Vec<Cell> {
    let (mut without, mut with, mut refused) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        without.push(measure(attack, Beside::Neighbour, time).p99());
        let view = measure(attack, Beside::Flood, time);
        refused += view.refused;
        with.push(view.p99());
    }
    let median = |rounds: Vec<f64>| lab::median(rounds).unwrap_or(f64::NAN);
    let (without, with) = (median(without), median(with));
    vec![
        Cell::text(system),
        Cell::Number(attack.work.as_secs_f64() * 1e3, 1),
        Cell::count(attack.submitters as usize),
        Cell::count(refused as usize),
        Cell::Number(without, 3),
        Cell::Number(with, 3),
        Cell::Number(with / without, 2),
    ]
}

/// Works: the server is busy, not asleep.
fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}
