//! The dispatcher: its limit, its accounts, and what it survives.
#![cfg(test)] // helpers may unwrap, as tests do

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use firq_async::{AsyncScheduler, Dispatcher, SchedulerConfig, Spent, Task, TenantKey, TokioClock};
use tokio::sync::Barrier;

const MILLI: Duration = Duration::from_millis(1);

fn tenant(id: u64) -> TenantKey {
    TenantKey::from(id)
}

fn scheduler() -> AsyncScheduler<u64> {
    AsyncScheduler::new(SchedulerConfig::default().with_clock(TokioClock)).unwrap()
}

fn fill(scheduler: &AsyncScheduler<u64>, who: u64, tasks: u64) {
    for number in 0..tasks {
        scheduler
            .try_enqueue(tenant(who), Task::new(number))
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_handlers_run_than_allowed_and_no_fewer() {
    let scheduler = scheduler();
    fill(&scheduler, 1, 100);
    scheduler.close_drain();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let dispatcher = Dispatcher::new(scheduler.clone()).in_flight_limit(7);
    let in_flight = dispatcher.in_flight();
    let report = dispatcher
        .run({
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            let in_flight = Arc::clone(&in_flight);
            move |_, _| {
                let (running, most) = (Arc::clone(&running), Arc::clone(&most));
                let in_flight = Arc::clone(&in_flight);
                async move {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    assert!(in_flight.load(Ordering::Relaxed) <= 7);
                    tokio::time::sleep(MILLI).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                }
            }
        })
        .await;
    assert_eq!((report.completed, report.panicked), (100, 0));
    assert_eq!(most.load(Ordering::SeqCst), 7);
    assert_eq!(in_flight.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_stays_queued_until_a_worker_can_run_it() {
    let scheduler = scheduler();
    fill(&scheduler, 1, 10);
    let gate = Arc::new(Barrier::new(3));
    let dispatcher = tokio::spawn(Dispatcher::new(scheduler.clone()).in_flight_limit(2).run({
        let gate = Arc::clone(&gate);
        move |_, _| {
            let gate = Arc::clone(&gate);
            async move {
                gate.wait().await;
            }
        }
    }));
    tokio::time::sleep(MILLI).await; // all tasks have come as far as they get
    assert_eq!(scheduler.stats().queue_len_estimate, 8);
    for _ in 0..5 {
        gate.wait().await;
    }
    scheduler.close_drain();
    assert_eq!(dispatcher.await.unwrap().completed, 10);
}

#[tokio::test(start_paused = true)]
async fn panicking_handlers_harm_no_other_task() {
    let scheduler = scheduler();
    fill(&scheduler, 1, 50);
    fill(&scheduler, 2, 50);
    scheduler.close_drain();
    let report = Dispatcher::new(scheduler)
        .in_flight_limit(3)
        .run(|who, task| {
            assert!(task.payload % 5 != 1, "before there is a future");
            async move {
                tokio::time::sleep(MILLI).await;
                assert!(
                    who != tenant(2) || task.payload % 5 != 2,
                    "in the middle of it"
                );
            }
        })
        .await;
    assert_eq!((report.completed, report.panicked), (70, 30));
}

/// Lets two tenants compete, and returns how many tasks each had done when the first had no more.
async fn compete<F>(
    dispatcher: impl FnOnce(Dispatcher<u64>) -> Dispatcher<u64>,
    handler: impl Fn(TenantKey) -> F + Send + Sync + 'static,
) -> [u64; 2]
where
    F: Future<Output: firq_async::IntoSpent> + Send + 'static,
{
    let scheduler = scheduler();
    fill(&scheduler, 0, 1_000);
    fill(&scheduler, 1, 1_000);
    let done = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let result = Arc::new(Mutex::new(None));
    let run = dispatcher(Dispatcher::new(scheduler.clone()).in_flight_limit(1)).run({
        let (done, result, scheduler) = (Arc::clone(&done), Arc::clone(&result), scheduler.clone());
        move |who, _| {
            let count = done[who.as_u64() as usize].fetch_add(1, Ordering::Relaxed) + 1;
            if count == 1_000 {
                let counts = [0, 1].map(|who: usize| done[who].load(Ordering::Relaxed));
                result.lock().unwrap().get_or_insert(counts);
                scheduler.close_immediate();
            }
            handler(who)
        }
    });
    run.await;
    let result = result.lock().unwrap().take();
    result.unwrap()
}

#[tokio::test(start_paused = true)]
async fn tenants_share_time_rather_than_tasks() {
    let [quick, slow] = compete(
        |dispatcher| dispatcher.settle_by_elapsed(MILLI),
        |who| tokio::time::sleep(MILLI * if who == tenant(0) { 1 } else { 10 }),
    )
    .await;
    assert_eq!(quick, 1_000);
    assert!(
        (95..=105).contains(&slow),
        "{slow} slow tasks beside {quick} quick ones"
    );
}

#[tokio::test(start_paused = true)]
async fn a_figure_that_the_handler_returns_counts() {
    let [cheap, dear] = compete(
        |dispatcher| dispatcher.settle_by_elapsed(MILLI),
        |who| async move { Spent::Exactly(if who == tenant(0) { 1 } else { 4 }) },
    )
    .await;
    assert_eq!(cheap, 1_000);
    assert!(
        (245..=255).contains(&dear),
        "{dear} dear tasks beside {cheap} cheap ones"
    );
}

#[tokio::test(start_paused = true)]
async fn a_tenant_pays_for_the_time_of_handlers_that_panic() {
    let [good, bad] = compete(
        |dispatcher| dispatcher.settle_by_elapsed(MILLI),
        |who| async move {
            tokio::time::sleep(MILLI * if who == tenant(0) { 1 } else { 10 }).await;
            assert!(who == tenant(0), "this tenant's tasks always fail");
        },
    )
    .await;
    assert_eq!(good, 1_000);
    assert!(
        (95..=105).contains(&bad),
        "{bad} bad tasks beside {good} good ones"
    );
}

#[tokio::test(start_paused = true)]
async fn without_settling_tasks_cost_what_they_declare() {
    let [one, other] = compete(
        |dispatcher| dispatcher,
        |who| tokio::time::sleep(MILLI * if who == tenant(0) { 1 } else { 10 }),
    )
    .await;
    assert!(one.abs_diff(other) <= 1, "{one} and {other}");
}

#[tokio::test(start_paused = true)]
async fn closing_at_once_lets_running_handlers_end() {
    let scheduler = scheduler();
    fill(&scheduler, 1, 10);
    let run = tokio::spawn(
        Dispatcher::new(scheduler.clone())
            .in_flight_limit(4)
            .run(|_, _| tokio::time::sleep(MILLI * 5)),
    );
    tokio::time::sleep(MILLI).await;
    scheduler.close_immediate();
    let report = run.await.unwrap();
    assert_eq!(report.completed, 4);
    assert_eq!(scheduler.stats().discarded, 6);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_run_stops_its_handlers_and_leaves_the_queue() {
    let scheduler = scheduler();
    fill(&scheduler, 1, 10);
    let dispatcher = Dispatcher::new(scheduler.clone()).in_flight_limit(4);
    let in_flight = dispatcher.in_flight();
    let run = dispatcher.run(|_, _| tokio::time::sleep(MILLI * 5));
    assert!(tokio::time::timeout(MILLI, run).await.is_err());
    tokio::time::sleep(MILLI).await;
    assert_eq!(in_flight.load(Ordering::Relaxed), 0);
    assert_eq!(scheduler.stats().queue_len_estimate, 6);
    assert_eq!(scheduler.stats().consumers_waiting, 0);
}
