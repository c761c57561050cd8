//! The groups of an engine by name.
//!
//! A name says which group it is in, `acme/alice` that it is in `acme`, and a [`Nesting`] reads that from it. Groups are
//! made when the first key of theirs comes, and disbanded after the last one has gone.
//!
//! # A key that bears the name of a group
//! `acme` may have work of its own beside that of `acme/alice`. Its key is then one member of the group `acme`, of weight
//! one, and the weight of `acme` is the group's. So a name has one share among its siblings, whether or not there is
//! anything in it. If the key was there first, the group takes [its place](Drr::enclose).
//!
//! # Invariants
//! - A group's number is that of its calendar in the engine, so neither has to be looked up for the other.
//! - Every group is in `names` exactly once. Its name is stored in the group alone; the table holds numbers.
//! - Every group without members is in `empty` exactly once (`is_listed`). Others may be there too: they are dropped from
//!   the list when they come to the front.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::borrow::Borrow;
use core::fmt;
use core::hash::{BuildHasher, Hash};

use hashbrown::HashTable;

use crate::engine::Drr;
use crate::growth::grow;
use crate::handle::{Group, Key};
use crate::slot::NIL;
use crate::units::Weight;

/// Empty groups that one call of [`Groups::tidy`] looks at.
const STEPS: usize = 4;

/// How names nest: which group a name is in, and what a new group is like.
pub trait Nesting<Q: ?Sized> {
    /// The type of names that are kept.
    type Name;
    /// The type of what the caller keeps for a group.
    type Value;

    /// Returns the name of the group that a key or group of this name is in; it is not the name itself.
    fn parent<'n>(&'n self, name: &'n Q) -> Option<&'n Q>;

    /// Makes the group of this name. `own` is the weight of the key of the same name, if there is one already.
    fn found(&self, name: &Q, own: Option<Weight>) -> (Self::Name, Self::Value, Weight);
}

/// The groups of an engine by name, each with a value. The caller keeps the engine.
///
/// [`Keyed`](crate::Keyed) has one. It is of use by itself to callers that keep their keys elsewhere.
///
/// # Panics
/// Methods that take a number panic if no group has it.
#[derive(Clone)]
pub struct Groups<K, G, S> {
    /// By the numbers of their calendars.
    entries: Vec<Option<Entry<K, G>>>,
    names: HashTable<u32>,
    hasher: S,
    /// Groups without members, those empty for longest first.
    empty: VecDeque<u32>,
    debts_kept: usize,
}

#[derive(Clone, Debug)]
struct Entry<K, G> {
    name: K,
    value: G,
    handle: Group,
    /// Whether its number is in `empty`.
    is_listed: bool,
}

impl<K, G, S> Groups<K, G, S> {
    /// Returns a table without groups, which finds names with `hasher`.
    pub const fn new(hasher: S) -> Self {
        Self {
            entries: Vec::new(),
            names: HashTable::new(),
            hasher,
            empty: VecDeque::new(),
            debts_kept: usize::MAX,
        }
    }

    /// Keeps at most about this many empty groups, and forgets more of them with their debts.
    #[must_use]
    pub fn keep_debts(self, groups: usize) -> Self {
        Self {
            debts_kept: groups,
            ..self
        }
    }

    /// Returns how many groups there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns whether there is no group.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the number of places for groups, in use or not: all numbers are below it.
    #[must_use]
    pub const fn extent(&self) -> usize {
        self.entries.len()
    }

    /// Returns all groups, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &K, &G)> {
        let numbered = self.entries.iter().enumerate();
        numbered.filter_map(|(number, entry)| {
            let entry = entry.as_ref()?;
            Some((number as u32, &entry.name, &entry.value))
        })
    }

    /// Returns the value of a group, if there is a group of this number.
    #[must_use]
    pub fn get(&self, group: u32) -> Option<&G> {
        let entry = self.entries.get(group as usize)?.as_ref()?;
        Some(&entry.value)
    }

    /// Returns the value of a group, to be changed.
    pub fn get_mut(&mut self, group: u32) -> Option<&mut G> {
        let entry = self.entries.get_mut(group as usize)?.as_mut()?;
        Some(&mut entry.value)
    }

    /// Returns the name of a group.
    #[must_use]
    #[track_caller]
    pub fn name(&self, group: u32) -> &K {
        &self.entry(group).name
    }

    /// Returns the handle of a group in the engine.
    #[must_use]
    #[track_caller]
    pub fn handle(&self, group: u32) -> Group {
        self.entry(group).handle
    }

    /// Returns the number of the group in a [slot](Group::index) of the engine, if a group has that slot.
    #[must_use]
    pub fn at(&self, engine: &Drr, slot: usize) -> Option<u32> {
        let kin = engine.kin.get(slot)?;
        (kin.calendar != NIL).then_some(kin.calendar)
    }

    /// Returns the number of the group that a key or group of the engine is in.
    #[must_use]
    pub fn around(&self, engine: &Drr, member: impl Into<crate::Node>) -> Option<u32> {
        let parent = engine.parent(member).ok()??;
        Some(number_of(engine, parent))
    }

    #[track_caller]
    fn entry(&self, number: u32) -> &Entry<K, G> {
        match self.entries.get(number as usize) {
            Some(Some(entry)) => entry,
            _ => no_group(number),
        }
    }
}

impl<K: Hash + Eq, G, S: BuildHasher> Groups<K, G, S> {
    /// Returns the group of this name, if there is one.
    #[must_use]
    pub fn find<Q>(&self, name: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.names.is_empty() {
            return None;
        }
        let is_its = |&number: &u32| self.entry(number).name.borrow() == name;
        let hash = self.hasher.hash_one(name);
        self.names.find(hash, is_its).copied()
    }

    /// Returns the group in which a key of this name belongs: the one that bears its name, if there is one, or else its
    /// parent, which is made if need be, with all groups above it.
    ///
    /// `own` finds the key of a name. A key that bears the name of a new group moves into it.
    pub fn home<Q>(
        &mut self,
        engine: &mut Drr,
        name: &Q,
        nesting: &impl Nesting<Q, Name = K, Value = G>,
        own: impl Fn(&Drr, &Q) -> Option<Key>,
    ) -> Option<Group>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some(number) = self.find(name) {
            return Some(self.handle(number));
        }
        let parent = nesting.parent(name)?;
        Some(self.find_or_found(engine, parent, nesting, &own))
    }

    fn find_or_found<Q>(
        &mut self,
        engine: &mut Drr,
        name: &Q,
        nesting: &impl Nesting<Q, Name = K, Value = G>,
        own: &impl Fn(&Drr, &Q) -> Option<Key>,
    ) -> Group
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some(number) = self.find(name) {
            return self.handle(number);
        }
        let parent = nesting.parent(name);
        let parent = parent.map(|parent| self.find_or_found(engine, parent, nesting, own));
        let own = own(engine, name);
        let own_weight = own.and_then(|key| engine.weight(key).ok());
        let (stored, value, weight) = nesting.found(name, own_weight);
        let group = match own {
            Some(key) => enclose(engine, key, parent, weight),
            None => register(engine, parent, weight),
        };
        self.insert(engine, group, stored, value);
        group
    }

    fn insert(&mut self, engine: &Drr, group: Group, name: K, value: G) {
        let number = number_of(engine, group);
        let index = number as usize;
        while self.entries.len() <= index {
            grow(&mut self.entries);
            self.entries.push(None);
        }
        let hash = self.hasher.hash_one(&name);
        self.entries[index] = Some(Entry {
            name,
            value,
            handle: group,
            is_listed: false,
        });
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.names
            .insert_unique(hash, number, |&other| rehash(entries, hasher, other));
    }

    /// Says that a member of the group was forgotten or has moved. A group without members is disbanded once it owes
    /// nothing.
    #[track_caller]
    pub fn left(&mut self, engine: &mut Drr, group: Group) {
        let mut next = Some(group);
        while let Some(group) = next.take() {
            if engine.members(group) != Ok(0) {
                return;
            }
            let number = number_of(engine, group);
            let Some(Some(entry)) = self.entries.get_mut(number as usize) else {
                return;
            };
            if entry.is_listed {
                return;
            }
            if engine.is_settled(group) == Ok(true) {
                next = self.disband(engine, number);
            } else {
                entry.is_listed = true;
                self.empty.push_back(number);
            }
        }
    }

    /// Disbands some groups that have been without members for long and owe nothing. It looks at four groups at most.
    #[inline]
    pub fn tidy(&mut self, engine: &mut Drr) {
        if !self.empty.is_empty() {
            self.disband_some(engine);
        }
    }

    fn disband_some(&mut self, engine: &mut Drr) {
        for _ in 0..STEPS {
            let is_crowded = self.empty.len() > self.debts_kept;
            let Some(number) = self.empty.pop_front() else {
                return;
            };
            let Some(Some(entry)) = self.entries.get_mut(number as usize) else {
                continue;
            };
            let group = entry.handle;
            if engine.members(group) != Ok(0) {
                entry.is_listed = false;
            } else if is_crowded || engine.is_settled(group) == Ok(true) {
                entry.is_listed = false;
                if let Some(parent) = self.disband(engine, number) {
                    self.left(engine, parent);
                }
            } else {
                self.empty.push_back(number);
            }
        }
    }

    /// Disbands a group without members that is not in `empty`. Returns its parent.
    fn disband(&mut self, engine: &mut Drr, number: u32) -> Option<Group> {
        let entry = self.entries[number as usize].take()?;
        let parent = engine.parent(entry.handle).ok().flatten();
        // A debt may be lost with its standing: the caller has chosen to bound how many are kept.
        let disbanded = engine.disband(entry.handle);
        debug_assert!(disbanded.is_ok(), "it has no members");
        let hash = self.hasher.hash_one(&entry.name);
        if let Ok(found) = self.names.find_entry(hash, |&other| other == number) {
            found.remove();
        }
        parent
    }

    /// Disbands all groups, which have no keys any more.
    pub(crate) fn clear(&mut self, engine: &mut Drr) {
        let numbers: Vec<u32> = self.iter().map(|(number, _, _)| number).collect();
        for number in numbers {
            let mut next = Some(number);
            // With each group go those above it that were waiting for that.
            while let Some(number) = next.take() {
                let Some(Some(entry)) = self.entries.get(number as usize) else {
                    break;
                };
                if engine.members(entry.handle) == Ok(0) {
                    let parent = self.disband(engine, number);
                    next = parent.map(|parent| number_of(engine, parent));
                }
            }
        }
        self.empty.clear();
    }
}

impl<K: fmt::Debug, G: fmt::Debug, S> fmt::Debug for Groups<K, G, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(_, name, value)| (name, value)))
            .finish()
    }
}

/// Puts a key into a new group of its name.
fn enclose(engine: &mut Drr, key: Key, parent: Option<Group>, weight: Weight) -> Group {
    let enclosed = engine
        .transfer(key, parent)
        .and_then(|()| engine.enclose(key, weight))
        .and_then(|group| engine.set_weight(key, Weight::ONE).map(|()| group));
    enclosed.expect("the caller's key and the parent exist")
}

fn register(engine: &mut Drr, parent: Option<Group>, weight: Weight) -> Group {
    match parent {
        Some(parent) => engine
            .register_group_in(parent, weight)
            .expect("the parent was found or made just now"),
        None => engine.register_group(weight),
    }
}

/// Returns a group's number, which is that of its calendar.
fn number_of(engine: &Drr, group: Group) -> u32 {
    engine.kin[group.index()].calendar
}

fn rehash<K: Hash, G, S: BuildHasher>(
    entries: &[Option<Entry<K, G>>],
    hasher: &S,
    number: u32,
) -> u64 {
    match &entries[number as usize] {
        Some(entry) => hasher.hash_one(&entry.name),
        None => no_group(number),
    }
}

#[cold]
#[track_caller]
pub(crate) fn no_group(number: u32) -> ! {
    panic!("there is no group {number}; an empty group is disbanded")
}
