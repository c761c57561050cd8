//! The state of one job that its submitter, handle, attempt and executor share.
//!
//! # States
//! ```text
//! Waiting ──► Accepted ──► Ended(outcome)
//!    └──────► Refused(job)
//! ```
//! `Waiting` is a submission that has found no room. The core of its shard decides about a job, and updates the
//! ticket under the same lock: the two never disagree.
//!
//! # Locks
//! A lock of its own, taken last and held for a few assignments. No waker is called under it or under the
//! shard's lock: each step returns the wakers, and the caller calls them when it holds no lock.
//!
//! # Memory
//! When a job ends and neither a handle nor an attempt has its ticket, nothing can ask for the outcome. The shard then
//! keeps the ticket in a [pool](TicketPool) for a job to come. So a job whose handle was dropped costs no allocation but
//! its own.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio_util::sync::CancellationToken;

use crate::core::{End, JobSlot};
use crate::job::BoxJob;
use crate::joint::Joint;
use crate::outcome::Outcome;
use crate::shard::Shard;
use crate::sync::{Mutex, MutexGuard, lock};

#[derive(Debug)]
pub(crate) struct Ticket {
    /// The shard that the job is in. A ticket that is used again keeps it, which spares counting references to the shard.
    shard: Arc<Shard>,
    /// The submitter's token, if it gave one.
    caller: Option<CancellationToken>,
    /// The key of the job, once an attempt has asked for it or the job has ended while others had the ticket. So an attempt
    /// that does not ask costs no reference to the name.
    key: OnceLock<Arc<str>>,
    /// Whether it differs from a new ticket. A thread that changes it says so before it lets go of the ticket.
    is_used: AtomicBool,
    state: Mutex<TicketState>,
}

#[derive(Debug)]
struct TicketState {
    stage: TicketStage,
    /// Whether the job was cancelled through its handle.
    is_cancelled: bool,
    /// The waker of the submitter, and later of the handle.
    waker: Option<Waker>,
    /// Parts that few jobs need.
    extras: Option<Box<Extras>>,
}

#[derive(Debug, Default)]
struct Extras {
    /// Made when an attempt asks for it.
    token: Option<CancellationToken>,
    /// The waker of the task that watches the submitter's token.
    watcher: Option<Waker>,
    /// The places of a job across keys, until it has ended.
    joint: Option<Arc<Joint>>,
}

impl TicketState {
    fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }
}

/// Wakers to call once no lock is held.
#[derive(Debug, Default)]
#[must_use = "a future waits to be woken"]
pub(crate) struct Alerts {
    owner: Option<Waker>,
    watcher: Option<Waker>,
    joint: Option<Box<JointAlert>>,
}

/// An event of a job across keys, for its other places.
#[derive(Debug)]
enum JointAlert {
    Arrived(Arc<Joint>),
    Ended(Arc<Joint>, End),
}

impl Alerts {
    pub(crate) const fn one(waker: Option<Waker>) -> Self {
        Self {
            owner: waker,
            watcher: None,
            joint: None,
        }
    }

    #[inline]
    pub(crate) fn wake(self) {
        if let Some(waker) = self.owner {
            waker.wake();
        }
        if let Some(waker) = self.watcher {
            waker.wake();
        }
        match self.joint.as_deref() {
            None => {}
            Some(JointAlert::Arrived(joint)) => joint.arrive(),
            Some(JointAlert::Ended(joint, end)) => joint.release(*end),
        }
    }
}

#[derive(Debug)]
enum TicketStage {
    Waiting,
    Accepted,
    /// The executor closed first; the job is here until the submitter takes it back.
    Refused(Option<BoxJob>),
    Ended(Outcome),
}

impl Ticket {
    /// Makes it a new one, if no waker has to be called or dropped and no other place has to be told.
    fn renew(&mut self) -> bool {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.waker.is_some() || state.extras.is_some() {
            return false;
        }
        state.stage = TicketStage::Accepted;
        state.is_cancelled = false;
        self.caller = None;
        self.key.take();
        *self.is_used.get_mut() = false;
        true
    }

    /// Returns a ticket for a job that is accepted at once, unless it is [told to wait](Self::wait).
    pub(crate) fn new(shard: Arc<Shard>, caller: Option<CancellationToken>) -> Self {
        Self {
            shard,
            is_used: AtomicBool::new(caller.is_some()),
            caller,
            key: OnceLock::new(),
            state: Mutex::new(TicketState {
                stage: TicketStage::Accepted,
                is_cancelled: false,
                waker: None,
                extras: None,
            }),
        }
    }

    pub(crate) const fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Locks the state to change it.
    fn change(&self) -> MutexGuard<'_, TicketState> {
        self.is_used.store(true, Ordering::Relaxed);
        lock(&self.state)
    }

    /// Returns the key of the job, which is at this place and has been attempted.
    pub(crate) fn key(&self, place: JobSlot) -> &str {
        if self.key.get().is_none()
            && let Some(key) = self.shard.key_of(place)
        {
            self.keep_key(&key);
        }
        let key = self.key.get();
        key.expect("a job leaves its shard and its key on its ticket under one lock")
    }

    fn keep_key(&self, key: &Arc<str>) {
        self.is_used.store(true, Ordering::Relaxed);
        self.key.get_or_init(|| Arc::clone(key));
    }

    /// Says that there is no room yet. Called before others can see the ticket.
    pub(crate) fn wait(&self) {
        self.change().stage = TicketStage::Waiting;
    }

    pub(crate) fn accept(&self) -> Alerts {
        self.advance(TicketStage::Accepted)
    }

    pub(crate) fn refuse(&self, job: BoxJob) -> Alerts {
        self.advance(TicketStage::Refused(Some(job)))
    }

    /// Writes the outcome on the ticket, and the key, for attempts that outlive their job.
    #[inline]
    pub(crate) fn end(&self, outcome: Outcome, key: &Arc<str>) -> Alerts {
        self.keep_key(key);
        self.advance(TicketStage::Ended(outcome))
    }

    /// Makes it the ticket of a job across keys. Called before others can see the ticket.
    pub(crate) fn join(&self, joint: &Arc<Joint>) {
        self.change().extras().joint = Some(Arc::clone(joint));
    }

    /// Says that a node of a job across keys holds its key.
    pub(crate) fn arrive(&self) -> Alerts {
        let joint = self.change().extras().joint.clone();
        Alerts {
            joint: joint.map(|joint| Box::new(JointAlert::Arrived(joint))),
            ..Alerts::default()
        }
    }

    #[inline]
    fn advance(&self, to: TicketStage) -> Alerts {
        let mut state = self.change();
        state.stage = to;
        let mut alerts = Alerts::one(state.waker.take());
        let state = &mut *state;
        if let Some(extras) = &mut state.extras {
            alerts.watcher = extras.watcher.take();
            if let TicketStage::Ended(outcome) = &state.stage
                && let Some(joint) = extras.joint.take()
            {
                alerts.joint = Some(Box::new(JointAlert::Ended(joint, outcome.end())));
            }
        }
        alerts
    }

    /// Waits for room, or for the refusal.
    pub(crate) fn poll_answered(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.change();
        match &state.stage {
            TicketStage::Waiting => watch(&mut state.waker, cx),
            TicketStage::Accepted | TicketStage::Ended(_) | TicketStage::Refused(_) => {
                Poll::Ready(())
            }
        }
    }

    /// Returns the job, if it was refused.
    pub(crate) fn take_refused(&self) -> Option<BoxJob> {
        match &mut self.change().stage {
            TicketStage::Refused(job) => job.take(),
            TicketStage::Waiting | TicketStage::Accepted | TicketStage::Ended(_) => None,
        }
    }

    /// Waits for the end.
    pub(crate) fn poll_outcome(&self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.change();
        match &state.stage {
            TicketStage::Ended(outcome) => Poll::Ready(outcome.clone()),
            TicketStage::Waiting | TicketStage::Accepted | TicketStage::Refused(_) => {
                watch(&mut state.waker, cx)
            }
        }
    }

    /// Waits for the end, beside the handle.
    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.change();
        match &state.stage {
            TicketStage::Ended(_) | TicketStage::Refused(_) => Poll::Ready(()),
            TicketStage::Waiting | TicketStage::Accepted => watch(&mut state.extras().watcher, cx),
        }
    }

    /// Returns the outcome, if the job has ended.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match &lock(&self.state).stage {
            TicketStage::Ended(outcome) => Some(outcome.clone()),
            TicketStage::Waiting | TicketStage::Accepted | TicketStage::Refused(_) => None,
        }
    }

    /// Returns the submitter's token, if it gave one.
    pub(crate) const fn caller(&self) -> Option<&CancellationToken> {
        self.caller.as_ref()
    }

    /// Returns whether the submitter's token has been cancelled: such a job is not even begun.
    #[inline]
    pub(crate) fn is_unwanted(&self) -> bool {
        self.caller
            .as_ref()
            .is_some_and(CancellationToken::is_cancelled)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_unwanted() || lock(&self.state).is_cancelled
    }

    /// Signals an attempt that is under way.
    pub(crate) fn cancel(&self) {
        let token = {
            let mut state = self.change();
            state.is_cancelled = true;
            state
                .extras
                .as_ref()
                .and_then(|extras| extras.token.clone())
        };
        if let Some(token) = token {
            token.cancel();
        }
    }

    pub(crate) fn token(&self) -> CancellationToken {
        let mut state = self.change();
        if let Some(token) = &state.extras().token {
            return token.clone();
        }
        let token = match &self.caller {
            Some(caller) => caller.child_token(),
            None => CancellationToken::new(),
        };
        state.extras().token = Some(token.clone());
        let is_cancelled = state.is_cancelled;
        drop(state);
        if is_cancelled {
            token.cancel();
        }
        token
    }
}

/// Tickets for jobs to come. They keep their shard alive, so its worker closes the pool when it ends.
#[derive(Debug)]
pub(crate) struct TicketPool {
    tickets: Vec<Arc<Ticket>>,
    max: usize,
}

impl TicketPool {
    /// Returns a pool that keeps at most `max` tickets.
    pub(crate) const fn new(max: usize) -> Self {
        let tickets = Vec::new();
        Self { tickets, max }
    }

    /// Returns a ticket for a job of this shard.
    #[inline]
    pub(crate) fn take(
        &mut self,
        shard: &Arc<Shard>,
        caller: Option<CancellationToken>,
    ) -> Arc<Ticket> {
        if caller.is_none()
            && let Some(ticket) = self.tickets.pop()
        {
            return ticket;
        }
        Arc::new(Ticket::new(Arc::clone(shard), caller))
    }

    /// Keeps no more tickets. Returns those that it has, which are to be dropped without a lock.
    pub(crate) fn close(&mut self) -> Vec<Arc<Ticket>> {
        self.max = 0;
        std::mem::take(&mut self.tickets)
    }

    /// Writes the outcome on a ticket, and returns the wakers; or keeps the ticket for another job, if nothing else has it.
    #[inline]
    pub(crate) fn end<'k>(
        &mut self,
        mut ticket: Arc<Ticket>,
        outcome: Outcome,
        key: impl FnOnce() -> &'k Arc<str>,
    ) -> Option<Alerts> {
        if self.tickets.len() < self.max && (is_as_new(&ticket) || renew(&mut ticket)) {
            self.tickets.push(ticket);
            return None;
        }
        Some(ticket.end(outcome, key()))
    }
}

/// Returns whether nothing else has a ticket, and no thread has changed it.
///
/// This reads two numbers, where [`Arc::get_mut`] would write to memory that other threads have just used. There are no
/// weak references to tickets, so the only reference stays the only one.
#[inline]
fn is_as_new(ticket: &Arc<Ticket>) -> bool {
    if Arc::strong_count(ticket) != 1 {
        return false;
    }
    fence(Ordering::Acquire); // after the thread that let go of it last
    !ticket.is_used.load(Ordering::Relaxed)
}

/// Makes a ticket a new one, if nothing else has it.
fn renew(ticket: &mut Arc<Ticket>) -> bool {
    Arc::get_mut(ticket).is_some_and(Ticket::renew)
}

/// Stores the waker of the current task.
fn watch<T>(waker: &mut Option<Waker>, cx: &Context<'_>) -> Poll<T> {
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
    Poll::Pending
}
