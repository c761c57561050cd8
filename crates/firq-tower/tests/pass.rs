//! Requests that need not wait: the cost of letting them pass, and the order beside requests that wait.
#![cfg(test)] // helpers may unwrap, as tests do

mod common;

use std::collections::{HashMap, HashSet};
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use common::*;
use firq_async::firq_core;
use firq_tower::{Cause, Refusal};
use proptest::prelude::*;
use tower::{Layer, Service};

/// A service that answers at once.
#[derive(Clone)]
struct Prompt;

impl Service<Req> for Prompt {
    type Response = Req;
    type Error = Failure;
    type Future = Ready<Result<Req, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Req) -> Self::Future {
        ready(Ok(req))
    }
}

/// A service whose requests run until the test ends them.
#[derive(Clone, Default)]
struct Held {
    /// The requests in the order in which they were begun.
    begun: Arc<Mutex<Vec<u64>>>,
    ended: Arc<Mutex<HashSet<u64>>>,
}

impl Service<Req> for Held {
    type Response = Req;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Req, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Req) -> Self::Future {
        self.begun.lock().unwrap().push(req.id);
        let ended = Arc::clone(&self.ended);
        Box::pin(std::future::poll_fn(move |_| {
            match ended.lock().unwrap().contains(&req.id) {
                true => Poll::Ready(Ok(req)),
                false => Poll::Pending,
            }
        }))
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn call<S: Service<Req>>(service: &mut S, req: Req) -> S::Future {
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    service.call(req)
}

/// Sends a request to a prompt service, and expects the answer at once.
fn ask<S>(service: &mut S, req: Req)
where
    S: Service<Req, Response = Req, Error = Failure>,
{
    let mut response = std::pin::pin!(call(service, req));
    assert!(matches!(poll(response.as_mut()), Poll::Ready(Ok(_))));
}

#[test]
fn a_request_that_passes_allocates_nothing_and_wakes_no_task() {
    for (case, firq) in [
        firq(),
        firq().with_in_flight_limit(1),
        firq().with_max_in_flight_per_tenant(2),
        firq().with_settle_by_elapsed(MILLI),
        firq().with_adaptive_limit(firq_tower::Adaptive::between(1, 8)),
    ]
    .into_iter()
    .enumerate()
    {
        let layer = build(firq);
        let mut service = layer.layer(Prompt);
        (0..4).for_each(|tenant| ask(&mut service, Req::of(tenant))); // the first of each tenant is queued
        let counted = allocation_counter::measure(|| {
            (0..1_000).for_each(|id| ask(&mut service, Req::of(id % 4)));
        });
        assert_eq!(counted.count_total, 0, "case {case}");
        let stats = layer.stats();
        assert_eq!((stats.queue.enqueued, stats.queue.dequeued), (1_004, 1_004));
        assert_eq!(stats.queue.queue_time.samples, 1_004);
        assert_eq!((stats.queue.wakeups, stats.in_flight_active), (0, 0));
        let top: Vec<u64> = stats
            .queue
            .top_tenants
            .iter()
            .map(|top| top.enqueued)
            .collect();
        assert_eq!(top, [251; 4]);
    }
}

#[test]
fn a_request_whose_deadline_has_passed_does_not_pass() {
    let layer = build(firq());
    let mut service = layer.layer(Prompt);
    ask(&mut service, Req::of(1));
    let late = Req {
        deadline: std::time::Instant::now().checked_sub(MILLI),
        ..Req::of(1)
    };
    let mut response = std::pin::pin!(call(&mut service, late));
    let Poll::Ready(Err(Failure::Refused(refusal))) = poll(response.as_mut()) else {
        panic!("it is refused at once");
    };
    assert_eq!(refusal.cause, Cause::Expired);
    let stats = layer.stats();
    assert_eq!((stats.queue.expired, stats.queue.dequeued), (1, 1));
}

#[test]
fn a_tenant_that_holds_all_it_may_waits_and_others_pass_around_it() {
    let layer = build(
        firq()
            .with_in_flight_limit(3)
            .with_max_in_flight_per_tenant(1),
    );
    let held = Held::default();
    let mut service = layer.layer(held.clone());
    let mut responses: Vec<_> = [(1, 0), (1, 1), (2, 2), (2, 3), (3, 4)]
        .map(|(tenant, id)| Box::pin(call(&mut service, Req::of(tenant).id(id))))
        .into();
    assert!(held.begun.lock().unwrap().is_empty(), "none was polled");
    for response in &mut responses {
        assert!(poll(response.as_mut()).is_pending());
    }
    assert_eq!(*held.begun.lock().unwrap(), [0, 2, 4]);
    held.ended.lock().unwrap().insert(2);
    assert!(poll(responses[2].as_mut()).is_ready());
    assert!(poll(responses[3].as_mut()).is_pending());
    assert_eq!(*held.begun.lock().unwrap(), [0, 2, 4, 3]);
    drop(responses.remove(0));
    assert!(poll(responses[0].as_mut()).is_pending());
    assert_eq!(*held.begun.lock().unwrap(), [0, 2, 4, 3, 1]);
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Send {
        tenant: u64,
        cost: u64,
    },
    /// The service ends one of the requests that run.
    End(usize),
    /// The client of one of the requests goes away.
    Leave(usize),
}

fn verbs() -> impl Strategy<Value = Vec<Verb>> {
    let verb = prop_oneof![
        5 => (0..5_u64, 1..20_u64).prop_map(|(tenant, cost)| Verb::Send { tenant, cost }),
        4 => any::<prop::sample::Index>().prop_map(|at| Verb::End(at.index(1 << 20))),
        1 => any::<prop::sample::Index>().prop_map(|at| Verb::Leave(at.index(1 << 20))),
    ];
    prop::collection::vec(verb, 1..300)
}

/// A gate that lets no request pass: each is queued, and permits are handed out one at a time.
struct Plain {
    scheduler: firq_core::Scheduler<u64>,
    limit: usize,
    running: Vec<u64>,
    queued: HashMap<u64, firq_core::TaskHandle>,
    begun: Vec<u64>,
}

impl Plain {
    fn admit(&mut self) {
        while self.running.len() < self.limit
            && let Some((_, task)) = self.scheduler.try_dequeue().into_task()
        {
            self.queued.remove(&task.payload);
            self.running.push(task.payload);
            self.begun.push(task.payload);
        }
    }

    fn send(&mut self, tenant: u64, cost: u64, id: u64) {
        let task = firq_core::Task::new(id).with_cost(cost);
        let tenant = firq_core::TenantKey::from(tenant);
        let handle = self.scheduler.submit(tenant, task).unwrap();
        self.queued.insert(id, handle);
        self.admit();
    }

    fn leave(&mut self, id: u64) {
        if let Some(handle) = self.queued.remove(&id) {
            let _ = self.scheduler.cancel(handle);
        }
        self.running.retain(|&running| running != id);
        self.admit();
    }
}

proptest! {
    #[test]
    fn requests_begin_in_the_order_of_a_gate_that_queues_each_of_them(
        verbs in verbs(),
        limit in 1..5_usize,
    ) {
        let layer = build(firq().with_in_flight_limit(limit).with_quantum(4));
        let held = Held::default();
        let mut service = layer.layer(held.clone());
        let config = firq_core::SchedulerConfig { quantum: 4, ..firq_core::SchedulerConfig::fair() };
        let mut plain = Plain {
            scheduler: firq_core::Scheduler::new(config).unwrap(),
            limit,
            running: Vec::new(),
            queued: HashMap::new(),
            begun: Vec::new(),
        };
        let mut responses = Vec::new();
        for (id, verb) in (0..).zip(verbs) {
            match verb {
                Verb::Send { tenant, cost } => {
                    let req = Req { cost, ..Req::of(tenant).id(id) };
                    responses.push((id, Box::pin(call(&mut service, req))));
                    plain.send(tenant, cost, id);
                }
                Verb::End(at) if !plain.running.is_empty() => {
                    let id = plain.running[at % plain.running.len()];
                    held.ended.lock().unwrap().insert(id);
                    plain.leave(id);
                }
                Verb::Leave(at) if !responses.is_empty() => {
                    let (id, response) = responses.swap_remove(at % responses.len());
                    drop(response);
                    plain.leave(id);
                }
                Verb::End(_) | Verb::Leave(_) => {}
            }
            // A request begins when its task is polled, which is whenever it has been woken.
            let mut before = None;
            loop {
                let now = Some((held.begun.lock().unwrap().len(), responses.len()));
                if std::mem::replace(&mut before, now) == now {
                    break;
                }
                responses.retain_mut(|(_, response)| poll(response.as_mut()).is_pending());
            }
            let stats = layer.stats();
            prop_assert_eq!(stats.in_flight_active, plain.running.len());
            prop_assert_eq!(stats.queue.queue_len_estimate, plain.queued.len());
            let (mut ours, mut theirs) = (held.begun.lock().unwrap().clone(), plain.begun.clone());
            prop_assert_eq!(ours.len(), theirs.len());
            // Several may have been admitted by one verb, and are polled in the order of their ids.
            ours.sort_unstable();
            theirs.sort_unstable();
            prop_assert_eq!(ours, theirs);
            let theirs = plain.scheduler.stats();
            prop_assert_eq!(stats.queue.enqueued, theirs.enqueued);
            prop_assert_eq!(stats.queue.dequeued, theirs.dequeued);
            prop_assert_eq!(stats.queue.cancelled, theirs.cancelled);
        }
    }
}

/// Counts the requests that run at the same time.
#[derive(Clone, Default)]
struct Crowded {
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service<Req> for Crowded {
    type Response = Req;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Req, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Req) -> Self::Future {
        assert!(
            !self.is_over.load(Ordering::SeqCst),
            "it runs after the drain"
        );
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let running = Running(Arc::clone(&self.running));
        Box::pin(async move {
            for _ in 0..req.id % 3 {
                tokio::task::yield_now().await;
            }
            drop(running);
            Ok(req)
        })
    }
}

const SENDERS: u64 = 6;
const EACH: u64 = 2_000;

/// Sends requests one after another, and gives some of them up at different points. Returns how many were answered, given
/// up, and refused.
async fn send_many(mut service: impl TestService, sender: u64) -> (u64, u64, u64) {
    let (mut answered, mut left, mut refused) = (0, 0, 0);
    for id in 0..EACH {
        let req = Req::of(sender % 4).id(id.wrapping_mul(7) + sender);
        std::future::poll_fn(|context| service.poll_ready(context))
            .await
            .unwrap();
        let mut response = Box::pin(service.call(req));
        if id % 11 == 3 {
            drop(response); // queued or running, and never polled
            left += 1;
        } else if id % 11 == 7 && poll(response.as_mut()).is_pending() {
            drop(response);
            left += 1;
        } else if id % 11 == 7 {
            answered += 1;
        } else {
            match response.await {
                Ok(_) => answered += 1,
                Err(Failure::Refused(Refusal { cause, .. })) => {
                    assert_eq!(cause, Cause::Closed);
                    refused += 1;
                }
            }
        }
    }
    (answered, left, refused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn permits_that_pass_and_permits_that_are_handed_over_add_up() {
    for limit in [1, 2, 5] {
        for quota in [None, Some(1)] {
            let firq = match quota {
                None => firq(),
                Some(max) => firq().with_max_in_flight_per_tenant(max),
            };
            let layer = build(firq.with_in_flight_limit(limit).with_max_per_tenant(1_000));
            let crowded = Crowded::default();
            let service = layer.layer(crowded.clone());
            let senders: Vec<_> = (0..SENDERS)
                .map(|sender| tokio::spawn(send_many(service.clone(), sender)))
                .collect();
            let (mut answered, mut left) = (0, 0);
            for sender in senders {
                let sent = sender.await.unwrap();
                (answered, left) = (answered + sent.0, left + sent.1);
                assert_eq!(sent.2, 0);
            }
            assert_eq!(answered + left, SENDERS * EACH);
            assert!(crowded.most.load(Ordering::SeqCst) <= limit);
            let stats = layer.stats();
            assert_eq!(stats.queue.enqueued, SENDERS * EACH);
            assert_eq!(stats.queue.dequeued + stats.queue.cancelled, SENDERS * EACH);
            assert_eq!(
                (stats.in_flight_active, stats.queue.queue_len_estimate),
                (0, 0)
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_request_passes_once_the_layer_has_drained() {
    for round in 0..50 {
        let layer = build(firq().with_in_flight_limit(2).with_max_per_tenant(1_000));
        let crowded = Crowded::default();
        let service = layer.layer(crowded.clone());
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| tokio::spawn(send_many(service.clone(), sender)))
            .collect();
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        layer.close_drain();
        layer.drained().await;
        crowded.is_over.store(true, Ordering::SeqCst);
        assert_eq!(crowded.running.load(Ordering::SeqCst), 0);
        for sender in senders {
            sender.await.unwrap();
        }
        assert_eq!(layer.stats().in_flight_active, 0);
    }
}
