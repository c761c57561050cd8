//! The law of the broker: *a tenant that sends 100 times what it may, over 1, 100 and 1,000 connections, with payloads of
//! 1 KiB and 1 MiB, split into 1,000 fairness keys, failing all its work, with hostile headers, and with consumers that do
//! not read, causes no refusal for the others and at most 10 % more p99 than the same machine load without it.*
//!
//! Each round has two servers. Quiet tenants use the first. In a round *with* the attack, the noisy tenant sends to the
//! first server as well; in a round *without* it, it sends the same to the second. So processor and disk have the same
//! load in both, and the difference is the harm that the broker lets the noisy tenant do. The rounds alternate, and the
//! table has the medians.

mod noise;
mod round;
mod row;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use lab::Table;

use self::noise::Noise;
use self::round::{Aim, RoundResult};
use self::row::LawRow;

#[derive(Debug, clap::Args)]
pub(crate) struct LawArguments {
    /// The program to measure; the `fila` beside this program if absent
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Only the row of this name; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Rounds with the attack, and as many without it
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of a round
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// One short round with each attack and none without: checks the refusals, and measures nothing
    #[arg(long)]
    quick: bool,
}

pub(crate) async fn run(arguments: LawArguments) -> anyhow::Result<()> {
    let known = |name: &String| Noise::ALL.iter().any(|noise| noise.name() == *name);
    if let Some(unknown) = arguments.only.iter().find(|name| !known(name)) {
        let names = Noise::ALL.map(|noise| noise.name()).join(", ");
        bail!("there is no row `{unknown}`; choose of {names}");
    }
    let chosen = |noise: &Noise| match arguments.only.as_slice() {
        [] => !arguments.quick || noise.is_quick(),
        names => names.contains(&noise.name()),
    };
    let time = match arguments.quick {
        true => Duration::from_secs(1),
        false => Duration::from_secs(arguments.seconds),
    };
    let mut table = Table::new(LawRow::HEADER);
    let mut broken = 0;
    for noise in Noise::ALL.into_iter().filter(chosen) {
        eprintln!("{} …", noise.name());
        let mut row = LawRow::new(noise);
        let rounds = if arguments.quick { 1 } else { arguments.rounds };
        for number in 0..rounds {
            let both = [Aim::Noisy, Aim::Decoy];
            let aims = match (arguments.quick, number % 2) {
                (true, _) => vec![Aim::Noisy],
                // Each kind of round is the first one half of the time.
                (false, 0) => both.to_vec(),
                (false, _) => both.into_iter().rev().collect(),
            };
            for aim in aims {
                let program = arguments.binary.as_deref();
                let result: RoundResult = round::play(program, noise, aim, time).await?;
                row.add(aim, result);
            }
        }
        broken += usize::from(!row.holds());
        eprintln!("{}: {}", noise.name(), row.verdict());
        table.row(row.cells());
    }
    print!("{table}");
    if broken > 0 {
        bail!("the law was broken in {broken} rows");
    }
    Ok(())
}
