//! Every accepted job is accounted for exactly once, whatever happens: a few rounds of what `examples/stress.rs`
//! plays for as long as one likes.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "support/stress.rs"]
mod stress;

use stress::Totals;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_books_balance_in_random_rounds() {
    std::panic::set_hook(Box::new(|info| {
        // Panics of jobs are part of the play.
        if !info.to_string().contains("stress: ") {
            eprintln!("{info}");
        }
    }));
    let mut totals = Totals::default();
    for seed in 0..40 {
        let round = stress::round(seed, 150).await;
        totals = totals.plus(round.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}")));
    }
    let stats = totals.stats;
    assert!(stats.ran > 0 && stats.failed > 0 && stats.cancelled > 0 && stats.returned > 0);
    println!("{totals}");
}
