//! Workers: handlers, their results, and the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fila_sdk::{ErrorCode, Failure, Received};
use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;

use crate::Rig;

/// Stops a worker when the queue has nothing left.
async fn empty(rig: &Rig) {
    while rig.broker.depth("orders") > 0 {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_returns_decides() {
    let rig = Rig::new();
    for payload in ["good", "bad once", "panics once"] {
        rig.send(payload).await;
    }
    let handler = |order: Received| async move {
        match (&order.payload[..], order.attempt) {
            (b"bad once", 1) => Err(Failure::from("not today")),
            (b"panics once", 1) => panic!("oh"),
            _ => Ok(()),
        }
    };
    let worker = rig.orders.worker();
    let report = worker.run_until(empty(&rig), handler).await.unwrap();
    assert_eq!((report.acked, report.nacked, report.lost), (3, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failure_can_say_when_to_try_again() {
    let rig = Rig::new();
    rig.send("x").await;
    let begun = tokio::time::Instant::now();
    let handler = |order: Received| async move {
        match order.attempt {
            1 => Err(Failure::retry_after("busy", Duration::from_secs(60))),
            _ => Ok(()),
        }
    };
    let worker = rig.orders.worker();
    worker.run_until(empty(&rig), handler).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn no_more_handlers_run_than_the_concurrency() {
    let rig = Rig::new();
    for _ in 0..50 {
        rig.send("x").await;
    }
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (now, max) = (running.clone(), most.clone());
    let handler = move |_: Received| {
        let (now, max) = (now.clone(), max.clone());
        async move {
            max.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_secs(1)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok::<(), Failure>(())
        }
    };
    let worker = rig.orders.worker().concurrency(5);
    let report = worker.run_until(empty(&rig), handler).await.unwrap();
    assert_eq!(report.acked, 50);
    assert_eq!(most.load(Ordering::SeqCst), 5);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_takes_longer_than_a_lease_is_not_disturbed() {
    let rig = Rig::new();
    rig.send("x").await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = move |_: Received| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            sleep(Duration::from_secs(600)).await;
            Ok::<(), Failure>(())
        }
    };
    let report = rig.orders.worker().run_until(empty(&rig), handler).await;
    assert_eq!(report.unwrap().acked, 1);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_runs_and_gives_back_the_rest() {
    let rig = Rig::new();
    for _ in 0..10 {
        rig.send("x").await;
    }
    let (begun, stop) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let started = begun.clone();
    let handler = move |_: Received| {
        started.add_permits(1);
        async {
            sleep(Duration::from_secs(10)).await;
            Ok::<(), Failure>(())
        }
    };
    let worker = rig.orders.worker().concurrency(2).prefetch(6);
    let signal = stop.clone();
    let working = tokio::spawn(async move {
        let stopped = async move { signal.notified().await };
        worker.run_until(stopped, handler).await
    });
    begun.acquire_many(2).await.unwrap().forget();
    rig.until_leased(6).await;
    stop.notify_one();
    rig.until_leased(2).await;
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.acked, report.nacked), (2, 0));
    assert_eq!(rig.broker.depth("orders"), 8);
}

#[tokio::test(start_paused = true)]
async fn handlers_that_do_not_end_in_time_are_dropped_and_their_messages_come_again() {
    let rig = Rig::new();
    rig.send("x").await;
    let stop = sleep(Duration::from_secs(1));
    let handler = |_: Received| async {
        std::future::pending::<()>().await;
        Ok::<(), Failure>(())
    };
    let worker = rig.orders.worker().grace(Duration::from_secs(5));
    let begun = tokio::time::Instant::now();
    let report = worker.run_until(stop, handler).await.unwrap();
    assert_eq!((report.acked, report.nacked), (0, 1));
    assert_eq!(begun.elapsed().as_secs(), 6);
    let mut consumer = rig.orders.consumer().subscribe();
    assert_eq!(consumer.next().await.unwrap().unwrap().attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_worker_drops_its_handlers() {
    let rig = Rig::new();
    rig.send("x").await;
    let begun = Arc::new(Notify::new());
    let started = begun.clone();
    let handler = move |_: Received| {
        started.notify_one();
        async {
            std::future::pending::<()>().await;
            Ok::<(), Failure>(())
        }
    };
    let mut running = Box::pin(rig.orders.worker().run(handler));
    tokio::select! {
        _ = &mut running => panic!("the worker never ends by itself"),
        () = begun.notified() => {}
    }
    drop(running);
    let mut consumer = rig.orders.consumer().subscribe();
    assert_eq!(consumer.next().await.unwrap().unwrap().attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn results_that_came_too_late_are_counted_as_lost() {
    let rig = Rig::new();
    rig.send("x").await;
    let broker = rig.broker.clone();
    let handler = move |order: Received| {
        let broker = broker.clone();
        async move {
            if order.lost == 0 {
                broker.go_away();
                sleep(Duration::from_secs(60)).await;
                broker.come_back();
            }
            Ok::<(), Failure>(())
        }
    };
    let report = rig
        .orders
        .worker()
        .run_until(empty(&rig), handler)
        .await
        .unwrap();
    assert_eq!((report.acked, report.lost), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_worker_of_a_missing_queue_says_so() {
    let rig = Rig::new();
    let worker = rig.client.queue("nowhere").worker();
    let error = worker
        .run(|_| async { Ok::<(), Failure>(()) })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::QueueNotFound));
}

#[tokio::test(start_paused = true)]
async fn an_error_that_panics_when_it_is_told_is_a_failure_like_others() {
    struct Unspeakable;
    impl std::fmt::Display for Unspeakable {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("no words")
        }
    }
    let rig = Rig::new();
    rig.send("x").await;
    let handler = |order: Received| async move {
        match order.attempt {
            1 => Err(Unspeakable),
            _ => Ok(()),
        }
    };
    let worker = rig.orders.worker();
    let report = worker.run_until(empty(&rig), handler).await.unwrap();
    assert_eq!((report.acked, report.nacked, report.lost), (1, 1, 0));
}
