//! The attempts that a worker has under way, and which of them can go on.
//!
//! Each attempt is polled with a waker of its own. A wake-up puts the attempt's slot into a list, once, and wakes the
//! worker, which then polls the attempts in the list and no others. A slot is used again after its attempt has ended, so a
//! late waker may cause one poll too many, which futures allow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};

use slab::Slab;

use crate::context::JobContext;
use crate::core::{JobSlot, Timestamp};
use crate::failure::JobError;
use crate::job::BoxJob;
use crate::shard::Work;
use crate::sync::{Mutex, lock};

/// An attempt under way that has been polled once, at least.
pub(crate) struct Attempt {
    pub(crate) place: JobSlot,
    pub(crate) work: Work,
    pub(crate) began: Timestamp,
}

/// The attempts of one worker.
#[derive(Default)]
pub(crate) struct AttemptSet {
    slots: Slab<Attempt>,
    /// The waker of each slot that was ever used.
    wakers: Vec<Waker>,
    woken: Arc<WokenSlots>,
}

#[derive(Default)]
struct WokenSlots(Mutex<WokenState>);

#[derive(Default)]
struct WokenState {
    /// Slots in the order in which they were woken.
    list: VecDeque<usize>,
    /// Whether a slot is in the list.
    is_listed: Vec<bool>,
    worker: Option<Waker>,
}

struct SlotWaker {
    slot: usize,
    woken: Arc<WokenSlots>,
}

impl AttemptSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Polls a job for the first time, with the waker of the slot that [`keep`](Self::keep) gives it if it has to wait.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        job: &mut BoxJob,
        context: &mut Option<JobContext>,
    ) -> Poll<Result<(), JobError>> {
        let slot = self.slots.vacant_key();
        if slot == self.wakers.len() {
            self.add_waker(slot);
        }
        let mut cx = Context::from_waker(&self.wakers[slot]);
        job.poll_attempt(&mut cx, context)
    }

    /// Keeps the attempt that was begun last, because it waits for something.
    pub(crate) fn keep(&mut self, attempt: Attempt) {
        self.slots.insert(attempt);
    }

    fn add_waker(&mut self, slot: usize) {
        lock(&self.woken.0).is_listed.push(false);
        let woken = Arc::clone(&self.woken);
        self.wakers
            .push(Waker::from(Arc::new(SlotWaker { slot, woken })));
    }

    /// Goes on with an attempt, and takes it out when it has ended.
    #[inline]
    pub(crate) fn poll(&mut self, slot: usize) -> Poll<(Attempt, Result<(), JobError>)> {
        let mut cx = Context::from_waker(&self.wakers[slot]);
        let job = &mut self.slots[slot].work.job;
        let result = ready!(job.poll_attempt(&mut cx, &mut None));
        Poll::Ready((self.slots.remove(slot), result))
    }

    /// Returns an attempt that can go on; if there is none, the task is woken when there is one.
    pub(crate) fn next_woken(&self, cx: &Context<'_>) -> Option<usize> {
        let mut state = lock(&self.woken.0);
        while let Some(slot) = state.list.pop_front() {
            state.is_listed[slot] = false;
            if self.slots.contains(slot) {
                return Some(slot);
            }
        }
        match &mut state.worker {
            Some(worker) => worker.clone_from(cx.waker()),
            None => state.worker = Some(cx.waker().clone()),
        }
        None
    }

    /// Takes all attempts out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Attempt> + use<> {
        std::mem::take(&mut self.slots)
            .into_iter()
            .map(|(_, attempt)| attempt)
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = lock(&self.woken.0);
        if std::mem::replace(&mut state.is_listed[self.slot], true) {
            return;
        }
        state.list.push_back(self.slot);
        let worker = state.worker.take();
        drop(state);
        if let Some(worker) = worker {
            worker.wake();
        }
    }
}
