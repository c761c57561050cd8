//! Waiting takes no thread.
#![cfg(target_os = "linux")]
#![cfg(test)] // helpers may unwrap, as tests do

use firq_async::{AsyncScheduler, SchedulerConfig, Task, TenantKey};

/// The threads of this process. There is one test here, so no other test starts any.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[tokio::test]
async fn a_thousand_waiting_consumers_and_producers_take_no_thread() {
    let scheduler = || {
        let config = SchedulerConfig {
            max_global: 1,
            ..SchedulerConfig::default()
        };
        AsyncScheduler::<u64>::new(config).unwrap()
    };
    let (empty, full) = (scheduler(), scheduler());
    full.try_enqueue(TenantKey::from(0), Task::new(0)).unwrap();
    let before = threads();
    for number in 0..1_000 {
        let (empty, full) = (empty.clone(), full.clone());
        tokio::spawn(async move { empty.dequeue_async().await.into_task().is_some() });
        tokio::spawn(async move {
            let task = Task::new(number);
            full.enqueue_async(TenantKey::from(1), task).await.is_ok()
        });
    }
    while empty.stats().consumers_waiting < 1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(threads(), before);
}
