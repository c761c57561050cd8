//! Named lanes over the engine.
//!
//! # Invariants
//! - A lane's number is the index of its key in the engine, so neither has to be looked up for the other.
//! - Every lane is in `names` exactly once. Its name is stored in the lane alone; the table holds numbers.
//! - Every idle lane is in `idle` exactly once (`is_listed`). A busy lane may be there too: it left idleness
//!   without paying for a search, and is dropped from the list when it comes to the front.
//! - `idle` has room for every lane, so only insertion allocates, and now and then the shrinking of `names`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::borrow::Borrow;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::mem;
use core::ops::{Index, IndexMut};

use hashbrown::HashTable;

use crate::engine::Drr;
use crate::groups::{Groups, Nesting, no_group};
use crate::handle::{Group, Handle, Key, State, Unknown};
use crate::numbered::Numbered;
use crate::units::{Cost, Costs, Quantum, Weight};

/// Idle lanes that one call of [`Keyed::tidy`] looks at.
const STEPS: usize = 4;

/// The shrinking of a name table starts at this capacity.
const SHRINK_FROM: usize = 1024;

/// Lanes by name, each with a value, served in the order that a [`Drr`] decides.
///
/// A lane is found by its name, with one hash, or by its number, with none. Numbers are small and reused:
/// callers keep them in place of names. All verbs of the engine take a number.
///
/// # Busy and idle lanes
/// The caller says which lanes it needs: a new lane is *busy*, [`set_idle`](Self::set_idle) lets it be
/// forgotten, and [`set_busy`](Self::set_busy) keeps it again. A busy lane keeps its number. An idle lane is
/// kept for a while, because its name may come back and must find its debt. Each insertion
/// [tidies](Self::tidy): it looks at a few of the lanes that have been idle for longest, and forgets those
/// that [owe nothing](Drr::is_settled). Names that come once thus cost nothing in the long run, and no call
/// walks over all lanes.
///
/// # Panics
/// All methods that take a number panic if no lane has it. A number from [`find`](Self::find),
/// [`find_or_insert_with`](Self::find_or_insert_with) or [`next_lane`](Self::next_lane) is valid until the
/// next insertion or call of `tidy`, and for as long as the lane is busy.
///
/// # Examples
/// A fair queue. A lane's value is its backlog, and a lane without backlog is idle:
///
/// ```
/// use std::collections::VecDeque;
/// use std::hash::RandomState;
///
/// use drr::{Cost, Keyed, Quantum, Weight};
///
/// type Lanes = Keyed<String, VecDeque<u32>, RandomState>;
///
/// fn push(lanes: &mut Lanes, tenant: &str, job: u32) {
///     let new = || (tenant.to_owned(), VecDeque::new());
///     let lane = lanes.find_or_insert_with(tenant, Weight::ONE, new);
///     lanes[lane].push_back(job);
///     lanes.set_busy(lane);
///     lanes.wake(lane);
/// }
///
/// fn pop(lanes: &mut Lanes) -> Option<(&str, u32)> {
///     let lane = lanes.next_lane()?;
///     lanes.charge(lane, Cost::ONE);
///     let job = lanes[lane].pop_front()?;
///     if lanes[lane].is_empty() {
///         lanes.sleep(lane);
///         lanes.set_idle(lane);
///     }
///     Some((lanes.name(lane), job))
/// }
///
/// let mut lanes = Lanes::new(Quantum::new(1).unwrap(), RandomState::new());
/// for job in 0..1000 {
///     push(&mut lanes, "noisy", job);
/// }
/// push(&mut lanes, "quiet", 7);
/// assert_eq!(pop(&mut lanes), Some(("noisy", 0)));
/// assert_eq!(pop(&mut lanes), Some(("quiet", 7))); // not behind 999 others
/// assert_eq!((lanes.busy(), lanes.len()), (1, 2));
/// ```
///
/// A queue with more states than "has backlog" calls `set_busy` or `set_idle` after each change of a lane,
/// with the answer to "would anything but debt be lost with it?". Repeating either costs a comparison. A
/// caller that limits the number of names compares [`busy`](Self::busy) with the limit, and makes room for a
/// new name with [`forget_oldest`](Self::forget_oldest).
///
/// # Groups
/// A caller whose names nest adds lanes with [`find_or_insert_within`](Self::find_or_insert_within). A lane is then in the
/// [group](Groups) that its name says, and groups have numbers, names and values, as lanes have. A lane that bears the
/// name of a group has its weight from there: `set_weight` and `weight` concern the group.
#[derive(Clone)]
pub struct Keyed<K, V, S, G = ()> {
    engine: Drr,
    lanes: Numbered<Lane<K, V>>,
    names: HashTable<u32>,
    groups: Groups<K, G, S>,
    hasher: S,
    /// Idle lanes, those idle for longest first.
    idle: VecDeque<u32>,
    busy: usize,
    idle_kept: usize,
    debts_kept: usize,
}

/// One lane. It begins a cache line, so that a small one takes a single line.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Lane<K, V> {
    name: K,
    value: V,
    is_idle: bool,
    /// Whether its number is in `idle`.
    is_listed: bool,
    /// Whether it was busy since it was listed.
    was_used: bool,
}

impl<K, V, S: Clone, G> Keyed<K, V, S, G> {
    /// Returns an engine without lanes, which finds names with `hasher`.
    ///
    /// It forgets idle lanes as soon as they owe nothing, and remembers all debts.
    pub fn new(quantum: Quantum, hasher: S) -> Self {
        Self {
            engine: Drr::new(quantum),
            lanes: Numbered::new(),
            names: HashTable::new(),
            groups: Groups::new(hasher.clone()),
            hasher,
            idle: VecDeque::new(),
            busy: 0,
            idle_kept: 0,
            debts_kept: usize::MAX,
        }
    }
}

impl<K, V, S, G> Keyed<K, V, S, G> {
    /// Keeps this many idle lanes in any case, so that names that come and go need no new lanes.
    #[must_use]
    pub fn keep_idle(self, lanes: usize) -> Self {
        Self {
            idle_kept: lanes,
            ..self
        }
    }

    /// Keeps at most about this many idle lanes and as many empty groups, and forgets more of them with their debts.
    #[must_use]
    pub fn keep_debts(self, lanes: usize) -> Self {
        Self {
            debts_kept: lanes,
            groups: self.groups.keep_debts(lanes),
            ..self
        }
    }

    /// Returns how many lanes there are, busy and idle.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns whether there is no lane.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns how many lanes are busy.
    #[must_use]
    pub const fn busy(&self) -> usize {
        self.busy
    }

    /// Returns how many lanes are idle.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.len() - self.busy
    }

    /// Returns the number of slots that the table has memory for, in use or not.
    #[must_use]
    pub const fn extent(&self) -> usize {
        self.lanes.extent()
    }

    /// Returns all lanes, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &K, &V)> {
        let lanes = self.lanes.iter();
        lanes.map(|(number, lane)| (number, &lane.name, &lane.value))
    }

    /// Returns the value of a lane, if there is a lane of this number.
    #[inline]
    #[must_use]
    pub fn get(&self, lane: u32) -> Option<&V> {
        let lane = self.lanes.get(lane)?;
        Some(&lane.value)
    }

    /// Returns the name of a lane.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn name(&self, lane: u32) -> &K {
        &self.lane(lane).name
    }

    /// Returns whether a lane is idle, so that it may be forgotten.
    #[must_use]
    #[track_caller]
    pub fn is_idle(&self, lane: u32) -> bool {
        self.lane(lane).is_idle
    }

    /// Says that the caller needs the lane: it is not forgotten.
    #[inline]
    #[track_caller]
    pub fn set_busy(&mut self, lane: u32) {
        let lane = self.lane_mut(lane);
        if lane.is_idle {
            lane.is_idle = false;
            lane.was_used = true;
            self.busy += 1;
        }
    }

    /// Says that the caller does not need the lane any more: it may be forgotten.
    ///
    /// This forgets nothing yet, so the number stays valid until the next insertion or call of
    /// [`tidy`](Self::tidy).
    #[inline]
    #[track_caller]
    pub fn set_idle(&mut self, lane: u32) {
        let number = lane;
        let lane = self.lane_mut(number);
        if lane.is_idle {
            return;
        }
        lane.is_idle = true;
        if !lane.is_listed {
            lane.is_listed = true;
            lane.was_used = false;
            self.idle.push_back(number);
        }
        self.busy -= 1;
    }

    /// Returns the lane that is served next; `None` only if none may run.
    ///
    /// The choice stands until it is [charged](Self::charge): charge it before asking again.
    #[inline]
    pub fn next_lane(&mut self) -> Option<u32> {
        self.engine.next_key().map(|key| key.0.index)
    }

    /// Charges a lane for a piece of work that was dispatched.
    #[inline]
    #[track_caller]
    pub fn charge(&mut self, lane: u32, cost: Cost) {
        let key = self.key(lane);
        registered(self.engine.charge(key, cost));
    }

    /// Corrects a charge once the true cost is known, as [`Drr::settle`] does.
    #[track_caller]
    pub fn settle(&mut self, lane: u32, charged: Cost, actual: Cost) {
        let key = self.key(lane);
        registered(self.engine.settle(key, charged, actual));
    }

    /// Says that a lane has work: unless it is parked, it joins the ring at once.
    #[inline]
    #[track_caller]
    pub fn wake(&mut self, lane: u32) {
        let key = self.key(lane);
        registered(self.engine.wake(key));
    }

    /// Says that a lane has no more work: it leaves the ring, with its debt, but without its credit.
    #[inline]
    #[track_caller]
    pub fn sleep(&mut self, lane: u32) {
        let key = self.key(lane);
        registered(self.engine.sleep(key));
    }

    /// Says that a lane may not run for now, whatever work it has.
    #[track_caller]
    pub fn park(&mut self, lane: u32) {
        let key = self.key(lane);
        registered(self.engine.park(key));
    }

    /// Ends [`park`](Self::park): with work, the lane joins the ring at once.
    #[track_caller]
    pub fn unpark(&mut self, lane: u32) {
        let key = self.key(lane);
        registered(self.engine.unpark(key));
    }

    /// Returns the state of a lane in the ring.
    #[must_use]
    #[track_caller]
    pub fn state(&self, lane: u32) -> State {
        registered(self.engine.state(self.key(lane)))
    }

    /// Returns by how much cost a lane is ahead of its share.
    #[must_use]
    #[track_caller]
    pub fn debt(&self, lane: u32) -> u64 {
        registered(self.engine.debt(self.key(lane)))
    }

    /// Returns whether nothing would be lost if a lane were forgotten, as far as the engine knows.
    #[must_use]
    #[track_caller]
    pub fn is_settled(&self, lane: u32) -> bool {
        registered(self.engine.is_settled(self.key(lane)))
    }

    /// Returns how much cost the other lanes get at most before this one is next, as [`Drr::bound`] does.
    #[must_use]
    #[track_caller]
    pub fn bound(&self, lane: u32, largest: Cost, costs: Costs) -> u64 {
        registered(self.engine.bound(self.key(lane), largest, costs))
    }

    /// Returns the engine, for questions that concern no single lane.
    #[inline]
    #[must_use]
    pub const fn engine(&self) -> &Drr {
        &self.engine
    }

    /// Returns the key of a lane in the [engine](Self::engine); the key's index is the lane's number.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn key(&self, lane: u32) -> Key {
        if self.lanes.get(lane).is_none() {
            no_lane(lane);
        }
        key_of(&self.engine, lane)
    }

    #[inline]
    #[track_caller]
    fn lane(&self, number: u32) -> &Lane<K, V> {
        match self.lanes.get(number) {
            Some(lane) => lane,
            None => no_lane(number),
        }
    }

    #[inline]
    #[track_caller]
    fn lane_mut(&mut self, number: u32) -> &mut Lane<K, V> {
        match self.lanes.get_mut(number) {
            Some(lane) => lane,
            None => no_lane(number),
        }
    }
}

/// Groups.
impl<K, V, S, G> Keyed<K, V, S, G> {
    /// Returns the groups.
    #[inline]
    #[must_use]
    pub const fn groups(&self) -> &Groups<K, G, S> {
        &self.groups
    }

    /// Returns the number of the group that a lane is in.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn group_of(&self, lane: u32) -> Option<u32> {
        self.groups.around(&self.engine, self.key(lane))
    }

    /// Returns the number of the group that a group is in.
    #[must_use]
    #[track_caller]
    pub fn group_around(&self, group: u32) -> Option<u32> {
        self.groups.around(&self.engine, self.groups.handle(group))
    }

    /// Returns the value of a group.
    #[must_use]
    #[track_caller]
    pub fn group(&self, group: u32) -> &G {
        match self.groups.get(group) {
            Some(value) => value,
            None => no_group(group),
        }
    }

    /// Returns the value of a group, to be changed.
    #[must_use]
    #[track_caller]
    pub fn group_mut(&mut self, group: u32) -> &mut G {
        match self.groups.get_mut(group) {
            Some(value) => value,
            None => no_group(group),
        }
    }

    /// Says that nothing in a group may run for now.
    #[track_caller]
    pub fn park_group(&mut self, group: u32) {
        let group = self.groups.handle(group);
        registered(self.engine.park(group));
    }

    /// Ends [`park_group`](Self::park_group).
    #[track_caller]
    pub fn unpark_group(&mut self, group: u32) {
        let group = self.groups.handle(group);
        registered(self.engine.unpark(group));
    }

    /// Changes the share of a group among its siblings.
    #[track_caller]
    pub fn set_group_weight(&mut self, group: u32, weight: Weight) {
        let group = self.groups.handle(group);
        registered(self.engine.set_weight(group, weight));
    }
}

impl<K: Hash + Eq, V, S: BuildHasher, G> Keyed<K, V, S, G> {
    /// Changes the share of a lane, or of the group that bears its name, from its next visit on.
    #[track_caller]
    pub fn set_weight(&mut self, lane: u32, weight: Weight) {
        match self.group_of_name(lane) {
            Some(group) => registered(self.engine.set_weight(group, weight)),
            None => registered(self.engine.set_weight(self.key(lane), weight)),
        }
    }

    /// Returns the weight of a lane, or of the group that bears its name.
    #[must_use]
    #[track_caller]
    pub fn weight(&self, lane: u32) -> Weight {
        registered(match self.group_of_name(lane) {
            Some(group) => self.engine.weight(group),
            None => self.engine.weight(self.key(lane)),
        })
    }

    /// Returns the group that bears the name of a lane, if there is one.
    #[track_caller]
    fn group_of_name(&self, lane: u32) -> Option<Group> {
        let group = registered(self.engine.parent(self.key(lane)))?;
        let number = self.groups.around(&self.engine, self.key(lane))?;
        (self.groups.name(number) == self.name(lane)).then_some(group)
    }

    /// Returns the lane of this name, if there is one.
    #[inline]
    #[must_use]
    pub fn find<Q>(&self, name: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        find_hashed(&self.names, &self.lanes, self.hasher.hash_one(name), name)
    }

    /// Returns the lane of this name; if there is none, adds the one that `new` makes, without work and busy.
    ///
    /// Before it adds one, it [tidies](Self::tidy).
    ///
    /// # Panics
    /// With 4,294,967,295 lanes.
    #[inline]
    pub fn find_or_insert_with<Q>(
        &mut self,
        name: &Q,
        weight: Weight,
        new: impl FnOnce() -> (K, V),
    ) -> u32
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(name);
        match find_hashed(&self.names, &self.lanes, hash, name) {
            Some(number) => number,
            None => {
                self.tidy();
                self.insert(hash, weight, None, new())
            }
        }
    }

    /// Does the same for a name that may be in a group: adds the lane there, and the groups that are missing.
    ///
    /// A lane that bears the name of a group gives the group its weight.
    ///
    /// # Panics
    /// As [`find_or_insert_with`](Self::find_or_insert_with); groups count as lanes.
    #[inline]
    pub fn find_or_insert_within<Q>(
        &mut self,
        name: &Q,
        weight: Weight,
        nesting: &impl Nesting<Q, Name = K, Value = G>,
        new: impl FnOnce() -> (K, V),
    ) -> u32
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(name);
        if let Some(number) = find_hashed(&self.names, &self.lanes, hash, name) {
            return number;
        }
        self.tidy();
        let Some(home) = self.home(name, nesting) else {
            return self.insert(hash, weight, None, new());
        };
        let number = self.insert(hash, weight, Some(home), new());
        if self.group_of_name(number).is_some() {
            registered(self.engine.set_weight(self.key(number), Weight::ONE));
            self.set_weight(number, weight);
        }
        number
    }

    /// Returns the group in which a lane of this name belongs.
    fn home<Q>(&mut self, name: &Q, nesting: &impl Nesting<Q, Name = K, Value = G>) -> Option<Group>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (lanes, names, hasher) = (&self.lanes, &self.names, &self.hasher);
        let own = |engine: &Drr, name: &Q| {
            let number = find_hashed(names, lanes, hasher.hash_one(name), name)?;
            Some(key_of(engine, number))
        };
        self.groups.home(&mut self.engine, name, nesting, own)
    }

    /// Puts all lanes into the groups that another nesting says. All groups are made anew, and what they owed is
    /// forgotten; what the lanes owe is not. Takes time in proportion to the lanes.
    pub fn renest<Q>(&mut self, nesting: &impl Nesting<Q, Name = K, Value = G>)
    where
        K: Borrow<Q> + Clone,
        Q: Hash + Eq + ?Sized,
    {
        let numbers: Vec<u32> = self.iter().map(|(number, _, _)| number).collect();
        for &number in &numbers {
            let weight = self.weight(number);
            registered(self.engine.transfer(self.key(number), None));
            self.set_weight(number, weight);
        }
        self.groups.clear(&mut self.engine);
        for &number in &numbers {
            let name = self.name(number).clone();
            if let Some(home) = self.home(name.borrow(), nesting) {
                registered(self.engine.transfer(self.key(number), Some(home)));
            }
        }
    }

    fn insert(
        &mut self,
        hash: u64,
        weight: Weight,
        home: Option<Group>,
        (name, value): (K, V),
    ) -> u32 {
        let key = match home {
            Some(home) => registered(self.engine.register_in(home, weight)),
            None => self.engine.register(weight),
        };
        let number = key.0.index;
        let lane = Lane {
            name,
            value,
            is_idle: false,
            is_listed: false,
            was_used: false,
        };
        self.lanes.insert(number, lane);
        let (lanes, hasher) = (&self.lanes, &self.hasher);
        self.names
            .insert_unique(hash, number, |&number| rehash(lanes, hasher, number));
        self.busy += 1;
        self.idle
            .reserve(self.names.len().saturating_sub(self.idle.len()));
        number
    }

    /// Forgets some lanes that have been idle for long, if more are idle than are to be [kept](Self::keep_idle).
    ///
    /// It looks at four lanes at most. A lane that was busy since it was last looked at, or that owes
    /// something, is passed over. Insertion calls this; a caller whose lanes become idle faster than new ones
    /// come calls it then, too.
    #[inline]
    pub fn tidy(&mut self) {
        if self.idle() > self.idle_kept {
            self.forget_some();
        }
        self.groups.tidy(&mut self.engine);
    }

    fn forget_some(&mut self) {
        for _ in 0..STEPS {
            if self.idle() <= self.idle_kept {
                return;
            }
            let Some(number) = self.idle.pop_front() else {
                return;
            };
            let is_crowded = self.idle() > self.debts_kept;
            let lane = self.lane_mut(number);
            let was_used = mem::take(&mut lane.was_used);
            if !lane.is_idle {
                lane.is_listed = false;
            } else if !was_used && (is_crowded || self.is_settled(number)) {
                self.remove(number);
            } else {
                self.idle.push_back(number);
            }
        }
    }

    /// Forgets the lane that has been idle for longest, whatever it owes. Returns its name and its value.
    pub fn forget_oldest(&mut self) -> Option<(K, V)> {
        while let Some(number) = self.idle.pop_front() {
            let lane = self.lane_mut(number);
            if lane.is_idle {
                return Some(self.remove(number));
            }
            lane.is_listed = false;
        }
        None
    }

    /// Forgets a lane, whatever it owes and whether or not it is idle. Returns its name and its value.
    ///
    /// This looks through the idle lanes, so it takes longer the more there are.
    #[track_caller]
    pub fn forget(&mut self, lane: u32) -> (K, V) {
        if self.lane(lane).is_listed {
            self.idle.retain(|&listed| listed != lane);
        }
        self.remove(lane)
    }

    /// Forgets all lanes and groups, and gives their memory back.
    pub fn clear(&mut self)
    where
        S: Clone,
    {
        self.groups = Groups::new(self.hasher.clone()).keep_debts(self.debts_kept);
        self.engine = Drr::new(self.engine.quantum());
        self.lanes = Numbered::new();
        self.names = HashTable::new();
        self.idle = VecDeque::new();
        self.busy = 0;
    }

    /// Removes a lane whose number is not in `idle`.
    #[track_caller]
    fn remove(&mut self, number: u32) -> (K, V) {
        let hash = self.hasher.hash_one(self.name(number));
        if let Ok(entry) = self.names.find_entry(hash, |&other| other == number) {
            entry.remove();
        }
        // A debt may be lost with its standing: the caller has chosen to bound how many are kept.
        let home = registered(self.engine.parent(self.key(number)));
        let _standing = registered(self.engine.forget(self.key(number)));
        if let Some(home) = home {
            self.groups.left(&mut self.engine, home);
        }
        let Some(lane) = self.lanes.take(number) else {
            no_lane(number);
        };
        self.busy -= usize::from(!lane.is_idle);
        self.shrink_names();
        (lane.name, lane.value)
    }

    /// Lets the table of names follow the number of lanes down.
    fn shrink_names(&mut self) {
        let capacity = self.names.capacity();
        if capacity > SHRINK_FROM && self.names.len() < capacity / 8 {
            let (lanes, hasher) = (&self.lanes, &self.hasher);
            self.names.shrink_to(self.names.len() * 2, |&number| {
                rehash(lanes, hasher, number)
            });
        }
    }
}

impl<K, V, S, G> Index<u32> for Keyed<K, V, S, G> {
    type Output = V;

    #[inline]
    #[track_caller]
    fn index(&self, lane: u32) -> &V {
        &self.lane(lane).value
    }
}

impl<K, V, S, G> IndexMut<u32> for Keyed<K, V, S, G> {
    #[inline]
    #[track_caller]
    fn index_mut(&mut self, lane: u32) -> &mut V {
        &mut self.lane_mut(lane).value
    }
}

impl<K: fmt::Debug, V: fmt::Debug, S, G> fmt::Debug for Keyed<K, V, S, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(_, name, value)| (name, value)))
            .finish()
    }
}

/// Returns the key of a lane that exists.
#[inline]
fn key_of(engine: &Drr, lane: u32) -> Key {
    let generation = engine.slots[lane as usize].generation;
    Key(Handle {
        index: lane,
        generation,
    })
}

#[inline]
fn find_hashed<K, V, Q>(
    names: &HashTable<u32>,
    lanes: &Numbered<Lane<K, V>>,
    hash: u64,
    name: &Q,
) -> Option<u32>
where
    K: Borrow<Q>,
    Q: Eq + ?Sized,
{
    let is_its = |&number: &u32| match lanes.get(number) {
        Some(lane) => lane.name.borrow() == name,
        None => false,
    };
    names.find(hash, is_its).copied()
}

fn rehash<K: Hash, V, S: BuildHasher>(
    lanes: &Numbered<Lane<K, V>>,
    hasher: &S,
    number: u32,
) -> u64 {
    match lanes.get(number) {
        Some(lane) => hasher.hash_one(&lane.name),
        None => no_lane(number),
    }
}

/// Unwraps the engine's answer about the key of a lane that exists.
#[inline]
#[track_caller]
fn registered<R>(result: Result<R, Unknown>) -> R {
    result.expect("a lane's key is forgotten only together with the lane")
}

#[cold]
#[track_caller]
fn no_lane(number: u32) -> ! {
    panic!("there is no lane {number}; a lane that is idle may be forgotten")
}
