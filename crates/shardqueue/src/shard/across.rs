//! Jobs across keys: taking one in, under the locks of several shards, and moving its nodes along.

use std::sync::Arc;
use std::task::Waker;

use super::messages::{NewJob, Submitted, Work};
use super::{Shard, ShardState};
use crate::contain;
use crate::context::JobContext;
use crate::core::{Admission, End, JobSlot, Patience, Role, Spec};
use crate::job::Job;
use crate::joint::Joint;
use crate::sync::{MutexGuard, lock};
use crate::ticket::Ticket;

/// The keys of a job that belong to one shard.
#[derive(Debug)]
pub(crate) struct ShardKeys {
    pub(crate) shard: Arc<Shard>,
    pub(crate) keys: Vec<String>,
}

/// Names a submission that waits for room, to forget it.
pub(crate) type WaiterId = usize;

/// Takes a job in for all its keys, or for none. Its own key is the home, and must be among them.
///
/// The groups are in ascending order of their shards: all locks are taken in that order. If there is no room somewhere,
/// the waker is called when that shard may have some.
pub(crate) fn submit_across(
    groups: &[ShardKeys],
    new_job: NewJob<'_>,
    ticket: &Arc<Ticket>,
    waker: Option<(WaiterId, &Waker)>,
) -> Submitted {
    let mut states: Vec<MutexGuard<'_, ShardState>> = Vec::with_capacity(groups.len());
    for group in groups {
        states.push(lock(&group.shard.state));
    }
    for (group, state) in groups.iter().zip(&mut states) {
        if state.core.is_stopping() {
            return Submitted::Closed(new_job.job);
        }
        if let Err(occupancy) = state.core.has_room_for_all(&group.keys) {
            match waker {
                Some((id, waker)) => state.room_waiters.push((id, waker.clone())),
                None => state.core.count_refusal(),
            }
            return Submitted::Full(Box::new(group.shard.full(occupancy)), new_job.job);
        }
    }
    let home = enter(groups, &mut states, new_job, ticket);
    let sleepers: Vec<Waker> = states
        .iter_mut()
        .filter_map(|state| state.take_sleeper())
        .collect();
    drop(states);
    sleepers.into_iter().for_each(Waker::wake);
    Submitted::Accepted(home, Arc::clone(ticket))
}

/// Puts the nodes of a job into their lanes, which have room.
fn enter(
    groups: &[ShardKeys],
    states: &mut [MutexGuard<'_, ShardState>],
    new_job: NewJob<'_>,
    home_ticket: &Arc<Ticket>,
) -> crate::outcome::JobId {
    let joint = Arc::new(Joint::new(
        groups.iter().map(|group| group.keys.len()).sum(),
    ));
    let (mut home, mut parts) = (None, Vec::new());
    let mut job = Some(new_job.job);
    for (group, state) in groups.iter().zip(states) {
        for key in &group.keys {
            let own_job = if key == new_job.key { job.take() } else { None };
            let role = match own_job {
                Some(_) => Role::Home,
                None => Role::Part,
            };
            let ticket = match role {
                Role::Home => Arc::clone(home_ticket),
                Role::Part | Role::Single => Arc::new(Ticket::new(Arc::clone(&group.shard), None)),
            };
            ticket.join(&joint);
            let spec = Spec {
                priority: new_job.priority,
                cost: new_job.cost,
                role,
            };
            let work = Work {
                job: own_job.unwrap_or_else(|| (|_: JobContext| async {}).boxed()),
                error: None,
            };
            let admission = state
                .core
                .admit(key, spec, (work, ticket), Patience::DoesNotWait);
            let Admission::Accepted(place) = admission else {
                unreachable!("there was room under the same lock");
            };
            match role {
                Role::Home => home = Some((Arc::clone(&group.shard), place)),
                Role::Part | Role::Single => parts.push((Arc::clone(&group.shard), place)),
            }
        }
    }
    let (shard, place) = home.expect("the home is among the keys");
    let id = shard.id(place);
    joint.place((shard, place), parts);
    id
}

impl Shard {
    /// Lets the home of a job across keys have its turn: all its keys are held.
    pub(crate) fn ready(&self, place: JobSlot) {
        self.step(|core, _| core.ready(place));
    }

    /// Removes a part of a job across keys that has ended.
    pub(crate) fn release(&self, place: JobSlot, end: End) {
        let removed = self.step(|core, notices| core.release(place, end, notices));
        contain::discard(removed);
    }

    /// Forgets a submission that waits for room.
    pub(crate) fn forget_waiter(&self, id: WaiterId) {
        lock(&self.state)
            .room_waiters
            .retain(|(other, _)| *other != id);
    }
}
