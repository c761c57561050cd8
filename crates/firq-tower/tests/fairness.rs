//! Which tenants are served, and how much.
#![cfg(test)] // helpers may unwrap, as tests do

mod common;

use std::time::Duration;

use common::*;
use firq_tower::{Adaptive, Firq, Priority, TenantKey};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};

const SECOND: Duration = Duration::from_secs(1);

/// Keeps `clients` of a tenant sending one request after the other until `end`.
fn keep_sending(service: &impl TestService, req: Req, clients: usize, end: Instant) {
    for _ in 0..clients {
        let service = service.clone();
        tokio::spawn(async move {
            while Instant::now() < end {
                if service.clone().oneshot(req).await.is_err() {
                    tokio::time::sleep(MILLI).await; // otherwise it would try again endlessly at the same moment
                }
            }
        });
    }
}

/// Lets tenants 1 and 2 compete for a second, and returns how many of their requests were begun.
async fn compete(firq: TestFirq, one: Req, other: Req) -> [usize; 2] {
    let (_, timed, service) = world(firq.with_in_flight_limit(4));
    let end = Instant::now() + SECOND;
    keep_sending(&service, one, 20, end);
    keep_sending(&service, other, 20, end);
    tokio::time::sleep_until(end).await;
    [timed.of(one.tenant), timed.of(other.tenant)]
}

fn ratio(counts: [usize; 2]) -> f64 {
    counts[0] as f64 / counts[1] as f64
}

#[tokio::test(start_paused = true)]
async fn a_quiet_tenant_does_not_wait_behind_a_loud_one() {
    let (_, _, service) = world(firq().with_in_flight_limit(8));
    let end = Instant::now() + SECOND;
    keep_sending(&service, Req::of(1), 256, end);
    tokio::time::sleep(10 * MILLI).await;
    for _ in 0..50 {
        let begun = Instant::now();
        assert!(service.clone().oneshot(Req::of(2)).await.is_ok());
        assert!(
            begun.elapsed() <= 2 * MILLI,
            "{:?}, alone it takes 1 ms",
            begun.elapsed()
        );
        tokio::time::sleep(3 * MILLI).await;
    }
}

#[tokio::test(start_paused = true)]
async fn twenty_quiet_tenants_do_not_feel_one_at_ten_times_the_capacity() {
    // 8 at once for 10 ms each: 800 a second. Quiet tenants: 10 a second each, 200 in all.
    let work = 10 * MILLI;
    let (layer, timed, service) = world(firq().with_in_flight_limit(8));
    let end = Instant::now() + 10 * SECOND;
    let noisy = service.clone();
    let flood = tokio::spawn(async move {
        let mut next = Instant::now();
        while Instant::now() < end {
            drop(send(&noisy, Req::of(0).taking(work))); // 8,000 a second
            next += MILLI / 8;
            tokio::time::sleep_until(next).await;
        }
    });
    let quiet: Vec<_> = (1..=20)
        .map(|tenant| {
            let service = service.clone();
            tokio::spawn(async move {
                let mut waits = Vec::new();
                tokio::time::sleep(MILLI * 5 * tenant as u32).await;
                while Instant::now() < end {
                    let begun = Instant::now();
                    let result = service.clone().oneshot(Req::of(tenant).taking(work)).await;
                    waits.push(result.ok().map(|_| begun.elapsed()));
                    tokio::time::sleep_until(begun + SECOND / 10).await;
                }
                waits
            })
        })
        .collect();
    let mut waits = Vec::new();
    for tenant in quiet {
        waits.extend(tenant.await.unwrap());
    }
    flood.await.unwrap();
    assert!(
        waits.iter().all(Option::is_some),
        "every quiet request succeeds"
    );
    let mut waits: Vec<Duration> = waits.into_iter().flatten().collect();
    waits.sort_unstable();
    let p99 = waits[waits.len() * 99 / 100];
    assert!(p99 <= 2 * work, "quiet p99 is {p99:?}, unloaded {work:?}");
    let served = timed.begun.lock().unwrap().len();
    assert!(
        served as f64 >= 0.95 * 8_000.0,
        "{served} of 8,000 that fit in 10 s"
    );
    assert!(
        layer.stats().queue.rejected_tenant_full > 0,
        "there was too much to do"
    );
}

#[tokio::test(start_paused = true)]
async fn equal_tenants_are_served_equally_however_much_each_sends() {
    let (_, timed, service) = world(firq().with_in_flight_limit(4));
    let end = Instant::now() + SECOND;
    keep_sending(&service, Req::of(1), 90, end);
    keep_sending(&service, Req::of(2), 10, end);
    tokio::time::sleep_until(end).await;
    let ratio = ratio([timed.of(1), timed.of(2)]);
    assert!((0.98..1.02).contains(&ratio), "{ratio}");
}

#[tokio::test(start_paused = true)]
async fn weights_make_shares() {
    let firq_with = |firq: TestFirq| compete(firq, Req::of(1), Req::of(2));
    let fixed = firq_with(firq().with_tenant_weight(TenantKey::from(1), 3)).await;
    assert!((2.9..3.1).contains(&ratio(fixed)), "{fixed:?}");
    let by_plan = |tenant: &TenantKey| if tenant.as_u64() == 1 { 5 } else { 1 };
    let asked = firq_with(firq().with_weights(by_plan)).await;
    assert!((4.8..5.2).contains(&ratio(asked)), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_weight_can_be_changed_while_running() {
    let (layer, timed, service) = world(firq().with_in_flight_limit(4));
    let end = Instant::now() + 2 * SECOND;
    keep_sending(&service, Req::of(1), 20, end);
    keep_sending(&service, Req::of(2), 20, end);
    tokio::time::sleep(SECOND).await;
    let before = [timed.of(1), timed.of(2)];
    layer.set_tenant_weight(TenantKey::from(1), 4);
    tokio::time::sleep_until(end).await;
    let after = [timed.of(1) - before[0], timed.of(2) - before[1]];
    assert!((0.95..1.05).contains(&ratio(before)), "{before:?}");
    assert!((3.8..4.2).contains(&ratio(after)), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn costs_are_what_is_shared() {
    let dear = Req {
        cost: 10,
        ..Req::of(1)
    };
    let counts = compete(firq().with_quantum(10), dear, Req::of(2)).await;
    assert!((0.09..0.11).contains(&ratio(counts)), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn time_is_shared_if_requests_cost_what_they_take() {
    let (quick, slow) = (Req::of(1), Req::of(2).taking(10 * MILLI));
    let by_count = compete(firq(), quick, slow).await;
    assert!((0.9..1.1).contains(&ratio(by_count)), "{by_count:?}");
    let by_time = compete(firq().with_settle_by_elapsed(MILLI), quick, slow).await;
    assert!((8.5..11.5).contains(&ratio(by_time)), "{by_time:?}");
    let off_again = firq().with_settle_by_elapsed(MILLI).without_settle();
    let by_count = compete(off_again, quick, slow).await;
    assert!((0.9..1.1).contains(&ratio(by_count)), "{by_count:?}");
}

#[tokio::test(start_paused = true)]
async fn priority_orders_the_requests_of_one_tenant() {
    let urgent_last = firq().with_priority_extractor(|req: &Req| match req.id {
        9 => Priority::High,
        _ => Priority::Normal,
    });
    let (_, timed, service) = world(urgent_last.with_in_flight_limit(1));
    let requests: Vec<_> = (0..10)
        .map(|id| send(&service, Req::of(1).id(id)))
        .collect();
    for request in requests {
        assert!(request.await.unwrap().is_ok());
    }
    assert_eq!(timed.ids(), [0, 9, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_requests_hang_leaves_permits_for_others() {
    let layer = firq()
        .with_in_flight_limit(8)
        .with_max_in_flight_per_tenant(6);
    let (layer, timed, service) = world(layer);
    let hanging: Vec<_> = (0..50)
        .map(|_| send(&service, Req::of(1).taking(3_600 * SECOND)))
        .collect();
    settle().await;
    assert_eq!((timed.of(1), layer.stats().in_flight_active), (6, 6));
    for _ in 0..100 {
        let begun = Instant::now();
        assert!(service.clone().oneshot(Req::of(2)).await.is_ok());
        assert_eq!(begun.elapsed(), MILLI);
    }
    hanging[0].abort(); // the first that runs
    settle().await;
    assert_eq!(
        (timed.of(1), layer.stats().in_flight_active),
        (7, 6),
        "the next of its own"
    );
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
    settle().await;
    assert_eq!(layer.stats().in_flight_active, 0);
    assert!(
        service.clone().oneshot(Req::of(1)).await.is_ok(),
        "nothing is left behind"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_tenant_ever_runs_more_than_it_may() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let layer = build(
        firq()
            .with_in_flight_limit(4)
            .with_max_in_flight_per_tenant(2),
    );
    let running: Arc<[AtomicUsize; 2]> = Arc::default();
    let service = layer.layer(tower::service_fn(move |req: Req| {
        let running = Arc::clone(&running);
        async move {
            let now = running[req.tenant as usize].fetch_add(1, SeqCst) + 1;
            assert!(now <= 2, "{now} of tenant {}", req.tenant);
            tokio::task::yield_now().await;
            running[req.tenant as usize].fetch_sub(1, SeqCst);
            Ok::<_, Failure>(req)
        }
    }));
    let senders: Vec<_> = (0..8)
        .map(|sender| {
            let service = service.clone();
            tokio::spawn(async move {
                for _ in 0..1_000 {
                    assert!(service.clone().oneshot(Req::of(sender % 2)).await.is_ok());
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    assert_eq!(layer.stats().queue.dequeued, 8_000);
}

#[tokio::test(start_paused = true)]
async fn keys_can_be_of_any_type() {
    let layer = Firq::new()
        .with_tenant_weight(("acme".to_owned(), 2_u8), 3)
        .build(|req: &http::Request<String>| (req.uri().path().to_owned(), 2_u8));
    let echo = tower::service_fn(async |req: http::Request<String>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(req.into_body()))
    });
    let Ok(response) = layer
        .layer(echo)
        .oneshot(http::Request::new("hello".to_owned()))
        .await;
    assert_eq!(response.into_body(), "hello");
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_limit_finds_what_the_service_can_do() {
    // A service with room for 8: more at once take longer in proportion.
    let limit = Adaptive::between(2, 200);
    let layer = build(firq().with_adaptive_limit(limit).with_max_per_tenant(1_000));
    let running = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let service = layer.layer(tower::service_fn({
        move |req: Req| {
            let running = std::sync::Arc::clone(&running);
            async move {
                use std::sync::atomic::Ordering::Relaxed;
                let now = running.fetch_add(1, Relaxed) + 1;
                tokio::time::sleep(5 * MILLI * (now as u32).div_ceil(8)).await;
                running.fetch_sub(1, Relaxed);
                Ok::<_, Failure>(req)
            }
        }
    }));
    let end = Instant::now() + 20 * SECOND;
    for _ in 0..300 {
        let service = service.clone();
        tokio::spawn(async move {
            while Instant::now() < end {
                let _ = service.clone().oneshot(Req::of(1)).await;
            }
        });
    }
    tokio::time::sleep_until(end).await;
    let found = layer.stats().in_flight_limit;
    assert!((8..=32).contains(&found), "{found}");
    layer.reset_limit();
    assert!(layer.stats().in_flight_limit <= found.div_ceil(2).max(2));
}
