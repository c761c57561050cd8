//! The threads that run hooks.
//!
//! All that they share is behind one lock that is held for moments: the lines, and who works. A worker takes a job, works
//! on it for its part of the time, and puts it down. The job lies in the worker's seat meanwhile, so that it can be taken
//! from there if the worker does not come back from a call; the worker has a copy of the questions only.

use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use fila_core::{Judgement, NewMessage};
use fila_lua::{Hook, Watch};
use fila_store::StoredMessage;
use tokio::sync::watch;
use tracing::error;

use super::desk::Desk;
use super::lines::Lines;
use super::queue_hooks::{About, Failed, QueueHooks, Verdict};
use super::watchdog;
use crate::runtime_config::Entries;

/// How long a worker is at one job while others wait.
const TURN: Duration = Duration::from_millis(2);

/// How many workers there are: one for each core, within these bounds. One alone could not be fair.
const WORKERS_MIN: usize = 2;
const WORKERS_MAX: usize = 8;

/// Workers that may be given up and still run. More are not replaced: something is badly wrong then.
const GIVEN_UP_MAX: usize = 32;

/// What a hook is asked.
#[derive(Clone, Debug)]
pub(crate) enum Questions {
    /// How these are to be scheduled.
    Enqueue(Arc<Vec<NewMessage>>),
    /// How these dead letters are, which come back.
    Redrive(Arc<Vec<StoredMessage>>),
    /// What becomes of this one.
    Failure(Arc<Failed>),
}

impl Questions {
    fn len(&self) -> usize {
        match self {
            Self::Enqueue(messages) => messages.len(),
            Self::Redrive(messages) => messages.len(),
            Self::Failure(_) => 1,
        }
    }

    /// Tells that whoever asked is gone: he has the messages, too, while he waits. A failure is always waited for.
    fn is_forsaken(&self) -> bool {
        match self {
            Self::Enqueue(messages) => Arc::strong_count(messages) == 1,
            Self::Redrive(messages) => Arc::strong_count(messages) == 1,
            Self::Failure(_) => false,
        }
    }

    fn hook(&self) -> Hook {
        match self {
            Self::Enqueue(_) | Self::Redrive(_) => Hook::OnEnqueue,
            Self::Failure(_) => Hook::OnFailure,
        }
    }
}

/// What comes of one question.
#[derive(Debug)]
pub(crate) enum Answer {
    Verdict(Verdict),
    Judged(Judgement),
}

type Done = Box<dyn FnOnce(Vec<Answer>) + Send>;

/// Questions to the hooks of one queue that are answered together.
pub(crate) struct Job {
    hooks: Arc<QueueHooks>,
    questions: Questions,
    /// To the first of the questions.
    answers: Vec<Answer>,
    done: Done,
}

impl Job {
    /// Makes a job. What is to be done with its answers must not take long, and is dropped if the server stops.
    pub(crate) fn new(
        hooks: Arc<QueueHooks>,
        questions: Questions,
        done: impl FnOnce(Vec<Answer>) + Send + 'static,
    ) -> Self {
        Self {
            answers: Vec::with_capacity(questions.len()),
            hooks,
            questions,
            done: Box::new(done),
        }
    }

    /// Tells whether nothing is left to be asked, or nobody wants to know. To be called by who has its only copy.
    fn is_done(&self) -> bool {
        self.answers.len() >= self.questions.len() || self.questions.is_forsaken()
    }

    fn finish(self) {
        let Self {
            questions,
            answers,
            done,
            ..
        } = self;
        // Whoever asked has them to himself again.
        drop(questions);
        done(answers);
    }

    /// Answers the question that a call has not ended for.
    fn give_up(&mut self, now: Instant, waited: Duration) {
        self.hooks.given_up(self.questions.hook(), now, waited);
        let about = match &self.questions {
            Questions::Enqueue(messages) => messages.get(self.answers.len()).map(About::from),
            Questions::Redrive(messages) => messages.get(self.answers.len()).map(About::from),
            Questions::Failure(_) => {
                return self.answers.push(Answer::Judged(Judgement::Default));
            }
        };
        let answer = about.map(|about| Answer::Verdict(self.hooks.stand_in(about)));
        self.answers.extend(answer);
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("questions", &self.questions.len())
            .field("answers", &self.answers.len())
            .finish_non_exhaustive()
    }
}

/// The way to the workers. They end when it is told to stop.
#[derive(Clone, Debug)]
pub(crate) struct Pool(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Workers wait here for jobs,
    jobs: Condvar,
    /// and the watchdog for somebody to watch.
    busy: Condvar,
    /// How many queues have something waiting, for workers to look at without the lock.
    queues_waiting: AtomicUsize,
    /// For workers that are at a long job.
    is_stopping: AtomicBool,
    config: watch::Receiver<Arc<Entries>>,
    /// How long a call may take before its worker is given up.
    patience: Duration,
    pub(super) sandboxes: AtomicUsize,
}

#[derive(Debug)]
struct State {
    lines: Lines<Job>,
    seats: Vec<Arc<Seat>>,
    next_seat: usize,
    given_up: usize,
    /// How often scripts were retired.
    retired: u64,
    is_stopping: bool,
}

/// Where a worker is at work.
#[derive(Debug)]
pub(super) struct Seat {
    number: usize,
    sitting: Mutex<Sitting>,
}

#[derive(Debug, Default)]
struct Sitting {
    job: Option<Job>,
    watch: Option<Watch>,
}

/// What a worker finds when it comes back to its seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Returned {
    GoOn,
    /// The job is gone: the worker was given up, or the server stops.
    GivenUp,
}

impl Seat {
    fn sitting(&self) -> MutexGuard<'_, Sitting> {
        self.sitting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, answer: Answer) -> Returned {
        match &mut self.sitting().job {
            Some(job) => {
                job.answers.push(answer);
                Returned::GoOn
            }
            None => Returned::GivenUp,
        }
    }

    /// Returns how long the present call has taken, if that is too long.
    fn overrun(&self, now: Instant, patience: Duration) -> Option<Duration> {
        let sitting = self.sitting();
        let busy = sitting.watch.as_ref()?.busy_for(now)?;
        (sitting.job.is_some() && busy > patience).then_some(busy)
    }
}

impl Pool {
    /// Starts workers, and who watches them. `timeout` is how long a call may run.
    pub(crate) fn start(
        timeout: Duration,
        config: watch::Receiver<Arc<Entries>>,
    ) -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self::start_with(cores.min(WORKERS_MAX), watchdog::patience(timeout), config)
    }

    /// Starts so many workers, two at least, whose calls are waited for so long.
    pub(super) fn start_with(
        workers: usize,
        patience: Duration,
        config: watch::Receiver<Arc<Entries>>,
    ) -> io::Result<Self> {
        let workers = workers.max(WORKERS_MIN);
        let pool = Self(Arc::new(Shared {
            state: Mutex::new(State {
                lines: Lines::new(workers),
                seats: Vec::new(),
                next_seat: 0,
                given_up: 0,
                retired: 0,
                is_stopping: false,
            }),
            jobs: Condvar::new(),
            busy: Condvar::new(),
            queues_waiting: AtomicUsize::new(0),
            is_stopping: AtomicBool::new(false),
            config,
            patience,
            sandboxes: AtomicUsize::new(0),
        }));
        for _ in 0..workers {
            pool.0.hire()?;
        }
        let shared = pool.0.clone();
        Builder::new()
            .name("fila-hook-watch".to_owned())
            .spawn(move || watchdog::run(&shared))?;
        Ok(pool)
    }

    /// Puts a job into the line of its queue.
    pub(crate) fn submit(&self, job: Job) {
        let mut state = self.0.lock();
        if !state.is_stopping {
            state.lines.push(job.hooks.queue, job);
            self.0.publish(&state);
            drop(state);
            self.0.jobs.notify_one();
        }
    }

    /// Lets workers drop the sandboxes of scripts that were retired.
    pub(crate) fn sweep(&self) {
        self.0.lock().retired += 1;
        self.0.jobs.notify_all();
    }

    /// Drops all that waits, and lets the workers end.
    pub(crate) fn stop(&self) {
        let mut state = self.0.lock();
        state.is_stopping = true;
        self.0.is_stopping.store(true, Ordering::Relaxed);
        state.lines.clear();
        drop(state);
        self.0.jobs.notify_all();
        self.0.busy.notify_all();
    }

    /// Returns how many sandboxes there are.
    pub(crate) fn sandboxes(&self) -> usize {
        self.0.sandboxes.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, state: &State) {
        let waiting = state.lines.queues_waiting();
        self.queues_waiting.store(waiting, Ordering::Relaxed);
    }

    /// Starts a worker.
    fn hire(self: &Arc<Self>) -> io::Result<()> {
        let mut state = self.lock();
        let seat = Arc::new(Seat {
            number: state.next_seat,
            sitting: Mutex::default(),
        });
        state.next_seat += 1;
        state.seats.push(seat.clone());
        drop(state);
        let shared = self.clone();
        let started = Builder::new()
            .name(format!("fila-hook-{}", seat.number))
            .spawn({
                let seat = seat.clone();
                move || {
                    let guard = Leaving {
                        shared: &shared,
                        seat: &seat,
                    };
                    let desk = Desk::new(&shared.config, &shared.sandboxes);
                    shared.work(&seat, desk);
                    drop(guard);
                }
            });
        if started.is_err() {
            self.lock().seats.retain(|it| !Arc::ptr_eq(it, &seat));
        }
        started.map(drop)
    }

    /// The life of a worker.
    fn work(&self, seat: &Seat, mut desk: Desk<'_>) {
        while let Some(job) = self.next(&mut desk) {
            if self.run(seat, job, &mut desk) == Returned::GivenUp {
                return;
            }
        }
    }

    /// Waits for a job; none if the server stops.
    fn next(&self, desk: &mut Desk<'_>) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.is_stopping {
                return None;
            }
            if desk.swept != state.retired {
                desk.swept = state.retired;
                drop(state);
                desk.sweep();
                state = self.lock();
                continue;
            }
            let was_idle = !state.lines.is_busy();
            if let Some(job) = state.lines.take() {
                self.publish(&state);
                drop(state);
                if was_idle {
                    self.busy.notify_one();
                }
                return Some(job);
            }
            let woken = self.jobs.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Works on a job until it is done, or until its turn is over and others wait.
    fn run(&self, seat: &Seat, job: Job, desk: &mut Desk<'_>) -> Returned {
        if job.is_done() {
            self.put_down(job);
            return Returned::GoOn;
        }
        let hooks = job.hooks.clone();
        let questions = job.questions.clone();
        let from = job.answers.len();
        let Some(loaded) = hooks.loaded() else {
            // Jobs are made for scripts that can be run.
            drop(questions);
            self.put_down(job);
            return Returned::GoOn;
        };
        // It lies there before anything is done that might fail.
        *seat.sitting() = Sitting {
            job: Some(job),
            watch: None,
        };
        let watch = desk.sandbox(loaded).watch();
        seat.sitting().watch = Some(watch);
        let began = Instant::now();
        for place in from..questions.len() {
            let now = Instant::now();
            let is_over = now.duration_since(began) >= TURN;
            if is_over && self.queues_waiting.load(Ordering::Relaxed) > 0 {
                break;
            }
            if self.is_stopping.load(Ordering::Relaxed) {
                // Whoever waits for the job is told by its end.
                drop(seat.sitting().job.take());
                return Returned::GivenUp;
            }
            let sandbox = desk.at_present();
            let answer = match &questions {
                Questions::Enqueue(messages) => {
                    Answer::Verdict(hooks.schedule(sandbox, (&messages[place]).into(), now))
                }
                Questions::Redrive(messages) => {
                    Answer::Verdict(hooks.schedule(sandbox, (&messages[place]).into(), now))
                }
                Questions::Failure(failed) => Answer::Judged(hooks.judge(sandbox, failed, now)),
            };
            if seat.answer(answer) == Returned::GivenUp {
                return Returned::GivenUp;
            }
        }
        drop(questions);
        if loaded.is_retired() {
            // It was in line before its script was replaced; nobody will ask again.
            desk.sweep();
        }
        let Some(job) = seat.sitting().job.take() else {
            return Returned::GivenUp;
        };
        self.put_down(job);
        Returned::GoOn
    }

    fn put_down(&self, job: Job) {
        let queue = job.hooks.queue;
        let (done, rest) = match job.is_done() {
            true => (Some(job), None),
            false => (None, Some(job)),
        };
        let mut state = self.lock();
        state.lines.put_down(queue, rest);
        self.publish(&state);
        drop(state);
        if let Some(job) = done {
            job.finish();
        }
    }

    /// Gives up workers whose calls do not end. Waits for a while, or until there is somebody to watch. Returns whether
    /// there is more to watch.
    pub(super) fn watch(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        if state.is_stopping {
            return false;
        }
        let seats = if state.lines.is_busy() {
            let tick = (self.patience / 4).max(Duration::from_millis(1));
            let waited = self.busy.wait_timeout(state, tick);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.seats.clone()
        } else {
            let woken = self.busy.wait(state);
            drop(woken.unwrap_or_else(PoisonError::into_inner));
            return true;
        };
        drop(state);
        let now = Instant::now();
        for seat in seats {
            if let Some(waited) = seat.overrun(now, self.patience) {
                self.give_up(&seat, now, waited);
            }
        }
        true
    }

    /// Takes the job from a worker that does not come back, and hires another in its place.
    fn give_up(self: &Arc<Self>, seat: &Arc<Seat>, now: Instant, waited: Duration) {
        let Some(mut job) = seat.sitting().job.take() else {
            return;
        };
        job.give_up(now, waited);
        let mut state = self.lock();
        state.seats.retain(|it| !Arc::ptr_eq(it, seat));
        state.given_up += 1;
        let given_up = state.given_up;
        drop(state);
        self.put_down(job);
        error!(
            worker = seat.number,
            ?waited,
            given_up,
            "a hook did not end; its thread is given up and replaced"
        );
        if given_up > GIVEN_UP_MAX {
            error!("too many threads of hooks were given up; this one is not replaced");
        } else if let Err(error) = self.hire() {
            error!(%error, "the thread was not replaced");
        }
        self.jobs.notify_one();
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.lock().lines.is_empty()
    }

    #[cfg(test)]
    pub(super) fn workers(&self) -> usize {
        self.lock().seats.len()
    }

    #[cfg(test)]
    pub(super) fn given_up(&self) -> usize {
        self.lock().given_up
    }
}

/// Sees to it that a worker leaves nothing undone, also if it panics.
struct Leaving<'a> {
    shared: &'a Arc<Shared>,
    seat: &'a Arc<Seat>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared
                .give_up(self.seat, Instant::now(), Duration::ZERO);
        }
        let mut state = self.shared.lock();
        let seats = state.seats.len();
        state.seats.retain(|it| !Arc::ptr_eq(it, self.seat));
        // One that is not among them was given up, and is back.
        if state.seats.len() == seats {
            state.given_up = state.given_up.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests;
