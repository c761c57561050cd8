//! The groups of tenants in the ring: their names, how many tasks they have queued, which of them are awaited.
//!
//! Exists only where the configuration says how tenants nest. Everything here is under the ring's lock, because a
//! group has members in all shards; so with groups, every change of a queue's length takes that lock as well. The
//! alternative, all members of an outermost group in one shard, would need that group's name and its hash for every task.
//!
//! # Invariants
//! - Every lane has a key from its first task or setting on, and every key has its name in `keys`.
//! - The length of a group is the sum of the lengths of its members.
//! - A tenant that bears the name of a group is a member of it, with the neutral weight. The weight of that tenant is
//!   the group's, and pausing it parks the group.

use std::collections::HashMap;
use std::hash::Hash;

use drr::{Drr, Group, Groups, Key, Nesting, State, Weight};
use foldhash::fast::RandomState;

use crate::nesting::Newcomer;
use crate::ring::registered;
use crate::slab::NIL;
use crate::tree_lengths::TreeLengths;

/// How many tasks the members of a group have been accepted for, since it was made.
type Accepted = u64;

/// What a slot of the engine is used for.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// How many tasks are queued.
    len: u32,
    weight: Weight,
    /// A producer waits for room in the group.
    is_awaited: bool,
}

const _: () = assert!(size_of::<Member>() == 8);

const VACANT: Member = Member {
    len: 0,
    weight: Weight::ONE,
    is_awaited: false,
};

#[derive(Debug)]
pub(crate) struct Tree<K> {
    groups: Groups<K, Accepted, RandomState>,
    keys: HashMap<K, Key, RandomState>,
    /// By slot of the engine.
    members: Vec<Member>,
    lengths: Option<TreeLengths>,
    hasher: RandomState,
    debts_kept: usize,
}

/// A tenant, or a group that it is in, as it competes for room in the buffer.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// Its slot in the engine, or [`NIL`] if it has none yet.
    slot: u32,
    len: u32,
    weight: Weight,
}

impl<K: Hash + Eq + Clone> Tree<K> {
    pub(crate) fn new(hasher: RandomState, sheds: bool, debts_kept: usize) -> Self {
        Self {
            groups: Groups::new(hasher.clone()).keep_debts(debts_kept),
            keys: HashMap::with_hasher(hasher.clone()),
            members: Vec::new(),
            lengths: sheds.then(TreeLengths::new),
            hasher,
            debts_kept,
        }
    }

    /// Returns a tree like this one, without tenants.
    pub(crate) fn fresh(&self) -> Self {
        Self::new(self.hasher.clone(), self.lengths.is_some(), self.debts_kept)
    }

    /// Gives a tenant its key, and makes its groups if need be.
    pub(crate) fn register(&mut self, engine: &mut Drr, newcomer: &Newcomer<'_, K>) -> Key {
        let moved = self.leave_for_groups(engine, newcomer);
        let keys = &self.keys;
        let own = |_: &Drr, name: &K| keys.get(name).copied();
        let home = self.groups.home(engine, newcomer.tenant, newcomer, own);
        self.note_groups(newcomer);
        for (key, len) in moved {
            self.settle_in(engine, key, len, newcomer.neutral);
        }
        let weight = match self.groups.find(newcomer.tenant) {
            Some(_) => newcomer.neutral,
            None => newcomer.weight,
        };
        let key = match home {
            Some(group) => registered(engine.register_in(group, weight)),
            None => engine.register(weight),
        };
        self.set_member(key.index(), Member { weight, ..VACANT });
        self.keys.insert(newcomer.tenant.clone(), key);
        self.groups.tidy(engine);
        key
    }

    /// Takes the tenants that are about to move into groups of their own name out of the counts. Returns them with their
    /// lengths.
    fn leave_for_groups(&mut self, engine: &Drr, newcomer: &Newcomer<'_, K>) -> Vec<(Key, u32)> {
        let mut moved = Vec::new();
        for (group, _) in &newcomer.groups {
            let Some(&key) = self.keys.get(group) else {
                continue;
            };
            if self.groups.find(group).is_none() {
                moved.push((key, self.members[key.index()].len));
                self.count(engine, key, 0, &mut |_| true);
            }
        }
        moved
    }

    /// Counts a tenant that has moved into the group of its name, and passes its pause on to the group.
    fn settle_in(&mut self, engine: &mut Drr, key: Key, len: u32, neutral: Weight) {
        registered(engine.set_weight(key, neutral));
        self.members[key.index()].weight = neutral;
        self.count(engine, key, len, &mut |_| true);
        if let Some(group) = registered(engine.parent(key))
            && registered(engine.state(key)) == State::Parked
        {
            registered(engine.park(group));
            registered(engine.unpark(key));
        }
    }

    /// Notes which slots are the groups of a tenant.
    fn note_groups(&mut self, newcomer: &Newcomer<'_, K>) {
        for (name, weight) in &newcomer.groups {
            let Some(group) = self.groups.find(name) else {
                continue;
            };
            let slot = self.groups.handle(group).index();
            // A slot that was free until now has no tasks.
            let known = self.members.get(slot).copied().unwrap_or(VACANT);
            let weight = *weight;
            let member = Member { weight, ..known };
            self.set_member(slot, member);
        }
    }

    fn set_member(&mut self, slot: usize, member: Member) {
        drr::extend_to(&mut self.members, slot + 1, &VACANT);
        self.members[slot] = member;
    }

    /// Forgets a tenant that has no tasks, and the groups that are empty without it.
    pub(crate) fn forget(&mut self, engine: &mut Drr, key: Key, tenant: &K) {
        debug_assert_eq!(self.members[key.index()].len, 0, "it has no tasks");
        let home = registered(engine.parent(key));
        registered(engine.forget(key));
        self.keys.remove(tenant);
        if self.keys.capacity() > 1024 && self.keys.len() < self.keys.capacity() / 8 {
            self.keys.shrink_to(self.keys.len() * 2);
        }
        if let Some(group) = home {
            self.groups.left(engine, group);
        }
        self.groups.tidy(engine);
    }

    /// Counts that a tenant has this many tasks queued. Calls `freed` for each awaited group that has more room, which
    /// returns whether the group is still awaited.
    pub(crate) fn count(
        &mut self,
        engine: &Drr,
        key: Key,
        len: u32,
        freed: &mut impl FnMut(u32) -> bool,
    ) {
        let before = std::mem::replace(&mut self.members[key.index()].len, len);
        if before == len {
            return;
        }
        let mut group = self.groups.around(engine, key);
        self.publish(key.index(), group);
        while let Some(number) = group {
            let handle = self.groups.handle(number);
            let member = &mut self.members[handle.index()];
            member.len = member.len - before + len; // as the sum of its members, not below `before`
            group = self.groups.around(engine, handle);
            self.publish(handle.index(), group);
            let member = &mut self.members[handle.index()];
            if member.is_awaited && len < before {
                member.is_awaited = freed(number);
            }
        }
    }

    /// Counts that a task of a tenant was accepted.
    pub(crate) fn note_accepted(&mut self, engine: &Drr, key: Key) {
        let mut group = self.groups.around(engine, key);
        while let Some(number) = group {
            if let Some(accepted) = self.groups.get_mut(number) {
                *accepted += 1;
            }
            group = self.groups.around(engine, self.groups.handle(number));
        }
    }

    fn publish(&mut self, slot: usize, group: Option<u32>) {
        if let Some(lengths) = &mut self.lengths {
            let Member { len, weight, .. } = self.members[slot];
            lengths.update(slot as u32, group, len, weight);
        }
    }

    /// Gives the tenant or group of this name its weight, if there is one.
    pub(crate) fn set_weight(
        &mut self,
        engine: &mut Drr,
        name: &K,
        weight: Weight,
        neutral: Weight,
    ) {
        let group = self.groups.find(name);
        if let Some(number) = group {
            let handle = self.groups.handle(number);
            registered(engine.set_weight(handle, weight));
            self.members[handle.index()].weight = weight;
            self.publish(handle.index(), self.groups.around(engine, handle));
        }
        if let Some(&key) = self.keys.get(name) {
            let weight = if group.is_some() { neutral } else { weight };
            registered(engine.set_weight(key, weight));
            self.members[key.index()].weight = weight;
            self.publish(key.index(), self.groups.around(engine, key));
        }
    }

    /// Keeps a tenant, or the group of its name, from running, or lets it. Returns how many tasks that concerns.
    pub(crate) fn set_parked(&self, engine: &mut Drr, name: &K, key: Key, parked: bool) -> u32 {
        let group = self
            .groups
            .find(name)
            .map(|group| self.groups.handle(group));
        let node = group.map_or_else(|| key.into(), drr::Node::from);
        registered(match parked {
            true => engine.park(node),
            false => engine.unpark(node),
        });
        self.members[group.map_or_else(|| key.index(), Group::index)].len
    }

    /// Returns whether no group of a tenant is paused.
    pub(crate) fn is_free_above(&self, engine: &Drr, key: Key) -> bool {
        let mut next = registered(engine.parent(key));
        while let Some(group) = next {
            if registered(engine.state(group)) == State::Parked {
                return false;
            }
            next = registered(engine.parent(group));
        }
        true
    }

    /// Returns the innermost of a tenant's groups that has `max` tasks queued.
    pub(crate) fn full_group_of(&self, engine: &Drr, key: Key, max: u32) -> Option<u32> {
        let mut group = self.groups.around(engine, key);
        while let Some(number) = group.filter(|&number| self.len_of(number) < max) {
            group = self.groups.around(engine, self.groups.handle(number));
        }
        group
    }

    /// Returns the innermost group that has `max` tasks queued, among those that a tenant without a key will be in.
    pub(crate) fn full_group_for(&self, newcomer: &Newcomer<'_, K>, max: u32) -> Option<u32> {
        let groups = newcomer.groups.iter().map(|(name, _)| name);
        let mut found = [newcomer.tenant]
            .into_iter()
            .chain(groups)
            .filter_map(|name| self.groups.find(name));
        found.find(|&number| self.len_of(number) >= max)
    }

    fn len_of(&self, group: u32) -> u32 {
        self.members[self.groups.handle(group).index()].len
    }

    /// Returns whether a producer waits for room in a group of this tenant.
    pub(crate) fn is_awaited(&self, engine: &Drr, key: Key) -> bool {
        let mut group = self.groups.around(engine, key);
        while let Some(number) = group {
            let handle = self.groups.handle(number);
            if self.members[handle.index()].is_awaited {
                return true;
            }
            group = self.groups.around(engine, handle);
        }
        false
    }

    /// Notes that a producer waits for room in a group, if it has `max` tasks queued and `wait` returns a seat.
    pub(crate) fn await_room<R>(
        &mut self,
        group: u32,
        max: u32,
        wait: impl FnOnce() -> Option<R>,
    ) -> Option<R> {
        self.groups.get(group)?;
        if self.len_of(group) < max {
            return None;
        }
        let seat = wait()?;
        self.members[self.groups.handle(group).index()].is_awaited = true;
        Some(seat)
    }

    /// Returns how many tasks the group of this name has queued, if there is one.
    pub(crate) fn group_len(&self, name: &K) -> Option<u32> {
        self.groups.find(name).map(|group| self.len_of(group))
    }

    /// Returns how many groups there are.
    pub(crate) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Returns the groups among the `count` numbers from `start` on with the tasks that they have accepted and queued,
    /// and where the next ones start, if any do.
    pub(crate) fn groups_from(
        &self,
        start: u32,
        count: usize,
    ) -> (Vec<(K, u64, u32)>, Option<u32>) {
        let end = self.groups.extent().min(start as usize + count) as u32;
        let groups = (start..end).filter_map(|number| {
            let accepted = *self.groups.get(number)?;
            let name = self.groups.name(number).clone();
            Some((name, accepted, self.len_of(number)))
        });
        let more = (end as usize) < self.groups.extent();
        (groups.collect(), more.then_some(end))
    }

    /// Returns the slot of the tenant that gives way to one more task of another: of the members that compete with the
    /// other or with a group of it, the one furthest above its share, and so on down to a tenant in it.
    ///
    /// `None` if no member would still be above the share that the other has with one more task. `within` is the group
    /// that lacks room, or `None` for the scheduler.
    pub(crate) fn victim(
        &self,
        engine: &Drr,
        newcomer: &Newcomer<'_, K>,
        within: Option<u32>,
    ) -> Option<usize> {
        let lengths = self.lengths.as_ref()?;
        let claims = self.claims(newcomer);
        let mut from = 0;
        if let Some(group) = within {
            self.groups.get(group)?;
            let slot = self.groups.handle(group).index() as u32;
            from = 1 + claims.iter().position(|claim| claim.slot == slot)?;
        }
        let mut rival = lengths.longest(within)?;
        let mut weight = self.members[rival as usize].weight;
        for claim in &claims[from..] {
            if rival != claim.slot {
                let theirs = u64::from(self.members[rival as usize].len);
                let ours = (u64::from(claim.len) + 1) * u64::from(weight.value());
                let gives_way = ours < theirs * u64::from(claim.weight.value());
                return gives_way
                    .then(|| self.longest_in(engine, lengths, rival))
                    .flatten();
            }
            // The other is itself in what is furthest above its share, and competes with what is in there.
            weight = match self.groups.at(engine, rival as usize) {
                None => newcomer.neutral, // a tenant that is about to move into a group of its name
                Some(group) => {
                    rival = lengths.longest(Some(group))?;
                    self.members[rival as usize].weight
                }
            };
        }
        None
    }

    /// Returns the tenant that is furthest above its share in a group, level by level.
    fn longest_in(&self, engine: &Drr, lengths: &TreeLengths, slot: u32) -> Option<usize> {
        let mut slot = slot;
        loop {
            match self.groups.at(engine, slot as usize) {
                None => return Some(slot as usize),
                Some(group) => slot = lengths.longest(Some(group))?,
            }
        }
    }

    /// Returns what a tenant and its groups have queued, the outermost group first.
    fn claims(&self, newcomer: &Newcomer<'_, K>) -> Vec<Claim> {
        let at = |slot: usize| Claim {
            slot: slot as u32,
            len: self.members[slot].len,
            weight: self.members[slot].weight,
        };
        let key_of = |name: &K| self.keys.get(name).map(|key| at(key.index()));
        let group_of = |name: &K| {
            let group = self.groups.find(name)?;
            Some(at(self.groups.handle(group).index()))
        };
        let unknown = |weight| Claim {
            slot: NIL,
            len: 0,
            weight,
        };
        let groups = newcomer.groups.iter().rev().map(|(name, weight)| {
            let known = group_of(name).or_else(|| key_of(name));
            known.unwrap_or_else(|| unknown(*weight))
        });
        let mut claims: Vec<Claim> = groups.collect();
        let tenant = newcomer.tenant;
        let own_group = group_of(tenant);
        let weight = match own_group {
            Some(_) => newcomer.neutral,
            None => newcomer.weight,
        };
        claims.extend(own_group);
        claims.push(key_of(tenant).unwrap_or_else(|| unknown(weight)));
        claims
    }
}

impl<K: Eq + Clone> Nesting<K> for Newcomer<'_, K> {
    type Name = K;
    type Value = Accepted;

    fn parent<'n>(&'n self, name: &'n K) -> Option<&'n K> {
        self.around(name).map(|(group, _)| group)
    }

    fn found(&self, name: &K, own: Option<Weight>) -> (K, Accepted, Weight) {
        let named = self.groups.iter().find(|(group, _)| group == name);
        let weight = named.map(|(_, weight)| *weight).or(own);
        let weight = weight.unwrap_or(self.neutral);
        (name.clone(), 0, weight)
    }
}
