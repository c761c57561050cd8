//! The server killed with `kill -9` in the middle of its work, again and again, and exact accounts of what it had
//! confirmed. Producers send again what was not: in the end everything has been stored, and nothing twice. What fails is
//! acknowledged, in its queue, or among the dead letters, and in one of these only.
//!
//! `FILA_KILL_ROUNDS` sets how often, `FILA_KILL_SEED` when. For the test in which everything happens at once these are
//! `FILA_CRASH_ROUNDS` and `FILA_CRASH_SEED`, which `scripts/crash-loop` sets.

#![cfg(test)] // helpers may unwrap, as tests do

mod account;
mod chance;
mod config;
mod consumer;
mod everything;
mod failures;
mod fates;
mod group_weights;
mod ledger;
mod outbox;
mod process;
#[path = "../common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;
mod restarts;
mod rules;
mod scratch;
mod settings;
mod traffic;

use std::sync::{Arc, Mutex};

use ledger::Ledger;
use process::Server;
use tempfile::TempDir;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Plays rounds of work that each end with the server's death, then lets it finish, and closes the books.
fn play(ordering: &'static str, seed: u64) {
    let directory = TempDir::new().unwrap();
    let ledger = Arc::new(Mutex::new(Ledger::new(ordering == "key")));
    let producers = traffic::producers();
    let mut chance = seed;
    for round in 0..number("FILA_KILL_ROUNDS", 3) {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let work = 200 + (chance >> 33) % 3000;
        let runtime = runtime();
        runtime.block_on(async {
            let mut server = Server::start(directory.path());
            let channel = traffic::connect(&server.address).await;
            if round == 0 {
                traffic::create(&channel, ordering).await;
            }
            let tasks = traffic::start(&server.address, &ledger, &producers);
            traffic::until_done(&ledger, work).await;
            server.kill();
            traffic::ended(tasks).await;
        });
        ledger.lock().unwrap().after_a_crash();
        println!(
            "round {round}: killed after {work}; {}",
            ledger.lock().unwrap()
        );
    }
    let runtime = runtime();
    runtime.block_on(async {
        let server = Server::start(directory.path());
        traffic::finish(&server.address, &ledger, &producers).await;
        traffic::drain(&server.address, &ledger).await;
    });
    ledger.lock().unwrap().close();
}

#[test]
fn what_was_confirmed_survives_kill_9_exactly() {
    play("none", number("FILA_KILL_SEED", 1));
}

#[test]
fn strict_order_survives_kill_9() {
    play("key", number("FILA_KILL_SEED", 2));
}
