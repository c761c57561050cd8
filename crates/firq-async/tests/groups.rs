//! Tenants in groups, with futures: shares of a dispatcher, and waiting for the room of a group.
#![cfg(test)] // helpers may unwrap, as tests do

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use firq_async::{
    AsyncScheduler, BackpressurePolicy, Dispatcher, SchedulerConfig, Task, TenantPath, TokioClock,
};

const MILLI: Duration = Duration::from_millis(1);

type Nested = AsyncScheduler<Duration, TenantPath>;

fn path(text: &str) -> TenantPath {
    TenantPath::parse(text).unwrap()
}

fn scheduler(change: impl FnOnce(&mut SchedulerConfig<Duration, TenantPath>)) -> Nested {
    let mut config = SchedulerConfig::fair();
    change(&mut config);
    let config = config.with_groups(TenantPath::parent);
    AsyncScheduler::new(config.with_clock(TokioClock)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_dispatcher_settles_the_time_of_handlers_with_the_group_of_their_tenant() {
    let scheduler = scheduler(|_| {});
    for number in 0..1_000 {
        let user = path(&format!("acme/{}", number % 100));
        scheduler.try_enqueue(user, Task::new(5 * MILLI)).unwrap();
        scheduler
            .try_enqueue(path("globex/dora"), Task::new(MILLI))
            .unwrap();
    }
    let spent = Arc::new(Mutex::new([Duration::ZERO; 2]));
    let (noted, closer) = (Arc::clone(&spent), scheduler.clone());
    let handler = move |tenant: TenantPath, task: Task<Duration>| {
        let (noted, closer) = (Arc::clone(&noted), closer.clone());
        async move {
            tokio::time::sleep(task.payload).await;
            let mut spent = noted.lock().unwrap();
            spent[usize::from(tenant.as_str().starts_with("globex"))] += task.payload;
            if spent[0] + spent[1] >= 1_000 * MILLI {
                closer.close_immediate();
            }
        }
    };
    Dispatcher::new(scheduler.clone())
        .in_flight_limit(2)
        .settle_by_elapsed(MILLI)
        .run(handler)
        .await;
    let [acme, globex] = *spent.lock().unwrap();
    let ratio = acme.as_secs_f64() / globex.as_secs_f64();
    assert!((0.9..1.1).contains(&ratio), "{acme:?} and {globex:?}");
}

#[tokio::test(start_paused = true)]
async fn a_future_waits_for_room_in_its_group_and_can_be_dropped() {
    let scheduler = scheduler(|config| {
        config.max_per_tenant = 1;
        config.backpressure = BackpressurePolicy::Timeout {
            wait: Duration::from_secs(3_600),
        };
    });
    let enqueue = |name: &str| scheduler.enqueue_async(path(name), Task::new(MILLI));
    assert!(enqueue("acme/alice").await.is_ok());
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut dropped = pin!(enqueue("acme/bob"));
        assert!(dropped.as_mut().poll(&mut context).is_pending());
    }
    let mut waiting = pin!(enqueue("acme/carol"));
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert!(enqueue("globex/dora").await.is_ok(), "another group");
    let next = || scheduler.try_dequeue().into_task();
    let first: Vec<TenantPath> = std::iter::from_fn(|| next().map(|(tenant, _)| tenant)).collect();
    assert_eq!(first.len(), 2);
    assert!(waiting.await.is_ok());
    assert_eq!(next().map(|(tenant, _)| tenant), Some(path("acme/carol")));
    assert!(next().is_none(), "bob's was dropped");
}
