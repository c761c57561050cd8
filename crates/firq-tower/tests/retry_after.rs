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

/// How clients and work go.
#[derive(Clone, Copy, Debug)]
enum Rhythm {
    /// Clients start one by one, and some requests take longer than others.
    Varied,
    /// All start at the same moment, and all requests take the same time.
    InStep,
}

/// What clients do.
#[derive(Clone, Copy, Debug)]
struct Clients {
    count: u64,
    /// How long a request takes, on average.
    work: Duration,
    /// How long a client waits before the next.
    thinking: Duration,
    rhythm: Rhythm,
}

/// Lets clients send one request after the other, wait as they are told, and try again.
async fn polite(firq: TestFirq, clients: Clients) -> Seen {
    let Clients {
        count,
        work,
        thinking,
        rhythm,
    } = clients;
    let (_, timed, service) = world(firq);
    let tally = Arc::new(Tally::default());
    let begun = Instant::now();
    let (warm, end) = (begun + 60 * SECOND, begun + 360 * SECOND);
    for client in 0..count {
        let (service, tally) = (service.clone(), Arc::clone(&tally));
        tokio::spawn(async move {
            if let Rhythm::Varied = rhythm {
                tokio::time::sleep(MILLI * 7 * client as u32).await;
            }
            let mut dice = client;
            while Instant::now() < end {
                tokio::time::sleep(thinking).await;
                let mut is_retry = false;
                loop {
                    dice = dice
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(client);
                    let takes = match rhythm {
                        Rhythm::Varied => work / 5 * (3 + (dice >> 33) as u32 % 5), // 60 to 140 %
                        Rhythm::InStep => work,
                    };
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
    let millis = Duration::from_millis;
    for (rhythm, max, work, thinking) in [
        (Rhythm::Varied, 32, 5, 0), // clients that ask again as soon as they are answered
        (Rhythm::Varied, 32, 5, 20),
        (Rhythm::Varied, 32, 50, 0),
        (Rhythm::Varied, 32, 50, 100),
        (Rhythm::Varied, 100, 5, 0),
        (Rhythm::Varied, 100, 50, 100),
        (Rhythm::InStep, 32, 5, 0),
        (Rhythm::InStep, 100, 50, 0),
    ] {
        let clients = Clients {
            count: 4 * (max as u64 + 8), // four times as many as there is room for
            work: millis(work),
            thinking: millis(thinking),
            rhythm,
        };
        let layer = firq().with_in_flight_limit(8).with_max_per_tenant(max);
        let seen = polite(layer, clients).await;
        let case = format!("{seen:?} with {max} queued and {clients:?}");
        assert!(seen.success >= 0.9, "{case}");
        let capacity = 8.0 / clients.work.as_secs_f64();
        assert!(seen.rate >= 0.95 * capacity, "{case}");
        if let Rhythm::Varied = rhythm {
            // Fifteen served for each who comes back: how long that takes for all who wait.
            let due = 15.0 * 0.75 * clients.count as f64 / capacity;
            assert!(seen.wait <= 2.0 * due + 2.0, "{case}: {due:.1} s are due");
        }
    }
}
