//! Cuts the power beneath a store, ten thousand times; see `scripts/power-cuts`.

use std::io::Write;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use fila_faults::cuts::{self, CUTS_PER_WORK, Tally};

/// Plays random work on a store, cuts the power at random moments, and compares what is left with what was confirmed.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many cuts
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// What all chance comes from; another one each time if it is not given
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("{} power cuts from seed {seed}", arguments.count);
    let started = Instant::now();
    let mut tally = Tally::default();
    // A work's seed is printed if it fails, and given with --seed it comes first.
    for work in seed.. {
        let left = arguments.count.saturating_sub(tally.cuts);
        if left == 0 {
            break;
        }
        let done = cuts::run(work, left.min(CUTS_PER_WORK));
        tally +=
            done.with_context(|| format!("repeat it with --count {CUTS_PER_WORK} --seed {work}"))?;
        print!("\r{} cuts, {:.0?} ", tally.cuts, started.elapsed());
        std::io::stdout().flush()?;
    }
    println!(
        "\rnothing confirmed was lost or changed in {} cuts, {} of them amid a change, which was kept {} times; \
         {} messages read whole; {} operations on files recorded; {:.0?}",
        tally.cuts,
        tally.amid,
        tally.kept,
        tally.messages,
        tally.operations,
        started.elapsed(),
    );
    Ok(())
}
