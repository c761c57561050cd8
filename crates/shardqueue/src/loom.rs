//! Races between submitters, the worker, cancellers and stoppers, in every order that the memory model allows.
//!
//! ```text
//! scripts/loom-shardqueue
//! ```
//!
//! Each model is a whole shard with two or three threads; the worker is its loop without Tokio. The models
//! explore the hand-off: the worker never sleeps while there is something to do, and every submission is answered.

use std::future::{poll_fn, ready};
use std::sync::Arc;
use std::task::Poll;

use foldhash::fast::RandomState;
use loom::future::block_on;
use loom::thread;

use crate::context::JobContext;
use crate::core::{KeyLimit, Limits, Next, Patience, Timestamp};
use crate::hooks::Hooks;
use crate::job::{BoxJob, Job};
use crate::options::Priority;
use crate::outcome::{CancelResult, JobId, Outcome};
use crate::retry::FailedAttempt;
use crate::shard::{NewJob, Report, Shard, ShardKeys, Submitted, Task, submit_across};
use crate::ticket::Ticket;

/// Explores every schedule, or where there are too many, those with a bounded number of preemptions.
fn explore(preemptions: impl Into<Option<usize>>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.check(model);
}

fn shard(queue_max: usize) -> Arc<Shard> {
    numbered(0, queue_max)
}

fn numbered(number: u32, queue_max: usize) -> Arc<Shard> {
    let limits = Limits {
        queue_max,
        key_max: KeyLimit::Fixed(queue_max),
        backoff_max: 1,
        concurrency: 1,
        urgent_max: 1,
    };
    let hooks = Hooks {
        retry: Arc::new(|_: &FailedAttempt<'_>| None),
        on_error: None,
        on_dead: None,
    };
    Arc::new(Shard::new(
        number,
        (limits, None),
        RandomState::default(),
        Arc::new(hooks),
    ))
}

/// Returns a shard that has one job queued.
fn occupied(queue_max: usize) -> Arc<Shard> {
    let shard = shard(queue_max);
    accepted(submit(&shard, Patience::Waits));
    shard
}

fn job() -> BoxJob {
    (|_: JobContext| ready(())).boxed()
}

fn submit(shard: &Arc<Shard>, patience: Patience) -> Submitted {
    let new_job = NewJob {
        key: "key",
        job: job(),
        priority: Priority::Normal,
        cost: drr::Cost::ONE,
        caller: None,
    };
    shard.submit(new_job, patience)
}

fn accepted(submitted: Submitted) -> (JobId, Arc<Ticket>) {
    match submitted {
        Submitted::Accepted(id, ticket) | Submitted::Waiting(id, ticket) => (id, ticket),
        other => panic!("{other:?}"),
    }
}

/// Runs jobs until this many have run, or until the shard has ended. Returns how many have run.
fn work(shard: &Shard, jobs: usize) -> usize {
    let ran = run(shard, jobs);
    shard.drop_tickets(); // as the worker does when it ends
    ran
}

fn run(shard: &Shard, jobs: usize) -> usize {
    let mut report = None;
    for ran in 0..=jobs {
        let task = block_on(poll_fn(|cx| {
            let times = (Timestamp::default(), None);
            match shard.next_task(cx, report.take(), times) {
                Task::Next(Next::Idle(_)) if ran < jobs => Poll::Pending,
                task => Poll::Ready(task),
            }
        }));
        match task {
            Task::Next(Next::Run(lease)) => {
                report = Some(Report::Ended(lease.place, Outcome::Done));
            }
            Task::Next(Next::Ended | Next::Idle(_)) => return ran,
            other => panic!("{other:?}"),
        }
    }
    jobs
}

fn worker(shard: &Arc<Shard>, jobs: usize) -> thread::JoinHandle<usize> {
    let shard = Arc::clone(shard);
    thread::spawn(move || work(&shard, jobs))
}

fn outcome(ticket: &Ticket) -> Outcome {
    block_on(poll_fn(|cx| ticket.poll_outcome(cx)))
}

#[test]
fn a_sleeping_worker_gets_the_job() {
    explore(None, || {
        let shard = shard(4);
        let worker = worker(&shard, 1);
        let (_, ticket) = accepted(submit(&shard, Patience::Waits));
        assert!(outcome(&ticket).is_done());
        assert_eq!(worker.join().unwrap(), 1);
    });
}

#[test]
fn jobs_of_two_submitters_all_run() {
    explore(3, || {
        let shard = shard(4);
        let other = {
            let shard = Arc::clone(&shard);
            thread::spawn(move || {
                accepted(submit(&shard, Patience::Waits));
            })
        };
        let worker = worker(&shard, 2);
        accepted(submit(&shard, Patience::Waits));
        other.join().unwrap();
        assert_eq!(worker.join().unwrap(), 2);
    });
}

#[test]
fn stopping_ends_a_sleeping_worker_after_what_is_queued() {
    explore(None, || {
        let shard = shard(4);
        let (_, ticket) = accepted(submit(&shard, Patience::Waits));
        let worker = worker(&shard, 9);
        shard.stop();
        assert_eq!(worker.join().unwrap(), 1);
        assert!(outcome(&ticket).is_done());
    });
}

#[test]
fn a_submission_either_runs_or_is_refused_when_the_shard_stops() {
    explore(3, || {
        let shard = occupied(1);
        let worker = worker(&shard, 9);
        let stopper = {
            let shard = Arc::clone(&shard);
            thread::spawn(move || shard.stop())
        };
        let running = match submit(&shard, Patience::Waits) {
            Submitted::Closed(_) => None,
            Submitted::Accepted(_, ticket) => Some(ticket),
            Submitted::Waiting(_, ticket) => {
                block_on(poll_fn(|cx| ticket.poll_answered(cx)));
                ticket.take_refused().is_none().then_some(ticket)
            }
            Submitted::Full(..) => panic!("it waits"),
        };
        stopper.join().unwrap();
        assert_eq!(worker.join().unwrap(), 1 + usize::from(running.is_some()));
        if let Some(ticket) = running {
            assert!(outcome(&ticket).is_done());
        }
    });
}

#[test]
fn a_submission_that_waits_gets_the_room_that_the_worker_makes() {
    explore(None, || {
        let shard = occupied(1);
        let worker = worker(&shard, 2);
        let (_, ticket) = accepted(submit(&shard, Patience::Waits));
        block_on(poll_fn(|cx| ticket.poll_answered(cx)));
        assert!(outcome(&ticket).is_done());
        assert_eq!(worker.join().unwrap(), 2);
    });
}

#[test]
fn a_submission_that_gives_up_is_accepted_or_gets_its_job_back() {
    explore(None, || {
        let shard = occupied(1);
        let worker = {
            let shard = Arc::clone(&shard);
            thread::spawn(move || work(&shard, 9))
        };
        let (id, ticket) = accepted(submit(&shard, Patience::Waits));
        let is_back = shard.time_out(id.place).is_some();
        shard.stop();
        assert_eq!(worker.join().unwrap(), 2 - usize::from(is_back));
        assert!(is_back || outcome(&ticket).is_done());
    });
}

#[test]
fn a_job_is_cancelled_or_runs_and_never_both() {
    explore(None, || {
        let shard = shard(4);
        let (id, ticket) = accepted(submit(&shard, Patience::Waits));
        let worker = worker(&shard, 9);
        let result = shard.cancel(id.place, &ticket);
        shard.stop();
        let ran = worker.join().unwrap();
        match (result, outcome(&ticket)) {
            (CancelResult::Cancelled, Outcome::Cancelled) => assert_eq!(ran, 0),
            (CancelResult::Signalled | CancelResult::TooLate, Outcome::Done) => assert_eq!(ran, 1),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn handing_back_and_draining_share_the_jobs_between_them() {
    explore(3, || {
        let shard = shard(4);
        let tickets: Vec<_> = (0..2)
            .map(|_| accepted(submit(&shard, Patience::Waits)).1)
            .collect();
        let worker = worker(&shard, 9);
        shard.stop();
        let (returned, failed) = shard.hand_back();
        assert!(failed.is_empty());
        assert_eq!(worker.join().unwrap() + returned.len(), 2);
        let done = tickets
            .iter()
            .filter(|ticket| outcome(ticket).is_done())
            .count();
        assert_eq!(done + returned.len(), 2);
    });
}

#[test]
fn a_barrier_rings_when_the_last_job_before_it_ends() {
    explore(None, || {
        let shard = occupied(4);
        let worker = worker(&shard, 1);
        if let Some((_, bell)) = shard.barrier(Some("key")) {
            block_on(poll_fn(|cx| bell.poll_rung(cx)));
        }
        assert_eq!(shard.snapshot().counters.ran, 1);
        assert_eq!(worker.join().unwrap(), 1);
    });
}

/// Submits a job for one key in each of two shards, of which the first runs it.
fn submit_both(shards: &[Arc<Shard>; 2], home: usize, ticket: &Arc<Ticket>) -> Submitted {
    let keys = ["key", "other"];
    let group = |at: usize| ShardKeys {
        shard: Arc::clone(&shards[at]),
        keys: vec![keys[at].to_owned()],
    };
    let new_job = NewJob {
        key: keys[home],
        job: job(),
        priority: Priority::Normal,
        cost: drr::Cost::ONE,
        caller: None,
    };
    submit_across(&[group(0), group(1)], new_job, ticket, None)
}

#[test]
fn jobs_across_keys_all_run_whichever_shard_comes_first() {
    explore(1, || {
        let shards = [numbered(0, 4), numbered(1, 4)];
        let tickets = [0, 1].map(|at: usize| Arc::new(Ticket::new(Arc::clone(&shards[at]), None)));
        accepted(submit_both(&shards, 0, &tickets[0]));
        let workers = [0, 1].map(|at| worker(&shards[at], 9));
        accepted(submit_both(&shards, 1, &tickets[1]));
        assert!(outcome(&tickets[0]).is_done() && outcome(&tickets[1]).is_done());
        shards
            .iter()
            .for_each(|shard| assert!(shard.stop().is_some()));
        for worker in workers {
            assert_eq!(worker.join().unwrap(), 1);
        }
    });
}

#[test]
fn a_job_across_keys_is_cancelled_or_runs_and_leaves_both_keys() {
    explore(2, || {
        let shards = [numbered(0, 4), numbered(1, 4)];
        let ticket = Arc::new(Ticket::new(Arc::clone(&shards[0]), None));
        let (id, _) = accepted(submit_both(&shards, 0, &ticket));
        let workers = [0, 1].map(|at| worker(&shards[at], 9));
        let result = shards[0].cancel(id.place, &ticket);
        shards
            .iter()
            .for_each(|shard| assert!(shard.stop().is_some()));
        let [home, other] = workers.map(|worker| worker.join().unwrap());
        assert_eq!(other, 0);
        assert_eq!(home == 0, result == CancelResult::Cancelled);
        for shard in &shards {
            assert_eq!(shard.snapshot().gauges, (0, 0, 0));
        }
    });
}
