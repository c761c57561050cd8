//! The seat of a scheduler: whichever thread has work for an idle scheduler runs it.
//!
//! A connection that brings one message to an idle scheduler takes the turn itself, and so does a commit thread that
//! brings a result. Neither wakes another thread for it. The scheduler's own thread has the turns that are left when a
//! caller has taken its share, the calls of threads that must not run the scheduler, the timers, and the end. While one
//! thread runs the scheduler, the others only add to its queues: the [`Baton`] says which one it is.
//!
//! The thread sleeps until its alarm. Another thread moves the alarm only if the scheduler has to run earlier. If the
//! alarm has gone off meanwhile, that thread hands the baton over instead of putting it down, and the scheduler's thread sets
//! the next alarm.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::baton::Baton;

/// How many turns a caller takes before it hands over to the scheduler's own thread: one for its work, and one for what
/// came meanwhile.
const TURNS_OF_CALLERS: usize = 2;

/// Work that is done in turns, by one thread at a time.
pub(crate) trait TurnTaker: Send {
    /// Does a bounded part of the work.
    fn turn(&mut self) -> TurnEnd;

    /// Tells whether its own thread has to take the next turn.
    fn needs_own_thread(&self) -> bool;
}

/// What is left after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    /// There is more to do.
    More,
    /// There is nothing to do before this moment, unless there is a call.
    Idle(Option<Instant>),
    /// There is nothing to do any more.
    Done,
}

/// A scheduler that threads run in turns.
pub(crate) struct Seat<T> {
    baton: Baton,
    /// Locked only by the thread that holds the baton. Empty before the start and after the end.
    seated: Mutex<Option<Seated<T>>>,
    alarm: Mutex<Alarm>,
    alarm_changed: Condvar,
}

#[derive(Debug)]
struct Seated<T> {
    turns: T,
    /// When the alarm goes off.
    armed: Option<Instant>,
}

/// What wakes the scheduler's own thread.
#[derive(Debug, Default)]
struct Alarm {
    at: Option<Instant>,
    /// The thread has the baton.
    is_handed_over: bool,
    /// Another thread has panicked in a turn.
    is_broken: bool,
}

impl<T> fmt::Debug for Seat<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat")
            .field("baton", &self.baton)
            .finish_non_exhaustive()
    }
}

fn hold<S>(mutex: &Mutex<S>) -> MutexGuard<'_, S> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: TurnTaker> Seat<T> {
    /// Returns a seat whose own thread has the baton, and has not started yet.
    pub(crate) fn new() -> Self {
        Self {
            baton: Baton::held(),
            seated: Mutex::new(None),
            alarm: Mutex::default(),
            alarm_changed: Condvar::new(),
        }
    }

    /// Calls for a turn after the caller has put work into a queue, and takes the turn if no other thread does.
    pub(crate) fn call(&self) {
        if self.baton.call() {
            self.take_turns();
        }
    }

    /// Calls for a turn by the scheduler's own thread, for callers that hold locks, must not take long, or bring work for
    /// more than a moment.
    pub(crate) fn summon(&self) {
        if self.baton.call() {
            self.hand_over();
        }
    }

    /// Runs the scheduler on its own thread, until it is done.
    ///
    /// # Panics
    /// If a turn panics, on this thread or on another.
    pub(crate) fn serve(&self, turns: T) {
        let armed = None;
        *hold(&self.seated) = Some(Seated { turns, armed });
        loop {
            let turn = self.with(|seated| seated.turns.turn());
            match turn {
                TurnEnd::More => {}
                TurnEnd::Idle(due) => {
                    self.with(|seated| seated.armed = due);
                    hold(&self.alarm).at = due;
                    if !self.baton.put_down() {
                        continue;
                    }
                    if self.wait() == Waited::Broken {
                        drop(hold(&self.seated).take());
                        panic!("a turn has panicked on another thread");
                    }
                }
                TurnEnd::Done => {
                    drop(hold(&self.seated).take());
                    return;
                }
            }
        }
    }

    fn with<R>(&self, run: impl FnOnce(&mut Seated<T>) -> R) -> R {
        let mut seated = hold(&self.seated);
        run(seated
            .as_mut()
            .expect("the baton is held until there is a scheduler, and after it has ended"))
    }

    /// Takes turns on a thread that has called.
    fn take_turns(&self) {
        let _report = TurnPanicReport(self);
        for _ in 0..TURNS_OF_CALLERS {
            let turn = self.with(|seated| {
                let is_own = !seated.turns.needs_own_thread();
                is_own.then(|| seated.turns.turn())
            });
            match turn {
                Some(TurnEnd::More) => {}
                Some(TurnEnd::Idle(due)) => {
                    if self.rearm(due) == Rearmed::GoneOff {
                        break;
                    }
                    if self.baton.put_down() {
                        return;
                    }
                }
                Some(TurnEnd::Done) | None => break,
            }
        }
        self.hand_over();
    }

    /// Hands the baton to the scheduler's own thread.
    fn hand_over(&self) {
        hold(&self.alarm).is_handed_over = true;
        self.alarm_changed.notify_one();
    }

    /// Moves the alarm forward if it would go off too late.
    fn rearm(&self, due: Option<Instant>) -> Rearmed {
        let armed = self.with(|seated| seated.armed);
        if armed.is_some_and(|armed| armed <= Instant::now()) {
            return Rearmed::GoneOff;
        }
        if let Some(due) = due
            && armed.is_none_or(|armed| due < armed)
        {
            self.with(|seated| seated.armed = Some(due));
            hold(&self.alarm).at = Some(due);
            self.alarm_changed.notify_one();
        }
        Rearmed::InTime
    }

    /// Waits on the scheduler's own thread until it holds the baton.
    fn wait(&self) -> Waited {
        let mut alarm = hold(&self.alarm);
        loop {
            if alarm.is_broken {
                return Waited::Broken;
            }
            if std::mem::take(&mut alarm.is_handed_over) {
                return Waited::Held;
            }
            let Some(at) = alarm.at else {
                let woken = self.alarm_changed.wait(alarm);
                alarm = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                alarm.at = None;
                drop(alarm);
                if self.baton.call() {
                    return Waited::Held;
                }
                // The holder sees that the alarm has gone off, and hands over.
                alarm = hold(&self.alarm);
            } else {
                let woken = self.alarm_changed.wait_timeout(alarm, left);
                alarm = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// Whether the alarm is early enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rearmed {
    InTime,
    GoneOff,
}

/// Why the scheduler's own thread no longer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Held,
    Broken,
}

/// Tells the scheduler's own thread if a turn panics on another thread. The baton stays held.
struct TurnPanicReport<'a, T: TurnTaker>(&'a Seat<T>);

impl<T: TurnTaker> Drop for TurnPanicReport<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            hold(&self.0.alarm).is_broken = true;
            self.0.alarm_changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread::ThreadId;
    use std::time::Duration;

    use crossbeam_channel::{Receiver, Sender};

    use super::*;

    /// An order to a counter.
    enum Order {
        /// Report which thread takes the turn.
        Report(Sender<ThreadId>),
        Count,
        /// Report the first turn at or after this moment.
        Alarm(Instant, Sender<ThreadId>),
        Panic,
        Stop,
    }

    struct Counter {
        orders: Receiver<Order>,
        counted: Arc<AtomicU64>,
        alarm: Option<(Instant, Sender<ThreadId>)>,
        is_stopping: bool,
    }

    impl TurnTaker for Counter {
        fn turn(&mut self) -> TurnEnd {
            if let Some((at, _)) = &self.alarm
                && *at <= Instant::now()
                && let Some((_, report)) = self.alarm.take()
            {
                let _ = report.send(std::thread::current().id());
            }
            match self.orders.try_recv() {
                Ok(Order::Report(to)) => drop(to.send(std::thread::current().id())),
                Ok(Order::Count) => drop(self.counted.fetch_add(1, Ordering::Relaxed)),
                Ok(Order::Alarm(at, report)) => self.alarm = Some((at, report)),
                Ok(Order::Panic) => panic!("as planned"),
                Ok(Order::Stop) => self.is_stopping = true,
                Err(_) => {}
            }
            match (self.is_stopping, self.orders.is_empty()) {
                (true, _) => TurnEnd::Done,
                (false, false) => TurnEnd::More,
                (false, true) => TurnEnd::Idle(self.alarm.as_ref().map(|(at, _)| *at)),
            }
        }

        fn needs_own_thread(&self) -> bool {
            self.is_stopping
        }
    }

    struct Running {
        seat: Arc<Seat<Counter>>,
        orders: Sender<Order>,
        counted: Arc<AtomicU64>,
        thread: std::thread::JoinHandle<()>,
    }

    impl Running {
        /// Starts a counter, and returns when its thread sleeps.
        fn start() -> Self {
            let (orders, to_take) = crossbeam_channel::unbounded();
            let counted = Arc::new(AtomicU64::new(0));
            let counter = Counter {
                orders: to_take,
                counted: counted.clone(),
                alarm: None,
                is_stopping: false,
            };
            let seat = Arc::new(Seat::new());
            let thread = std::thread::spawn({
                let seat = seat.clone();
                move || seat.serve(counter)
            });
            while !seat.baton.call() {
                std::thread::yield_now();
            }
            assert!(seat.baton.put_down());
            Self {
                seat,
                orders,
                counted,
                thread,
            }
        }

        fn order(&self, order: Order) {
            self.orders.send(order).unwrap();
        }

        fn stop(self) -> u64 {
            self.order(Order::Stop);
            self.seat.call();
            self.thread.join().unwrap();
            self.counted.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_caller_takes_the_turn_of_an_idle_scheduler_itself() {
        let running = Running::start();
        let (report, reported) = crossbeam_channel::unbounded();
        running.order(Order::Report(report.clone()));
        running.seat.call();
        // The turn is over when the call returns.
        assert_eq!(reported.try_recv(), Ok(std::thread::current().id()));
        running.order(Order::Report(report));
        running.seat.summon();
        assert_eq!(reported.recv(), Ok(running.thread.thread().id()));
        running.stop();
    }

    #[test]
    fn a_caller_leaves_the_rest_to_the_schedulers_own_thread() {
        let running = Running::start();
        let (report, reported) = crossbeam_channel::unbounded();
        for _ in 0..=TURNS_OF_CALLERS {
            running.order(Order::Report(report.clone()));
        }
        running.seat.call();
        for _ in 0..TURNS_OF_CALLERS {
            assert_eq!(reported.recv(), Ok(std::thread::current().id()));
        }
        assert_eq!(reported.recv(), Ok(running.thread.thread().id()));
        running.stop();
    }

    #[test]
    fn no_order_of_many_threads_is_overlooked() {
        const ORDERS: u64 = 10_000;
        let running = Running::start();
        std::thread::scope(|scope| {
            for summons in [false, false, true] {
                let running = &running;
                scope.spawn(move || {
                    for _ in 0..ORDERS {
                        running.order(Order::Count);
                        match summons {
                            true => running.seat.summon(),
                            false => running.seat.call(),
                        }
                    }
                });
            }
        });
        // Orders are taken one by one, in their order.
        assert_eq!(running.stop(), 3 * ORDERS);
    }

    #[test]
    fn alarms_of_callers_wake_the_schedulers_own_thread() {
        let running = Running::start();
        let (report, reported) = crossbeam_channel::unbounded();
        let rings = |at: Instant| {
            running.order(Order::Alarm(at, report.clone()));
            running.seat.call();
            let returned = Instant::now();
            // No call follows: the alarm alone wakes the thread.
            let rung_by = reported.recv().unwrap();
            assert!(Instant::now() >= at);
            // A caller that the system keeps waiting finds the alarm due, and takes that turn itself.
            if returned < at {
                assert_eq!(rung_by, running.thread.thread().id());
            }
        };
        for late in [40, 20, 0] {
            rings(Instant::now() + Duration::from_millis(late));
        }
        let later = Instant::now() + Duration::from_secs(3_600);
        running.order(Order::Alarm(later, report.clone()));
        running.seat.call();
        rings(Instant::now() + Duration::from_millis(10));
        running.stop();
    }

    #[test]
    fn calls_around_an_alarm_do_not_disturb_it() {
        let running = Running::start();
        let (report, reported) = crossbeam_channel::unbounded();
        for _ in 0..200 {
            let at = Instant::now() + Duration::from_micros(200);
            running.order(Order::Alarm(at, report.clone()));
            running.seat.call();
            while reported.is_empty() {
                if running.orders.is_empty() {
                    running.order(Order::Count);
                }
                running.seat.call();
            }
            reported.recv().unwrap();
        }
        running.stop();
    }

    #[test]
    fn a_panic_in_a_turn_of_a_caller_reaches_the_schedulers_own_thread() {
        let running = Running::start();
        let calling = std::thread::spawn({
            let seat = running.seat.clone();
            running.order(Order::Panic);
            move || seat.call()
        });
        calling.join().unwrap_err();
        running.thread.join().unwrap_err();
        let sent = running.orders.send(Order::Count);
        assert!(sent.is_err(), "the scheduler is dropped with its queues");
        running.seat.call();
    }
}
