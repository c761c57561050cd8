//! Clients that come back when they are told find room.
#![cfg(test)] // helpers may unwrap, as tests do

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use common::*;
use tokio::time::Instant;
use tower::ServiceExt;

const SECOND: Duration = Duration::from_secs(1);

/// What clients saw who do as they are told.
#[derive(Debug)]
struct Seen {
    /// Of the first retries, how many were served.
    success: f64,
    /// How long they had been told to wait, on average, in seconds.
    wait: f64,
    /// Requests served per second.
    rate: f64,
}

#[derive(Debug, Default)]
struct Tally {
    retried: AtomicU64,
    succeeded: AtomicU64,
    waited: AtomicU64,
}

/// Lets clients send one request after the other, wait as they are told, and try again.
async fn polite(firq: TestFirq, clients: u64, work: Duration, thinking: Duration) -> Seen {
    let (_, timed, service) = world(firq);
    let tally = Arc::new(Tally::default());
    let begun = Instant::now();
    let (warm, end) = (begun + 60 * SECOND, begun + 360 * SECOND);
    for client in 0..clients {
        let (service, tally) = (service.clone(), Arc::clone(&tally));
        tokio::spawn(async move {
            tokio::time::sleep(MILLI * 7 * client as u32).await;
            let mut dice = client;
            while Instant::now() < end {
                tokio::time::sleep(thinking).await;
                let mut is_retry = false;
                loop {
                    dice = dice
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(client);
                    let takes = work / 5 * (3 + (dice >> 33) as u32 % 5); // 60 to 140 %
                    let result = service.clone().oneshot(Req::of(1).taking(takes)).await;
                    if is_retry && Instant::now() > warm {
                        tally.retried.fetch_add(1, Relaxed);
                        tally
                            .succeeded
                            .fetch_add(u64::from(result.is_ok()), Relaxed);
                    }
                    if result.is_ok() || is_retry {
                        break; // only the first retry counts
                    }
                    let wait = refusal(result).retry_after.unwrap();
                    assert_eq!(wait.subsec_nanos(), 0, "as HTTP has it");
                    if Instant::now() > warm {
                        tally.waited.fetch_add(wait.as_secs(), Relaxed);
                    }
                    tokio::time::sleep(wait).await;
                    is_retry = true;
                }
            }
        });
    }
    tokio::time::sleep_until(end).await;
    let retried = tally.retried.load(Relaxed);
    assert!(retried > 100, "{retried} retries: there is no overload");
    let per_retry = |count: &AtomicU64| count.load(Relaxed) as f64 / retried as f64;
    Seen {
        success: per_retry(&tally.succeeded),
        wait: per_retry(&tally.waited),
        rate: timed.begun.lock().unwrap().len() as f64 / (end - begun).as_secs_f64(),
    }
}

#[tokio::test(start_paused = true)]
async fn nine_of_ten_first_retries_succeed_under_steady_overload() {
    // Four times as many clients as there is room for.
    for max in [32, 100] {
        for (work, thinking) in [
            (5 * MILLI, Duration::ZERO), // which send again as soon as they are answered
            (5 * MILLI, 20 * MILLI),
            (50 * MILLI, Duration::ZERO),
            (50 * MILLI, 100 * MILLI),
        ] {
            let layer = firq().with_in_flight_limit(8).with_max_per_tenant(max);
            let clients = 4 * (max as u64 + 8);
            let seen = polite(layer, clients, work, thinking).await;
            let case =
                format!("{seen:?} with {max} queued, {work:?} of work, {thinking:?} between");
            assert!(seen.success >= 0.9, "{case}");
            let capacity = 8.0 / work.as_secs_f64();
            assert!(seen.rate >= 0.95 * capacity, "{case}");
            // Fifteen served for each who comes back: how long that takes for all who wait.
            let due = 15.0 * 0.75 * clients as f64 / capacity;
            assert!(seen.wait <= 2.0 * due + 2.0, "{case}: {due:.1} s are due");
        }
    }
}
