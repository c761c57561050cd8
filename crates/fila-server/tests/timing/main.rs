//! On time under load, and quick when idle. A program of its own: others would take the processors away from it.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fila_proto::v1::{EnqueueRequest, Message, ProduceRequest, QueueSettings, WorkRequest};
use fila_server::runtime::{Handle, Outgoing};
use tokio::task::JoinSet;

use common::pipes::{Producer, Worker};
use common::{Rig, message, soon};

/// The promise of the server.
const ON_TIME: Duration = Duration::from_millis(10);

/// Keeps a queue under full load, through both streams, until it is dropped.
async fn load(rig: &mut Rig, tasks: &mut JoinSet<u64>, stop: &Arc<AtomicBool>) {
    rig.create("busy").await;
    let Producer {
        frames,
        mut answers,
        ..
    } = Producer::open(rig).await;
    let mut worker = Worker::open(rig, "busy", 1_000).await;
    let stopped = stop.clone();
    tasks.spawn(async move {
        let mut frame_id = 0;
        while !stopped.load(Ordering::Relaxed) {
            frame_id += 1;
            let frame = ProduceRequest {
                frame_id,
                queue: "busy".to_owned(),
                messages: vec![message("a", "busy"); 20],
                batch_id: None,
            };
            if frames.send(frame).await.is_err() {
                break;
            }
        }
        0
    });
    tasks.spawn(async move {
        while let Ok(Some(_)) = answers.message().await {}
        0
    });
    let stopped = stop.clone();
    tasks.spawn(async move {
        let mut worked = 0;
        while !stopped.load(Ordering::Relaxed) {
            let Ok(Some(frame)) = worker.frames.message().await else {
                break;
            };
            let acks: Vec<u64> = frame.deliveries.iter().map(|d| d.lease_id).collect();
            worked += acks.len() as u64;
            let credit = u32::try_from(acks.len()).unwrap();
            let request = WorkRequest {
                credit,
                acks,
                ..WorkRequest::default()
            };
            if worker.requests.send(request).await.is_err() {
                break;
            }
        }
        worked
    });
}

/// How late something was, over many times.
struct Lateness(Vec<Duration>);

impl Lateness {
    fn of(mut late: Vec<Duration>) -> Self {
        late.sort_unstable();
        Self(late)
    }

    fn at(&self, percent: usize) -> Duration {
        self.0[(self.0.len() - 1) * percent / 100]
    }

    fn missed(&self) -> usize {
        self.0.iter().filter(|late| **late > ON_TIME).count()
    }
}

impl std::fmt::Display for Lateness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (missed, all) = (self.missed(), self.0.len());
        let [half, most, nearly, last] = [50, 90, 99, 100].map(|percent| self.at(percent));
        write!(
            f,
            "{missed} of {all} later than {ON_TIME:?}; p50 {half:?}, p90 {most:?}, p99 {nearly:?}, max {last:?}"
        )
    }
}

/// Sees by how much a thread that only sleeps is woken late, while something else goes on: what the machine adds.
fn sleep_beside(stop: &AtomicBool) -> Lateness {
    let nap = Duration::from_millis(3);
    let mut late = vec![Duration::ZERO];
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        std::thread::sleep(nap);
        late.push(began.elapsed().saturating_sub(nap));
    }
    Lateness::of(late)
}

/// Measures by how much delays and leases end late: by the broker's own clock, without the wire and its clients, on a
/// thread that does nothing else.
fn watch(handle: &Handle, messages: usize) -> (Vec<Duration>, Vec<Duration>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(async {
        let (queue, clock) = (handle.queue("timed").unwrap(), handle.clock());
        let mut consumer = soon(handle.subscribe(
            &queue,
            1_000,
            fila_core::ConsumerKind::Stream(fila_core::Beginnings::Reported),
        ))
        .await
        .unwrap();
        consumer.credit(10_000);
        let (mut delays, mut leases) = (Vec::new(), Vec::new());
        let mut first_seen = HashMap::new();
        // First deliveries show whether delays end on time, second ones whether leases do.
        while leases.len() < messages {
            let outgoing = soon(consumer.next()).await;
            let now = clock.now();
            let Some(Outgoing::Deliveries(parcel)) = outgoing else {
                panic!("the consumer stays");
            };
            for delivery in parcel.deliveries {
                let body = std::str::from_utf8(delivery.payload.body()).unwrap();
                match delivery.attempt {
                    1 => {
                        let delay = Duration::from_millis(body.parse().unwrap());
                        let due = delivery.enqueued_at.saturating_add(delay);
                        assert!(now >= due, "nothing comes early");
                        delays.push(now.since(due));
                        first_seen.insert(delivery.message, now);
                    }
                    2 => {
                        let seen = first_seen[&delivery.message];
                        leases.push(now.since(seen.saturating_add(delivery.lease_time)));
                    }
                    _ => {}
                }
            }
        }
        (delays, leases)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delays_and_leases_end_on_time_while_another_queue_is_under_full_load() {
    const MESSAGES: u64 = 200;
    let mut rig = Rig::start().await;
    let settings = QueueSettings {
        visibility_timeout_ms: Some(400),
        retry_backoff_ms: Some(0),
        ..QueueSettings::default()
    };
    rig.create_with("timed", settings).await;
    let (mut tasks, stop) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    load(&mut rig, &mut tasks, &stop).await;

    let mut messages = rig.messages.clone();
    let enqueueing = tokio::spawn(async move {
        let began = Instant::now();
        for number in 0..MESSAGES {
            let delay_ms = 100 + number * 3;
            let request = EnqueueRequest {
                queue: "timed".to_owned(),
                message: Some(Message {
                    delay_ms,
                    ..message("a", &delay_ms.to_string())
                }),
            };
            soon(messages.enqueue(request)).await.unwrap();
        }
        began.elapsed() / MESSAGES as u32
    });
    let handle = rig.server.handle();
    let watching = std::thread::spawn(move || watch(&handle, MESSAGES as usize));
    let watched = tokio::task::spawn_blocking(move || watching.join().unwrap());
    let stopped = stop.clone();
    let sleeping = std::thread::spawn(move || sleep_beside(&stopped));
    let (delays, leases) = soon(watched).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let mut worked = 0;
    while let Some(task) = soon(tasks.join_next()).await {
        worked += task.unwrap();
    }
    let each = soon(enqueueing).await.unwrap();
    let sleeper = sleeping.join().unwrap();
    let (delays, leases) = (Lateness::of(delays), Lateness::of(leases));
    println!("delays: {delays}\nleases: {leases}\na sleeping thread beside them: {sleeper}");
    println!("meanwhile {worked} messages of the busy queue, and {each:?} for each call");
    assert!(worked > 1_000, "the other queue was under load");
    // A timer that is polled, or a turn that is long, makes most of them late.
    assert!(delays.at(50) <= ON_TIME, "delays: {delays}");
    assert!(leases.at(50) <= ON_TIME, "leases: {leases}");
    // How many are late for want of a processor depends on the other programs on the machine, so this check is optional.
    if std::env::var_os("FILA_TIMING_QUIET").is_some() {
        let most = MESSAGES as usize / 20;
        assert!(delays.missed() <= most, "delays: {delays}");
        assert!(leases.missed() <= most, "leases: {leases}");
    }
}

#[tokio::test]
async fn one_call_at_a_time_does_not_wait_for_the_wire() {
    const CALLS: u32 = 100;
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let began = Instant::now();
    for _ in 0..CALLS {
        rig.enqueue("orders", "a", "x").await;
    }
    let each = began.elapsed() / CALLS;
    println!("{each:?} for each call");
    // Without TCP_NODELAY it is 40 ms.
    assert!(each < Duration::from_millis(15), "{each:?}");
}
