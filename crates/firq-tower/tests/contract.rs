//! The contract of Tower: readiness, clones, and what dropping does.
#![cfg(test)] // helpers may unwrap, as tests do

mod common;

use std::future::{Ready, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use common::*;
use firq_tower::Cause;
use tower::{Layer, Service};

/// A service that panics if it is called without having been ready, as the contract allows it to.
struct Strict {
    is_ready: bool,
    readied: Arc<AtomicUsize>,
    called: Arc<AtomicUsize>,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self {
            is_ready: false, // readiness is not copied
            readied: Arc::clone(&self.readied),
            called: Arc::clone(&self.called),
        }
    }
}

impl Service<Req> for Strict {
    type Response = Req;
    type Error = Failure;
    type Future = Ready<Result<Req, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.is_ready = true;
        self.readied.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Req) -> Self::Future {
        assert!(
            std::mem::take(&mut self.is_ready),
            "called without having been ready"
        );
        self.called.fetch_add(1, Ordering::Relaxed);
        ready(Ok(req))
    }
}

#[tokio::test(start_paused = true)]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let strict = Strict {
        is_ready: false,
        readied: Arc::default(),
        called: Arc::default(),
    };
    let service = build(firq().with_in_flight_limit(1)).layer(strict.clone());
    let requests: Vec<_> = (0..20)
        .map(|id| send(&service, Req::of(id % 3).id(id)))
        .collect();
    for request in requests {
        assert!(request.await.unwrap().is_ok());
    }
    let counts = [&strict.readied, &strict.called].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts, [20, 20]);
}

#[tokio::test]
async fn readiness_is_that_of_the_service_inside() {
    #[derive(Clone)]
    struct Never;
    impl Service<Req> for Never {
        type Response = Req;
        type Error = Failure;
        type Future = Ready<Result<Req, Failure>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
            Poll::Pending
        }
        fn call(&mut self, _: Req) -> Self::Future {
            unreachable!("never ready")
        }
    }
    let layer = build(firq());
    let mut service = layer.layer(Never);
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_pending());
    assert_eq!(layer.stats().queue.enqueued, 0, "asking queues nothing");
}

#[tokio::test(start_paused = true)]
async fn no_more_run_than_may_and_none_waits_while_one_could_run() {
    let (layer, timed, service) = world(firq().with_in_flight_limit(3));
    let requests: Vec<_> = (0..10)
        .map(|id| send(&service, Req::of(id).id(id)))
        .collect();
    settle().await;
    let stats = layer.stats();
    assert_eq!(
        (stats.in_flight_active, stats.queue.queue_len_estimate),
        (3, 7)
    );
    assert!((stats.saturation() - 1.0).abs() < 1e-9);
    assert_eq!(
        timed.ids().len(),
        3,
        "no request is dispatched without a permit"
    );
    assert_eq!(stats.queue.dequeued, 3);
    for request in requests {
        assert!(request.await.unwrap().is_ok());
    }
    assert_eq!(layer.stats().in_flight_active, 0);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_queued_request_frees_its_place_once() {
    let (layer, timed, service) = world(firq().with_in_flight_limit(1).with_max_global(1));
    let running = send(&service, Req::of(1).id(1));
    settle().await;
    for round in 0..100 {
        let queued = send(&service, Req::of(2).id(2));
        settle().await;
        assert_eq!(layer.stats().queue.queue_len_estimate, 1, "round {round}");
        queued.abort();
        settle().await;
        assert_eq!(layer.stats().queue.queue_len_estimate, 0);
    }
    assert_eq!(layer.stats().queue.cancelled, 100);
    assert!(running.await.unwrap().is_ok());
    assert_eq!(timed.ids(), [1], "what was dropped did not run");
    assert_eq!(layer.stats().in_flight_active, 0);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_running_request_frees_its_permit_once() {
    let (layer, timed, service) = world(firq().with_in_flight_limit(1));
    for id in 0..100 {
        let running = send(&service, Req::of(1).id(id).taking(1_000 * MILLI));
        settle().await;
        assert_eq!(layer.stats().in_flight_active, 1);
        running.abort();
        settle().await;
        assert_eq!(layer.stats().in_flight_active, 0);
    }
    assert_eq!(timed.ids().len(), 100);
}

#[test]
fn dropping_a_request_that_was_granted_and_not_polled_passes_its_permit_on() {
    let (layer, timed, mut service) = world(firq().with_in_flight_limit(1));
    let mut context = Context::from_waker(Waker::noop());
    let mut request = |id| {
        assert!(service.poll_ready(&mut context).is_ready());
        service.call(Req::of(id).id(id))
    };
    let (granted, queued) = (request(1), request(2));
    assert_eq!(layer.stats().in_flight_active, 1);
    drop(granted);
    assert_eq!(layer.stats().in_flight_active, 1, "it is the other's now");
    assert!(timed.ids().is_empty(), "which has not been polled either");
    drop(queued);
    let stats = layer.stats();
    assert_eq!(
        (stats.in_flight_active, stats.queue.queue_len_estimate),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_service_that_panics_frees_its_permit() {
    let (layer, _, _) = world(firq());
    let mut service = layer.layer(tower::service_fn(|req: Req| async move {
        assert!(req.id != 1, "this one panics");
        Ok::<_, Failure>(req)
    }));
    for id in [1, 2] {
        let request = tokio::spawn(service.call(Req::of(1).id(id)));
        assert_eq!(request.await.is_err(), id == 1);
        assert_eq!(layer.stats().in_flight_active, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_frees_its_permit_though_its_future_is_kept() {
    let (layer, _, mut service) = world(firq().with_in_flight_limit(1));
    let mut kept = pin!(service.call(Req::of(1)));
    assert!(kept.as_mut().await.is_ok());
    assert_eq!(layer.stats().in_flight_active, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_random_drops_everything_balances() {
    let (layer, _, service) = world(firq().with_in_flight_limit(4).with_max_global(64));
    let senders: Vec<_> = (0..8_u64)
        .map(|sender| {
            let mut service = service.clone();
            tokio::spawn(async move {
                let mut dice = sender;
                for id in 0..2_000 {
                    dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let patience = (dice >> 33) % 6;
                    let request = service.call(Req::of(sender).id(id).taking(MILLI / 1000));
                    tokio::select! {
                        _ = request => {}
                        () = async { for _ in 0..patience { tokio::task::yield_now().await } } => {}
                    }
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    let stats = layer.stats();
    assert_eq!(
        (stats.in_flight_active, stats.queue.queue_len_estimate),
        (0, 0)
    );
    let gone = stats.queue.dequeued + stats.queue.cancelled + stats.queue.evicted;
    assert_eq!(stats.queue.enqueued, gone);
    assert_eq!(stats.queue.evicted, stats.refused(Cause::Evicted));
    // All permits are there: as many requests run at once as at the beginning.
    let begun: Vec<_> = (0..4)
        .map(|id| send(&service, Req::of(id).taking(50 * MILLI)))
        .collect();
    while layer.stats().in_flight_active < 4 {
        tokio::task::yield_now().await;
    }
    for request in begun {
        assert!(request.await.unwrap().is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_request_waits_while_a_permit_is_free() {
    for limit in [1, 2, 3] {
        let layer = build(firq().with_in_flight_limit(limit));
        let service = layer.layer(tower::service_fn(|req: Req| async move {
            if req.id.is_multiple_of(3) {
                tokio::task::yield_now().await; // some end where they begin, some elsewhere
            }
            Ok::<_, Failure>(req)
        }));
        let senders: Vec<_> = (0..8_u64)
            .map(|sender| {
                let mut service = service.clone();
                tokio::spawn(async move {
                    for id in 0..3_000 {
                        assert!(service.call(Req::of(sender).id(id)).await.is_ok());
                    }
                })
            })
            .collect();
        for sender in senders {
            let done = tokio::time::timeout(60_000 * MILLI, sender).await;
            done.expect("a request waits forever").unwrap();
        }
        assert_eq!(layer.stats().queue.dequeued, 8 * 3_000);
    }
}
