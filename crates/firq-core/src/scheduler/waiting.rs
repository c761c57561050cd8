//! Waiting for a task or for room: threads by blocking, futures by polling.

use std::hash::Hash;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::enqueue::{Admission, Submission};
use super::{Phase, Scheduler};
use crate::capacity::Room;
use crate::lane::Flag;
use crate::outcome::{DequeueResult, EnqueueRejectReason, Rejected};
use crate::parker::Parker;
use crate::task::{Task, TaskHandle};
use crate::wait_queue::Ticket;
use crate::waiter::Waiter;

impl<T, K: Hash + Eq + Clone> Scheduler<T, K> {
    /// Takes the next task, waiting for one as long as it takes. Never returns
    /// [`Empty`](DequeueResult::Empty).
    pub fn dequeue_blocking(&self) -> DequeueResult<T, K> {
        match self.try_dequeue() {
            DequeueResult::Empty => self.dequeue_until(None),
            result @ (DequeueResult::Task { .. } | DequeueResult::Closed) => result,
        }
    }

    /// Takes the next task, waiting for one no longer than `wait`; then the answer is
    /// [`Empty`](DequeueResult::Empty).
    pub fn dequeue_blocking_timeout(&self, wait: Duration) -> DequeueResult<T, K> {
        match self.try_dequeue() {
            DequeueResult::Empty => self.dequeue_until(self.clock.now().checked_add(wait)),
            result @ (DequeueResult::Task { .. } | DequeueResult::Closed) => result,
        }
    }

    fn dequeue_until(&self, until: Option<Instant>) -> DequeueResult<T, K> {
        let parker = Parker::new();
        let waker = parker.waker();
        let mut context = Context::from_waker(&waker);
        let mut waiter = Waiter::new();
        loop {
            if let Poll::Ready(result) = self.poll_dequeue(&mut context, &mut waiter) {
                return result;
            }
            if until.is_some_and(|until| self.clock.now() >= until) {
                return DequeueResult::Empty; // dropping the waiter passes on a wake-up that came too late
            }
            parker.park(&*self.clock, until);
        }
    }

    /// Takes the next task, or arranges for the waker to be called once when there may be one.
    ///
    /// Never returns [`Empty`](DequeueResult::Empty). This is what futures are made of: they keep the
    /// `waiter` between polls and drop it with themselves.
    ///
    /// # Cancel safety
    /// A task is taken only by the poll that returns it, so dropping the waiter loses none.
    pub fn poll_dequeue(
        &self,
        context: &mut Context<'_>,
        waiter: &mut Waiter,
    ) -> Poll<DequeueResult<T, K>> {
        waiter.rise();
        loop {
            match self.try_dequeue() {
                DequeueResult::Empty => {}
                result @ (DequeueResult::Task { .. } | DequeueResult::Closed) => {
                    return Poll::Ready(result);
                }
            }
            let waker = context.waker().clone();
            let ticket = self
                .topology
                .with_ring(|ring| (!ring.is_runnable()).then(|| self.consumers.join(waker)));
            let Some(ticket) = ticket else { continue };
            waiter.sit_for_task(&self.consumers, ticket);
            // Closing sets the phase before it wakes all consumers: read it after taking the seat.
            match self.phase() {
                Phase::Open => return Poll::Pending,
                Phase::Draining if !self.capacity.is_drained() => return Poll::Pending,
                Phase::Draining | Phase::Closed => {
                    waiter.rise();
                    return Poll::Ready(DequeueResult::Closed);
                }
            }
        }
    }

    /// Queues a task, or arranges for the waker to be called once when there may be room.
    ///
    /// Takes the task from `task` when it is accepted or given back in an error. The other policies apply
    /// first; under [`Timeout`](crate::BackpressurePolicy::Timeout) the caller keeps the time. Room also
    /// comes from tasks that expire: poll again at [`next_expiry`](Self::next_expiry).
    ///
    /// # Errors
    /// If the scheduler is closed.
    ///
    /// # Panics
    /// If `task` is empty.
    ///
    /// # Cancel safety
    /// Dropping the waiter gives up the place in the queue; the task is still in `task`.
    pub fn poll_submit(
        &self,
        context: &mut Context<'_>,
        waiter: &mut Waiter,
        tenant: &K,
        task: &mut Option<Task<T>>,
    ) -> Poll<Result<TaskHandle, Rejected<T>>> {
        let vacated = waiter.rise_from_room();
        let kept = |room: Room| {
            vacated
                .filter(|vacated| vacated.room == room)
                .map(|vacated| vacated.ticket)
        };
        loop {
            let mut submission = Submission::new(task.take());
            let admission = self.try_submit(tenant, &mut submission, &mut self.look());
            if matches!(admission, Admission::Accepted | Admission::Closed) {
                return Poll::Ready(self.conclude(admission, submission));
            }
            *task = submission.take_back();
            let seat = match admission {
                Admission::Accepted | Admission::Closed => None, // returned
                Admission::GlobalFull => {
                    let waker = context.waker().clone();
                    let ticket = self
                        .topology
                        .in_order(|| self.capacity.wait(kept(Room::Global), waker));
                    ticket.map(|ticket| (Room::Global, ticket))
                }
                Admission::TenantFull => self.wait_in_lane(context, tenant, kept),
                Admission::GroupFull { group } => self.wait_in_group(context, group, kept),
            };
            let Some((room, ticket)) = seat else { continue };
            waiter.sit_for_room(&self.capacity, room, ticket);
            if let Some(vacated) =
                vacated.filter(|vacated| vacated.was_called && vacated.room != room)
            {
                self.capacity.call(vacated.room); // there was room, and this one could not use it
            }
            return Poll::Pending;
        }
    }

    /// Waits for room in a tenant's lane, unless there is some.
    fn wait_in_lane(
        &self,
        context: &Context<'_>,
        tenant: &K,
        kept: impl Fn(Room) -> Option<Ticket>,
    ) -> Option<(Room, Ticket)> {
        let (hash, number) = self.locate(tenant);
        let waker = context.waker().clone();
        self.topology.with_shard(number, |shard| {
            let lane = shard.find(hash, tenant)?;
            if shard.lanes[lane].len < self.max_per_tenant {
                return None;
            }
            let room = Room::Tenant {
                shard: number,
                lane,
            };
            let ticket = self.capacity.wait_for_tenant(room, kept(room), waker)?;
            shard.lanes[lane].set(Flag::Awaited, true);
            Some((room, ticket))
        })
    }

    /// Queues a task as soon as there is room, waiting until a moment at most.
    #[cold]
    pub(super) fn submit_waiting(
        &self,
        tenant: &K,
        task: Task<T>,
        until: Option<Instant>,
    ) -> Result<TaskHandle, Rejected<T>> {
        let mut task = Some(task);
        let parker = Parker::new();
        let waker = parker.waker();
        let mut context = Context::from_waker(&waker);
        let mut waiter = Waiter::new();
        loop {
            if let Poll::Ready(result) =
                self.poll_submit(&mut context, &mut waiter, tenant, &mut task)
            {
                return result;
            }
            let now = self.clock.now();
            if until.is_some_and(|until| now >= until) {
                drop(waiter); // passes on a wake-up that came too late
                let task = Submission::new(task).into_task();
                return Err(self.reject(EnqueueRejectReason::Timeout, task));
            }
            // Once nothing that is vacated has expired, the next expiry is in the future.
            if !self.reclaim(self.now()) {
                let wake_at = until.into_iter().chain(self.next_expiry()).min();
                parker.park(&*self.clock, wake_at);
            }
        }
    }
}
