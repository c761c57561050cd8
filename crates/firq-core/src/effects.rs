//! Work that waits until no lock is held.
//!
//! Under a lock only the scheduler's own state changes. Waking threads, dropping payloads and memory, and
//! calling the user's observer can take any time or call back into the scheduler, so they are noted here and
//! done last. Every task changes two counters; the rest is rare, and allocated when it happens.

use std::task::Waker;

use crate::capacity::{Capacity, Locking, Released, Room};
use crate::lane::Lane;
use crate::node::Node;
use crate::outcome::DropReason;
use crate::ring::Ring;
use crate::slab::Retired;
use crate::task::Task;

/// A task that left the queue without being delivered. It has a tenant if there is an observer.
#[derive(Debug)]
pub(crate) struct DroppedTask<T, K> {
    pub(crate) tenant: Option<K>,
    pub(crate) task: Task<T>,
    pub(crate) reason: DropReason,
}

#[derive(Debug)]
pub(crate) struct Effects<'a, T, K> {
    capacity: &'a Capacity,
    /// Tasks that no longer take room, which has not been given back yet.
    pub(crate) freed: u64,
    /// Room that was given back under the lock.
    pub(crate) released: Option<Released>,
    /// Tasks that consumers may be called for.
    pub(crate) announced: u64,
    pub(crate) rare: Option<Box<Rare<T, K>>>,
}

/// Effects that most calls do not have.
#[derive(Debug)]
pub(crate) struct Rare<T, K> {
    pub(crate) dropped: Vec<DroppedTask<T, K>>,
    /// Wakers of producers that waited for room in a lane.
    pub(crate) wakers: Vec<Waker>,
    garbage: Vec<Garbage<T, K>>,
}

/// Memory that is no longer in use.
#[derive(Debug)]
#[expect(dead_code, reason = "held for its drop")]
enum Garbage<T, K> {
    Nodes(Vec<Node<T>>),
    Lanes(Vec<Lane<K>>),
    Ring(Box<Ring<K>>),
}

impl<'a, T, K> Effects<'a, T, K> {
    #[inline]
    pub(crate) const fn new(capacity: &'a Capacity) -> Self {
        Self {
            capacity,
            freed: 0,
            released: None,
            announced: 0,
            rare: None,
        }
    }

    /// Gives back the room of the freed tasks, if there is one lock, which the caller still holds. Once per hold.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.freed > 0 && self.capacity.locking() == Locking::One {
            self.released = Some(self.capacity.release(self.freed));
            self.freed = 0;
        }
    }

    /// Notes a task that left the queue without being delivered.
    #[cold]
    pub(crate) fn note_dropped(&mut self, task: DroppedTask<T, K>) {
        self.rare().dropped.push(task);
    }

    /// Notes that there is room in a lane that producers wait for. Returns whether more of them wait.
    #[cold]
    pub(crate) fn tenant_has_room(&mut self, shard: u32, lane: u32) -> bool {
        self.has_room(Room::Tenant { shard, lane })
    }

    /// Notes that there is room in a group that producers wait for. Returns whether more of them wait.
    #[cold]
    pub(crate) fn group_has_room(&mut self, group: u32) -> bool {
        self.has_room(Room::Group { group })
    }

    fn has_room(&mut self, room: Room) -> bool {
        let (waker, more) = self.capacity.next_for(room);
        self.rare().wakers.extend(waker);
        more
    }

    #[inline]
    pub(crate) fn retire_nodes(&mut self, retired: Retired<Node<T>>) {
        if let Some(nodes) = retired {
            self.retire(Garbage::Nodes(nodes));
        }
    }

    pub(crate) fn retire_lanes(&mut self, retired: Retired<Lane<K>>) {
        if let Some(lanes) = retired {
            self.retire(Garbage::Lanes(lanes));
        }
    }

    pub(crate) fn retire_ring(&mut self, retired: Option<Box<Ring<K>>>) {
        if let Some(ring) = retired {
            self.retire(Garbage::Ring(ring));
        }
    }

    #[cold]
    fn retire(&mut self, garbage: Garbage<T, K>) {
        self.rare().garbage.push(garbage);
    }

    fn rare(&mut self) -> &mut Rare<T, K> {
        self.rare.get_or_insert_with(|| {
            Box::new(Rare {
                dropped: Vec::new(),
                wakers: Vec::new(),
                garbage: Vec::new(),
            })
        })
    }
}
