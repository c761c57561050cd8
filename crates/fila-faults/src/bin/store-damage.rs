//! Damages the files of a store, a thousand times; see `scripts/store-damage`.

use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use fila_faults::damage::{self, CASES_PER_WORK, DamageOutcome, DamageTally};

/// Plays random work on a store, damages its files, and looks whether a loss is ever silent.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many cases
    #[arg(long, default_value_t = 1_000)]
    count: usize,
    /// What all chance comes from; another one each time if it is not given
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("{} damaged stores from seed {seed}", arguments.count);
    let started = Instant::now();
    let mut tally = DamageTally::default();
    for work in seed.. {
        let left = arguments.count.saturating_sub(tally.cases());
        if left == 0 {
            break;
        }
        let done = damage::run(work, left.min(CASES_PER_WORK));
        tally.add(
            done.with_context(|| format!("repeat it with --count {CASES_PER_WORK} --seed {work}"))?,
        );
    }
    println!(
        "{tally}no silent loss in {} cases: {} whole, {} refused and repaired, {} reported; {:.0?}",
        tally.cases(),
        tally.of(DamageOutcome::Whole),
        tally.of(DamageOutcome::Refused),
        tally.of(DamageOutcome::Reported),
        started.elapsed(),
    );
    Ok(())
}
