//! The baton of a scheduler: the thread that holds it runs the scheduler, and a call for it is never overlooked.
//!
//! A thread puts its work into a queue and then calls. If the baton is free, the caller takes it. Otherwise the holder
//! notes the call when it wants to put the baton down, and looks into the queue once more. All of it is one atomic
//! number, so a call comes either before the baton is put down or after: there is no moment in between. `fila-races`
//! explores this with loom.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, Ordering};

const FREE: u8 = 0;
const HELD: u8 = 1;
/// Held, and called since the holder looked last.
const CALLED: u8 = 2;

/// The right to run a scheduler, which one thread has at a time.
#[derive(Debug)]
pub(crate) struct Baton(AtomicU8);

impl Baton {
    /// Returns a baton that a thread holds.
    pub(crate) fn held() -> Self {
        Self(AtomicU8::new(HELD))
    }

    /// Calls for work that the caller has put into a queue. Tells whether the caller holds the baton now; otherwise its
    /// holder will look.
    #[must_use = "a thread that holds the baton has to run the scheduler"]
    pub(crate) fn call(&self) -> bool {
        let mut state = self.0.load(Ordering::Relaxed);
        loop {
            let next = if state == FREE { HELD } else { CALLED };
            // Also from called to called: the holder must see what this caller has put into the queue.
            let changed =
                self.0
                    .compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Relaxed);
            match changed {
                Ok(before) => return before == FREE,
                Err(now) => state = now,
            }
        }
    }

    /// Puts the baton down, unless there was a call: then the holder keeps it, and has to look again.
    #[must_use = "a thread that keeps the baton has to look again"]
    pub(crate) fn put_down(&self) -> bool {
        let put_down = self
            .0
            .compare_exchange(HELD, FREE, Ordering::AcqRel, Ordering::Relaxed);
        if put_down.is_err() {
            self.0.swap(HELD, Ordering::AcqRel);
        }
        put_down.is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_call_to_a_holder_makes_it_look_again_once() {
        let baton = Baton::held();
        assert!(!baton.call());
        assert!(!baton.call());
        assert!(!baton.put_down(), "both calls came after the last look");
        assert!(baton.put_down());
        assert!(baton.call(), "the baton was free");
        assert!(baton.put_down());
    }

    #[test]
    fn no_call_of_many_threads_is_overlooked_and_one_thread_holds_the_baton() {
        const THREADS: usize = 4;
        const CALLS: usize = 20_000;
        let baton = Baton::held();
        assert!(baton.put_down());
        let (queued, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let holder = Mutex::new(());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..CALLS {
                        queued.fetch_add(1, Ordering::Relaxed);
                        if !baton.call() {
                            continue;
                        }
                        loop {
                            let alone = holder.try_lock().expect("one thread holds the baton");
                            done.fetch_add(queued.swap(0, Ordering::Relaxed), Ordering::Relaxed);
                            drop(alone);
                            if baton.put_down() {
                                break;
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), THREADS * CALLS);
    }
}
