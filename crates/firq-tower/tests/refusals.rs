//! Requests that do not reach the service, and what they are told.
#![cfg(test)] // helpers may unwrap, as tests do

mod common;

use std::time::Duration;

use common::*;
use firq_tower::{BackpressurePolicy, Cause, EnqueueRejectReason};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// A layer with room for one that runs and one that waits, and for more only in time.
fn patient_for(wait: Duration) -> TestFirq {
    let patient = firq().with_backpressure(BackpressurePolicy::Timeout { wait });
    patient.with_in_flight_limit(1).with_max_global(1)
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_too_much_queued_is_refused_and_others_are_not() {
    let (layer, _, service) = world(firq().with_in_flight_limit(1).with_max_per_tenant(2));
    let first: Vec<_> = (0..3).map(|_| send(&service, Req::of(1))).collect();
    let refused = refusal(send(&service, Req::of(1)).await.unwrap());
    assert_eq!(
        refused.cause,
        Cause::Rejected(EnqueueRejectReason::TenantFull)
    );
    assert!(refused.retry_after.is_some());
    assert!(send(&service, Req::of(2)).await.unwrap().is_ok());
    for request in first {
        assert!(request.await.unwrap().is_ok());
    }
    assert_eq!(layer.stats().refused(refused.cause), 1);
    assert_eq!(layer.stats().queue.rejected_tenant_full, 1);
}

/// Fills a tenant's queue of four, has it refused, and says whether one of its next two requests is refused, too, each
/// of which comes to a queue of three.
async fn is_refused_early(firq: TestFirq) -> bool {
    let (layer, _, service) = world(firq.with_in_flight_limit(1).with_max_per_tenant(4));
    let request = || send(&service, Req::of(1).taking(10 * MILLI));
    let refused = || {
        let cause = Cause::Rejected(EnqueueRejectReason::TenantFull);
        layer.stats().refused(cause)
    };
    let _requests: Vec<_> = (0..6).map(|_| request()).collect();
    assert_eq!(refused(), 1, "the queue is full");
    for _ in 0..2 {
        tokio::time::sleep(10 * MILLI).await;
        settle().await;
        assert_eq!(layer.stats().queue.queue_len_estimate, 3);
        drop(request());
    }
    refused() > 1
}

#[tokio::test(start_paused = true)]
async fn a_refused_tenant_is_refused_early_unless_that_is_switched_off_or_the_policy_is_reject() {
    let reject = || firq().with_backpressure(BackpressurePolicy::Reject);
    assert!(is_refused_early(firq()).await);
    assert!(!is_refused_early(firq().with_early_refusals(false)).await);
    assert!(!is_refused_early(reject()).await);
    assert!(is_refused_early(reject().with_early_refusals(true)).await);
    let switched_on_before = firq().with_early_refusals(true);
    let reject = switched_on_before.with_backpressure(BackpressurePolicy::Reject);
    assert!(is_refused_early(reject).await);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_when_told_to() {
    let reject = firq().with_backpressure(BackpressurePolicy::Reject);
    let (_, _, service) = world(reject.with_in_flight_limit(1).with_max_global(2));
    let _first: Vec<_> = (0..3).map(|_| send(&service, Req::of(1))).collect();
    let refused = refusal(send(&service, Req::of(2)).await.unwrap());
    assert_eq!(
        refused.cause,
        Cause::Rejected(EnqueueRejectReason::GlobalFull)
    );
}

#[tokio::test(start_paused = true)]
async fn by_default_the_greedy_give_way_and_are_told_so() {
    let (layer, _, service) = world(firq().with_in_flight_limit(1).with_max_global(4));
    let greedy: Vec<_> = (0..5).map(|id| send(&service, Req::of(1).id(id))).collect();
    assert!(send(&service, Req::of(2)).await.unwrap().is_ok());
    let mut outcomes = Vec::new();
    for request in greedy {
        outcomes.push(request.await.unwrap());
    }
    let evicted = refusal(outcomes.pop().unwrap());
    assert_eq!(evicted.cause, Cause::Evicted, "the newest of them");
    assert!(evicted.retry_after.is_some());
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(layer.stats().refused(Cause::Evicted), 1);
}

#[tokio::test(start_paused = true)]
async fn under_timeout_a_request_waits_for_room_and_no_longer() {
    let (layer, _, service) = world(patient_for(10 * MILLI));
    let begun = Instant::now();
    let running = send(&service, Req::of(1).taking(8 * MILLI));
    let queued = send(&service, Req::of(1).taking(100 * MILLI));
    let patient = send(&service, Req::of(2).id(7).taking(MILLI)); // has room after 8 ms
    settle().await;
    let late = send(&service, Req::of(3)); // has none within 10 ms
    assert!(running.await.unwrap().is_ok());
    let refused = refusal(late.await.unwrap());
    assert_eq!(refused.cause, Cause::Rejected(EnqueueRejectReason::Timeout));
    assert!(
        (10 * MILLI..12 * MILLI).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
    assert!(queued.await.unwrap().is_ok());
    assert_eq!(patient.await.unwrap().unwrap().id, 7);
    assert_eq!(layer.stats().queue.rejected_timeout, 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_request_that_waits_for_room_gives_its_place_up() {
    let (layer, timed, service) = world(patient_for(SECOND));
    let _running = send(&service, Req::of(1).id(1).taking(10 * MILLI));
    let _queued = send(&service, Req::of(1).id(2).taking(10 * MILLI));
    settle().await;
    let gone = send(&service, Req::of(2).id(3));
    let stays = send(&service, Req::of(3).id(4));
    settle().await;
    gone.abort();
    assert!(stays.await.unwrap().is_ok());
    assert_eq!(timed.ids(), [1, 2, 4]);
    assert_eq!(layer.stats().in_flight_active, 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_deadline_passes_while_it_waits_is_answered_then() {
    let (layer, timed, service) = world(firq().with_in_flight_limit(1));
    let running = send(&service, Req::of(1).id(1).taking(SECOND));
    let begun = Instant::now();
    let late = send(&service, Req::of(2).id(2).within(50 * MILLI));
    let refused = refusal(late.await.unwrap());
    assert_eq!((refused.cause, refused.retry_after), (Cause::Expired, None));
    assert!(
        (50 * MILLI..53 * MILLI).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
    let stats = layer.stats();
    assert_eq!((stats.queue.expired, stats.refused(Cause::Expired)), (1, 1));
    assert_eq!(stats.queue.queue_len_estimate, 0, "its place is free");
    assert!(running.await.unwrap().is_ok());
    assert_eq!(timed.ids(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_too_late_is_answered_at_once() {
    let (_, timed, service) = world(firq());
    let req = Req::of(1).within(MILLI);
    tokio::time::sleep(5 * MILLI).await;
    assert_eq!(
        refusal(send(&service, req).await.unwrap()).cause,
        Cause::Expired
    );
    assert!(timed.ids().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_between_the_grant_and_the_call_counts() {
    use tower::Service;
    let (layer, timed, mut service) = world(firq());
    let granted = service.call(Req::of(1).within(MILLI)); // not polled yet
    assert_eq!(layer.stats().in_flight_active, 1);
    tokio::time::sleep(5 * MILLI).await;
    assert_eq!(refusal(granted.await).cause, Cause::Expired);
    assert!(timed.ids().is_empty());
    assert_eq!(layer.stats().in_flight_active, 0);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_may_pass_while_waiting_for_room() {
    let (_, timed, service) = world(patient_for(SECOND));
    let _first: Vec<_> = (0..2)
        .map(|_| send(&service, Req::of(1).taking(SECOND)))
        .collect();
    settle().await;
    let begun = Instant::now();
    let late = send(&service, Req::of(2).within(20 * MILLI));
    assert_eq!(refusal(late.await.unwrap()).cause, Cause::Expired);
    assert!(
        (20 * MILLI..24 * MILLI).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(timed.ids().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn draining_completes_what_is_queued_and_takes_nothing() {
    let (layer, timed, service) = world(firq().with_in_flight_limit(2));
    let requests: Vec<_> = (0..10)
        .map(|id| send(&service, Req::of(id % 3).id(id)))
        .collect();
    layer.close_drain();
    assert!(layer.is_closed());
    let late = refusal(send(&service, Req::of(1)).await.unwrap());
    assert_eq!((late.cause, late.retry_after), (Cause::Closed, None));
    layer.drained().await;
    assert_eq!(timed.ids().len(), 10);
    for request in requests {
        assert!(request.await.unwrap().is_ok());
    }
    layer.drained().await; // stays so
}

#[tokio::test(start_paused = true)]
async fn closing_at_once_answers_what_is_queued_and_lets_the_rest_complete() {
    let (layer, timed, service) = world(firq().with_in_flight_limit(2));
    let requests: Vec<_> = (0..10)
        .map(|id| send(&service, Req::of(1).id(id)))
        .collect();
    settle().await;
    layer.close_immediate();
    let mut completed = 0;
    for request in requests {
        match request.await.unwrap() {
            Ok(_) => completed += 1,
            refused => assert_eq!(refusal(refused).cause, Cause::Closed),
        }
    }
    assert_eq!((completed, timed.ids().len()), (2, 2));
    layer.drained().await;
}

#[tokio::test(start_paused = true)]
async fn closing_ends_the_wait_for_room() {
    let (layer, _, service) = world(patient_for(SECOND));
    let requests: Vec<_> = (0..5).map(|_| send(&service, Req::of(1))).collect();
    settle().await;
    layer.close_drain();
    let mut closed = 0;
    for request in requests {
        closed += usize::from(request.await.unwrap().is_err());
    }
    assert_eq!(closed, 3);
}

#[tokio::test(start_paused = true)]
async fn an_idle_layer_is_drained_as_soon_as_it_is_closed() {
    let (layer, _, _) = world(firq());
    let waiting = {
        let layer = layer.clone();
        tokio::spawn(async move { layer.drained().await })
    };
    settle().await;
    assert!(!waiting.is_finished(), "it is not closed yet");
    layer.close_drain();
    waiting.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_was_refused_is_told_when_the_layer_is_closed() {
    let (layer, _, service) = world(firq().with_in_flight_limit(1).with_max_per_tenant(2));
    let requests: Vec<_> = (0..10).map(|_| send(&service, Req::of(1))).collect();
    settle().await;
    layer.close_drain();
    for _ in 0..10 {
        assert_eq!(
            refusal(send(&service, Req::of(1)).await.unwrap()).cause,
            Cause::Closed
        );
    }
    let mut served = 0;
    for request in requests {
        served += usize::from(request.await.unwrap().is_ok());
    }
    assert_eq!(served, 3);
}

#[tokio::test(start_paused = true)]
async fn where_the_oldest_gives_way_no_request_is_refused() {
    let freshest = firq().with_backpressure(BackpressurePolicy::DropOldestPerTenant);
    let (_, timed, service) = world(freshest.with_in_flight_limit(1).with_max_per_tenant(4));
    let requests: Vec<_> = (0..50)
        .map(|id| send(&service, Req::of(1).id(id)))
        .collect();
    for (id, request) in requests.into_iter().enumerate() {
        match request.await.unwrap() {
            Ok(_) => assert!(id == 0 || id >= 46, "{id}"),
            refused => assert_eq!(refusal(refused).cause, Cause::Evicted),
        }
    }
    assert_eq!(timed.ids(), [0, 46, 47, 48, 49]);
}
