//! Plays random submits, cancels, panics, retries and stops, and prints the exact accounting.
//!
//! ```text
//! cargo run --release -p shardqueue --example stress -- --seed 7 --seconds 30
//! ```
//!
//! Ends with an error if a single job is not accounted for, and prints the seed of the round in which that was.

#[path = "../tests/support/stress.rs"]
mod stress;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use stress::{Dice, Totals};

fn main() -> ExitCode {
    let seed = argument("--seed").unwrap_or(1);
    let seconds = argument("--seconds").unwrap_or(30);
    std::panic::set_hook(Box::new(|info| {
        // Panics of jobs are part of the play.
        if !info.to_string().contains("stress: ") {
            eprintln!("{info}");
        }
    }));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_time()
        .build();
    let runtime = runtime.expect("a runtime can be built");
    println!("seed {seed}, {seconds} s");
    let (mut dice, mut totals) = (Dice(seed), Totals::default());
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let round_seed = dice.roll(u64::MAX);
        let round = runtime.block_on(async {
            let round = tokio::spawn(stress::round(round_seed, 400));
            tokio::time::timeout(Duration::from_secs(60), round).await
        });
        let wrong = match round {
            Ok(Ok(Ok(round))) => {
                totals = totals.plus(round);
                continue;
            }
            Ok(Ok(Err(wrong))) => wrong,
            Ok(Err(panic)) => panic.to_string(),
            Err(_) => "nothing has happened for a minute".to_owned(),
        };
        eprintln!("round {} with seed {round_seed}: {wrong}", totals.rounds);
        return ExitCode::FAILURE;
    }
    println!("{totals}");
    println!("every accepted job is accounted for exactly once");
    ExitCode::SUCCESS
}

fn argument(name: &str) -> Option<u64> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    let text = arguments.nth(1)?;
    Some(text.parse().unwrap_or_else(|_| {
        eprintln!("{name} takes a whole number, not `{text}`");
        std::process::exit(2);
    }))
}
