//! What futures wait for, and what ends the wait.
#![cfg(test)] // helpers may unwrap, as tests do

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use firq_async::firq_core::DropReason;
use firq_async::{
    AsyncScheduler, BackpressurePolicy, DequeueResult, EnqueueRejectReason, EnqueueResult,
    Rejected, SchedulerConfig, Task, TenantKey, TokioClock,
};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

fn tenant(id: u64) -> TenantKey {
    TenantKey::from(id)
}

fn with(config: SchedulerConfig<u64>) -> AsyncScheduler<u64> {
    AsyncScheduler::new(config.with_clock(TokioClock)).unwrap()
}

fn room_for(max_global: usize) -> SchedulerConfig<u64> {
    SchedulerConfig {
        max_global,
        ..SchedulerConfig::default()
    }
}

fn patient_for(wait: Duration) -> SchedulerConfig<u64> {
    SchedulerConfig {
        backpressure: BackpressurePolicy::Timeout { wait },
        ..room_for(1)
    }
}

#[tokio::test]
async fn a_consumer_gets_the_task_that_comes_later() {
    let scheduler = with(room_for(8));
    let consumer = {
        let scheduler = scheduler.clone();
        tokio::spawn(async move { scheduler.dequeue_async().await })
    };
    tokio::task::yield_now().await;
    assert_eq!(scheduler.stats().consumers_waiting, 1);
    scheduler.try_enqueue(tenant(3), Task::new(7)).unwrap();
    let (who, task) = consumer.await.unwrap().into_task().unwrap();
    assert_eq!((who, task.payload), (tenant(3), 7));
}

#[tokio::test]
async fn a_handler_enqueues_without_waiting_and_a_consumer_awaits_the_task() {
    let scheduler = with(patient_for(Duration::from_secs(60)));
    let consumer = {
        let scheduler = scheduler.clone();
        tokio::spawn(async move { scheduler.dequeue_async().await })
    };
    tokio::task::yield_now().await;
    let enqueue = |number| scheduler.enqueue(tenant(3), Task::new(number));
    assert_eq!(enqueue(7), EnqueueResult::Enqueued);
    let full = EnqueueResult::Rejected(EnqueueRejectReason::GlobalFull);
    assert_eq!(enqueue(8), full, "at once, under Timeout too");
    let (who, task) = consumer.await.unwrap().into_task().unwrap();
    assert_eq!((who, task.payload), (tenant(3), 7));
    scheduler.close_drain();
    assert_eq!(enqueue(9), EnqueueResult::Closed);
}

#[tokio::test]
async fn a_batch_waits_for_its_first_task_only() {
    let scheduler = with(room_for(100));
    let consumer = {
        let scheduler = scheduler.clone();
        tokio::spawn(async move {
            let mut tasks = Vec::new();
            let count = scheduler.dequeue_batch_async(10, &mut tasks).await;
            assert_eq!(count, tasks.len());
            tasks
        })
    };
    tokio::task::yield_now().await;
    for number in 0..25 {
        scheduler.try_enqueue(tenant(1), Task::new(number)).unwrap();
    }
    assert_eq!(consumer.await.unwrap().len(), 10);
    let mut tasks = Vec::new();
    assert_eq!(scheduler.dequeue_batch_async(0, &mut tasks).await, 0);
    assert_eq!(scheduler.dequeue_batch_async(100, &mut tasks).await, 15);
    scheduler.close_immediate();
    assert_eq!(scheduler.dequeue_batch_async(100, &mut tasks).await, 0);
}

#[tokio::test]
async fn a_producer_waits_until_there_is_room() {
    let scheduler = with(room_for(1));
    scheduler.try_enqueue(tenant(1), Task::new(0)).unwrap();
    let producer = {
        let scheduler = scheduler.clone();
        tokio::spawn(async move { scheduler.enqueue_async(tenant(2), Task::new(1)).await })
    };
    tokio::task::yield_now().await;
    assert!(!producer.is_finished());
    assert_eq!(
        scheduler
            .dequeue_async()
            .await
            .into_task()
            .unwrap()
            .1
            .payload,
        0
    );
    let handle = producer.await.unwrap().unwrap();
    let _ = scheduler.cancel(handle);
    assert_eq!(scheduler.stats().cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn patience_ends_when_the_policy_says() {
    let scheduler = with(patient_for(SECOND));
    scheduler.try_enqueue(tenant(1), Task::new(0)).unwrap();
    let begun = Instant::now();
    let refused = scheduler
        .enqueue_async(tenant(2), Task::new(1))
        .await
        .unwrap_err();
    assert_eq!(refused.reason(), Some(EnqueueRejectReason::Timeout));
    assert_eq!(refused.into_task().payload, 1);
    assert_eq!(begun.elapsed(), SECOND);
    assert_eq!(scheduler.stats().rejected_timeout, 1);
}

#[tokio::test(start_paused = true)]
async fn room_that_comes_from_expiry_is_found_in_time() {
    let scheduler = with(room_for(1));
    let deadline = (Instant::now() + SECOND).into_std();
    scheduler
        .try_enqueue(tenant(1), Task::new(0).with_deadline(deadline))
        .unwrap();
    let begun = Instant::now();
    // There is no consumer: the producer's own timer finds the room.
    scheduler
        .enqueue_async(tenant(2), Task::new(1))
        .await
        .unwrap();
    assert!((SECOND..SECOND + Duration::from_millis(3)).contains(&begun.elapsed()));
    assert_eq!(scheduler.stats().expired, 1);
}

#[tokio::test(start_paused = true)]
async fn a_task_may_expire_while_it_waits_for_room() {
    let expired = Arc::new(AtomicU64::new(0));
    let config = room_for(1).with_on_drop({
        let expired = Arc::clone(&expired);
        move |dropped| {
            assert_eq!(
                (dropped.reason, dropped.task.payload),
                (DropReason::Expired, 1)
            );
            expired.fetch_add(1, Ordering::Relaxed);
        }
    });
    let scheduler = with(config);
    scheduler.try_enqueue(tenant(1), Task::new(0)).unwrap();
    let begun = Instant::now();
    let deadline = (begun + SECOND).into_std();
    let late = scheduler.enqueue_async(tenant(2), Task::new(1).with_deadline(deadline));
    late.await.unwrap(); // accepted, and expired at once
    assert!((SECOND..SECOND + Duration::from_millis(3)).contains(&begun.elapsed()));
    assert_eq!(expired.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn closing_ends_every_wait() {
    let scheduler = with(room_for(1));
    let consumers: Vec<_> = (0..8)
        .map(|_| {
            let scheduler = scheduler.clone();
            tokio::spawn(async move { scheduler.dequeue_async().await })
        })
        .collect();
    tokio::task::yield_now().await;
    scheduler.close_drain();
    for consumer in consumers {
        assert_eq!(consumer.await.unwrap(), DequeueResult::Closed);
    }

    let full = with(room_for(1));
    full.try_enqueue(tenant(1), Task::new(0)).unwrap();
    let producers: Vec<_> = (0..8)
        .map(|number| {
            let full = full.clone();
            tokio::spawn(async move { full.enqueue_async(tenant(2), Task::new(number)).await })
        })
        .collect();
    tokio::task::yield_now().await;
    full.close_immediate();
    for (number, producer) in producers.into_iter().enumerate() {
        let Err(Rejected::Closed { task }) = producer.await.unwrap() else {
            panic!("nothing is accepted after closing");
        };
        assert_eq!(task.payload, number as u64);
    }
}

#[tokio::test] // one thread: who span here would never let the others run
async fn a_producer_that_waits_for_its_tenants_room_is_told_of_a_drain() {
    let scheduler = with(SchedulerConfig {
        max_per_tenant: 1,
        ..room_for(8)
    });
    scheduler.try_enqueue(tenant(1), Task::new(0)).unwrap();
    let producer = {
        let scheduler = scheduler.clone();
        tokio::spawn(async move { scheduler.enqueue_async(tenant(1), Task::new(1)).await })
    };
    tokio::task::yield_now().await;
    scheduler.close_drain();
    assert!(matches!(
        producer.await.unwrap(),
        Err(Rejected::Closed { .. })
    ));
    assert!(scheduler.dequeue_async().await.into_task().is_some());
    assert_eq!(scheduler.dequeue_async().await, DequeueResult::Closed);
}

#[tokio::test] // one thread
async fn a_consumer_that_always_finds_work_lets_others_run() {
    let scheduler = with(SchedulerConfig {
        max_per_tenant: 1 << 14,
        ..room_for(1 << 14)
    });
    for number in 0..1 << 14 {
        scheduler
            .try_enqueue(tenant(number % 5), Task::new(number))
            .unwrap();
    }
    let ran = Arc::new(AtomicBool::new(false));
    let other = {
        let ran = Arc::clone(&ran);
        tokio::spawn(async move { ran.store(true, Ordering::Relaxed) })
    };
    let mut served = 0;
    while !ran.load(Ordering::Relaxed) {
        assert!(scheduler.dequeue_async().await.into_task().is_some());
        served += 1;
    }
    assert!(served < 1_000, "the other task waited for {served} tasks");
    other.await.unwrap();
}

#[tokio::test] // one thread
async fn a_producer_that_always_finds_room_lets_others_run() {
    let scheduler = with(SchedulerConfig {
        max_per_tenant: 1 << 14,
        ..room_for(1 << 14)
    });
    let other = tokio::spawn(async {});
    let mut queued = 0;
    while !other.is_finished() {
        scheduler
            .enqueue_async(tenant(1), Task::new(queued))
            .await
            .unwrap();
        queued += 1;
    }
    assert!(queued < 1_000, "the other task waited for {queued} tasks");
}

#[tokio::test]
async fn waiting_producers_are_served_in_the_order_they_came() {
    let scheduler = with(room_for(1));
    scheduler.try_enqueue(tenant(0), Task::new(0)).unwrap();
    for number in 1..=20 {
        let scheduler = scheduler.clone();
        tokio::spawn(async move { scheduler.enqueue_async(tenant(0), Task::new(number)).await });
        tokio::task::yield_now().await;
    }
    for number in 0..=20 {
        let (_, task) = scheduler.dequeue_async().await.into_task().unwrap();
        assert_eq!(task.payload, number);
    }
}

#[tokio::test]
async fn the_order_of_service_is_the_cores() {
    let filled = || {
        let scheduler = with(room_for(300));
        for number in 0..300 {
            let task = Task::new(number).with_cost(1 + number % 7);
            let who = tenant(number * number % 11);
            scheduler.try_enqueue(who, task).unwrap();
        }
        scheduler
    };
    let (polled, awaited) = (filled(), filled());
    while let Some((who, task)) = polled.scheduler().try_dequeue().into_task() {
        let (same, other) = awaited.dequeue_async().await.into_task().unwrap();
        assert_eq!((who, task.payload), (same, other.payload));
    }
    assert_eq!(awaited.stats().queue_len_estimate, 0);
}
