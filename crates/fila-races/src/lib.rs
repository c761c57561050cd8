//! Explores the races of the broker's threads with loom, in every order that the memory model allows: `scripts/loom-fila`.
//!
//! `fila-server` itself cannot be built for loom, since its dependencies cannot. So this crate includes the file that the
//! races are in. Without loom it is empty.
#![cfg(loom)]

#[path = "../../fila-server/src/runtime/threads/baton.rs"]
#[allow(unreachable_pub, reason = "the file is a module of `fila-server`")]
mod baton;

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread;

    use crate::baton::Baton;

    /// A scheduler with a queue of one place for each thread.
    struct Scheduler<const THREADS: usize> {
        baton: Baton,
        queued: [AtomicBool; THREADS],
        done: [AtomicBool; THREADS],
        /// Used by the thread that holds the baton only, which loom checks.
        state: UnsafeCell<()>,
    }

    impl<const THREADS: usize> Scheduler<THREADS> {
        /// Returns a scheduler whose baton this thread holds.
        fn new() -> Arc<Self> {
            Arc::new(Self {
                baton: Baton::held(),
                queued: std::array::from_fn(|_| AtomicBool::new(false)),
                done: std::array::from_fn(|_| AtomicBool::new(false)),
                state: UnsafeCell::new(()),
            })
        }

        fn put(&self, thread: usize) {
            self.queued[thread].store(true, Ordering::Relaxed);
            if self.baton.call() {
                self.run();
            }
        }

        /// Takes everything that is queued, and puts the baton down.
        fn run(&self) {
            loop {
                self.state.with_mut(|_| ());
                for (queued, done) in self.queued.iter().zip(&self.done) {
                    if queued.load(Ordering::Relaxed) {
                        done.store(true, Ordering::Relaxed);
                    }
                }
                if self.baton.put_down() {
                    return;
                }
            }
        }

        fn is_done(&self) -> bool {
            self.done.iter().all(|done| done.load(Ordering::Relaxed))
        }
    }

    /// Explores all orders with this many switches of threads by force.
    fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    #[test]
    fn a_call_while_the_baton_is_put_down_is_not_overlooked() {
        explore(8, || {
            let scheduler = Scheduler::<1>::new();
            let caller = thread::spawn({
                let scheduler = scheduler.clone();
                move || scheduler.put(0)
            });
            // The thread that holds it from the start.
            scheduler.run();
            caller.join().unwrap();
            assert!(scheduler.is_done());
            assert!(scheduler.baton.call(), "the baton is free");
        });
    }

    #[test]
    fn callers_that_find_the_baton_free_run_one_at_a_time() {
        explore(3, || {
            let scheduler = Scheduler::<3>::new();
            assert!(scheduler.baton.put_down());
            let callers = [0, 1].map(|caller| {
                let scheduler = scheduler.clone();
                thread::spawn(move || scheduler.put(caller))
            });
            scheduler.put(2);
            for caller in callers {
                caller.join().unwrap();
            }
            assert!(scheduler.is_done());
        });
    }
}
