//! The engine: verbs on keys and groups, each applied to the calendars on the way to the top.

use alloc::vec::Vec;

use crate::calendar::Work;
use crate::calendars::{Calendars, TOP};
use crate::forecast::Forecast;
use crate::growth::{extend_to, grow};
use crate::handle::{DisbandError, Group, Handle, Key, Node, Standing, State, Unknown};
use crate::slot::{Flag, NIL, Place, Slot};
use crate::units::{Cost, Costs, Quantum, Scale, Weight};

/// The parent of a slot, and the calendar of its children. Slots beyond the end of the table have neither.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kin {
    /// The slot of the parent, or [`NIL`].
    parent: u32,
    /// The calendar of a group's children, or [`NIL`] for a key.
    pub(crate) calendar: u32,
}

const NO_KIN: Kin = Kin {
    parent: NIL,
    calendar: NIL,
};

/// Decides which key is served next.
///
/// See the [crate documentation](crate) for the algorithm and what it guarantees.
#[derive(Clone, Debug)]
pub struct Drr {
    pub(crate) scale: Scale,
    pub(crate) slots: Vec<Slot>,
    free: u32,
    live: usize,
    pub(crate) calendars: Calendars,
    pub(crate) kin: Vec<Kin>,
    work: Work,
}

impl Drr {
    /// Returns an engine without keys.
    #[must_use]
    pub fn new(quantum: Quantum) -> Self {
        Self::with_capacity(quantum, 0)
    }

    /// Returns an engine without keys that registers `keys` of them without allocating.
    #[must_use]
    pub fn with_capacity(quantum: Quantum, keys: usize) -> Self {
        Self {
            scale: Scale::new(quantum),
            slots: Vec::with_capacity(keys),
            free: NIL,
            live: 0,
            calendars: Calendars::new(),
            kin: Vec::new(),
            work: Work::default(),
        }
    }

    /// Adds a key without work.
    ///
    /// # Panics
    /// With 4,294,967,295 live keys and groups, which take 128 GiB.
    pub fn register(&mut self, weight: Weight) -> Key {
        Key(self.occupy(weight, None))
    }

    /// Adds a key without work to a group.
    ///
    /// # Errors
    /// If the group was disbanded.
    ///
    /// # Panics
    /// As [`register`](Self::register).
    pub fn register_in(&mut self, group: Group, weight: Weight) -> Result<Key, Unknown> {
        self.resolve(group.0)?;
        Ok(Key(self.occupy(weight, Some(group))))
    }

    /// Adds a group without children.
    ///
    /// A group competes with its siblings as one key, however many keys it has:
    ///
    /// ```
    /// use drr::{Cost, Drr, Quantum, Weight};
    ///
    /// let mut engine = Drr::new(Quantum::new(1).unwrap());
    /// let alone = engine.register(Weight::ONE);
    /// engine.wake(alone)?;
    /// let group = engine.register_group(Weight::ONE);
    /// for _ in 0..9 {
    ///     let key = engine.register_in(group, Weight::ONE)?;
    ///     engine.wake(key)?;
    /// }
    /// let mut served = 0;
    /// for _ in 0..100 {
    ///     let key = engine.next_key().unwrap();
    ///     engine.charge(key, Cost::ONE)?;
    ///     served += usize::from(key == alone);
    /// }
    /// assert!((49..=51).contains(&served)); // half, not a tenth
    /// # Ok::<(), drr::Unknown>(())
    /// ```
    ///
    /// # Panics
    /// As [`register`](Self::register).
    pub fn register_group(&mut self, weight: Weight) -> Group {
        let handle = self.occupy(weight, None);
        self.found(handle)
    }

    /// Adds a group without children to another group.
    ///
    /// # Errors
    /// If the parent was disbanded.
    ///
    /// # Panics
    /// As [`register`](Self::register).
    pub fn register_group_in(&mut self, parent: Group, weight: Weight) -> Result<Group, Unknown> {
        self.resolve(parent.0)?;
        let handle = self.occupy(weight, Some(parent));
        Ok(self.found(handle))
    }

    /// Makes a group of this weight in the place of a key, which becomes its only member.
    ///
    /// The group takes over what the key owes among its siblings. Inside the group the key owes nothing, since it has
    /// no siblings yet. The key keeps its handle, its weight and its work.
    ///
    /// # Errors
    /// If the key was forgotten.
    ///
    /// # Panics
    /// As [`register`](Self::register).
    pub fn enclose(&mut self, key: Key, weight: Weight) -> Result<Group, Unknown> {
        let index = self.resolve(key.0)?;
        let was_in_ring = self.pause(index);
        let handle = self.occupy(self.slots[index as usize].weight, self.home(index));
        let Slot {
            due, next, credit, ..
        } = self.slots[index as usize];
        let slot = &mut self.slots[handle.index as usize];
        (slot.due, slot.next, slot.credit) = (due, next, credit);
        let group = self.found(handle);
        self.set_weight(group, weight)?;
        self.rehome(index, Some(group));
        let calendar = self.calendar_of(index);
        self.calendars
            .view(calendar, &self.slots)
            .welcome(&mut self.slots, index, &self.scale);
        if was_in_ring {
            self.join(index);
        }
        Ok(group)
    }

    /// Moves a key to another group, or out of all groups, with what it owes.
    ///
    /// # Errors
    /// If the key or the group was forgotten.
    pub fn transfer(&mut self, key: Key, to: Option<Group>) -> Result<(), Unknown> {
        let index = self.resolve(key.0)?;
        let calendar = self.calendar_within(to)?;
        let before = self.calendar_of(index);
        if calendar == before {
            return Ok(());
        }
        let was_in_ring = self.pause(index);
        let from = self.calendars.view(before, &self.slots);
        let lead = from.lead_away(&self.slots[index as usize]);
        self.rehome(index, to);
        let home = self.calendars.view(calendar, &self.slots);
        home.place(&mut self.slots[index as usize], lead.max(0));
        if was_in_ring {
            self.join(index);
        }
        Ok(())
    }

    /// Says that the key has work: unless it is parked, it joins the ring at once.
    ///
    /// A key that sat out at least one pass is served once ahead of the ring. Waking a key that is awake
    /// changes nothing.
    ///
    /// # Errors
    /// If the key was forgotten.
    #[inline]
    pub fn wake(&mut self, key: Key) -> Result<(), Unknown> {
        let index = self.resolve(key.0)?;
        let slot = &mut self.slots[index as usize];
        if !slot.has(Flag::HasWork) {
            slot.set(Flag::HasWork);
            if !slot.has(Flag::Parked) {
                self.join(index);
            }
        }
        Ok(())
    }

    /// Says that the key has no more work: it leaves the ring, and its credit dies; a debt does not.
    ///
    /// # Errors
    /// If the key was forgotten.
    #[inline]
    pub fn sleep(&mut self, key: Key) -> Result<(), Unknown> {
        let index = self.resolve(key.0)?;
        let slot = &mut self.slots[index as usize];
        if slot.has(Flag::HasWork) {
            slot.clear(Flag::HasWork);
            if slot.place != Place::AWAY {
                self.leave(index);
            }
        }
        Ok(())
    }

    /// Says that the key, or everything in the group, may not run for now, whatever work it has.
    ///
    /// # Errors
    /// If the key or group was forgotten.
    pub fn park(&mut self, node: impl Into<Node>) -> Result<(), Unknown> {
        let index = self.resolve(node.into().0)?;
        let slot = &mut self.slots[index as usize];
        slot.set(Flag::Parked);
        if slot.place != Place::AWAY {
            self.leave(index);
        }
        Ok(())
    }

    /// Ends [`park`](Self::park): with work, the key or group joins the ring at once.
    ///
    /// # Errors
    /// If the key or group was forgotten.
    pub fn unpark(&mut self, node: impl Into<Node>) -> Result<(), Unknown> {
        let index = self.resolve(node.into().0)?;
        let slot = &mut self.slots[index as usize];
        slot.clear(Flag::Parked);
        if slot.has(Flag::HasWork) && slot.place == Place::AWAY {
            self.join(index);
        }
        Ok(())
    }

    /// Returns the key that is served next; `None` only if none may run.
    ///
    /// The choice stands until it is [charged](Self::charge): charge it before asking again.
    #[inline]
    pub fn next_key(&mut self) -> Option<Key> {
        let top = &mut self.calendars.top;
        let index = top.next(&mut self.slots[..], &self.scale, &mut self.work)?;
        let slot = &self.slots[index as usize];
        if slot.has(Flag::Group) {
            return Some(self.next_in_group(index));
        }
        Some(Key(Handle {
            index,
            generation: slot.generation,
        }))
    }

    /// Goes down from the chosen group to the chosen key in it.
    fn next_in_group(&mut self, group: u32) -> Key {
        let mut index = group;
        while self.slots[index as usize].has(Flag::Group) {
            let calendar = self.kin[index as usize].calendar;
            let (scale, work) = (&self.scale, &mut self.work);
            index = self
                .calendars
                .change(calendar, &mut self.slots, |calendar, slots| {
                    calendar.next(slots, scale, work)
                })
                .expect("a group is in the ring while a child of it is in its own");
        }
        Key(Handle {
            index,
            generation: self.slots[index as usize].generation,
        })
    }

    /// Charges the key, and every group it is in, for a piece of work that was dispatched.
    ///
    /// # Errors
    /// If the key was forgotten.
    #[inline]
    pub fn charge(&mut self, key: Key, cost: Cost) -> Result<(), Unknown> {
        let index = self.resolve(key.0)?;
        self.debit(index, self.scale.credit(cost));
        Ok(())
    }

    /// Corrects a charge once the true cost is known: the key pays the difference, or gets it back.
    ///
    /// ```
    /// use drr::{Cost, Drr, Quantum, Weight};
    ///
    /// let mut engine = Drr::new(Quantum::new(10).unwrap());
    /// let key = engine.register(Weight::ONE);
    /// engine.wake(key)?;
    /// let (guess, truth) = (Cost::new(10), Cost::new(25));
    /// assert_eq!(engine.next_key(), Some(key));
    /// engine.charge(key, guess)?; // when the work starts
    /// engine.settle(key, guess, truth)?; // when it is done
    /// assert_eq!(engine.debt(key)?, 15);
    /// # Ok::<(), drr::Unknown>(())
    /// ```
    ///
    /// # Errors
    /// If the key was forgotten.
    pub fn settle(&mut self, key: Key, charged: Cost, actual: Cost) -> Result<(), Unknown> {
        let index = self.resolve(key.0)?;
        let (charged, actual) = (self.scale.credit(charged), self.scale.credit(actual));
        if actual >= charged {
            self.debit(index, actual - charged);
            return Ok(());
        }
        let mut index = index;
        while index != NIL {
            let calendar = self.calendar_of(index);
            self.slots[index as usize].refund(charged - actual);
            self.calendars
                .change(calendar, &mut self.slots, |calendar, slots| {
                    calendar.refile(slots, index, &self.scale);
                });
            index = self.parent_of(index);
        }
        Ok(())
    }

    /// Changes the share of a key or group, from its next visit on and for all work that waits already.
    ///
    /// # Errors
    /// If the key or group was forgotten.
    pub fn set_weight(&mut self, node: impl Into<Node>, weight: Weight) -> Result<(), Unknown> {
        let index = self.resolve(node.into().0)?;
        let calendar = self.calendar_of(index);
        self.calendars
            .change(calendar, &mut self.slots, |calendar, slots| {
                calendar.set_weight(slots, index, weight, &self.scale);
            });
        Ok(())
    }

    /// Removes a key and frees its slot. Returns the key's debt, if it has any.
    ///
    /// A caller that may see the same key again keeps the standing and passes it to
    /// [`readmit`](Self::readmit): leaving and coming back then clears no debt and earns no boost. The
    /// standing may be dropped as soon as [`is_clear`](Self::is_clear) returns true.
    ///
    /// # Errors
    /// If the key was forgotten already.
    pub fn forget(&mut self, key: Key) -> Result<Option<Standing>, Unknown> {
        let index = self.resolve(key.0)?;
        Ok(self.vacate(index))
    }

    /// Removes a group that has no children. Returns its debt, as [`forget`](Self::forget) does.
    ///
    /// # Errors
    /// If the group was disbanded already, or has children.
    pub fn disband(&mut self, group: Group) -> Result<Option<Standing>, DisbandError> {
        let index = self.resolve(group.0)?;
        let calendar = self.kin[index as usize].calendar;
        match self.calendars.children(calendar) {
            0 => {
                self.calendars.release(calendar);
                Ok(self.vacate(index))
            }
            children => Err(DisbandError::NotEmpty { children }),
        }
    }

    /// Adds a forgotten key again, to its former group and with its remaining debt.
    ///
    /// # Errors
    /// If its group was disbanded.
    ///
    /// # Panics
    /// As [`register`](Self::register).
    pub fn readmit(&mut self, standing: Standing, weight: Weight) -> Result<Key, Unknown> {
        self.restore(standing, weight).map(Key)
    }

    /// Adds a group that was disbanded, as [`readmit`](Self::readmit) does for a key.
    ///
    /// # Errors
    /// If its parent was disbanded.
    ///
    /// # Panics
    /// As [`register`](Self::register).
    pub fn readmit_group(&mut self, standing: Standing, weight: Weight) -> Result<Group, Unknown> {
        let handle = self.restore(standing, weight)?;
        Ok(self.found(handle))
    }

    /// Returns whether a standing means nothing any more: its debt is paid, or its group is gone.
    #[must_use]
    pub fn is_clear(&self, standing: &Standing) -> bool {
        let Ok(calendar) = self.calendar_within(standing.home) else {
            return true;
        };
        let mut ghost = Slot::FREE;
        ghost.due = standing.due;
        ghost.next = standing.epoch;
        let calendar = self.calendars.view(calendar, &self.slots);
        calendar.lead_away(&ghost) <= 0
    }

    /// Returns whether nothing would be lost if a key or group were forgotten.
    ///
    /// This holds for one that is idle or parked, owes nothing, and whose next visit has come. It also holds in a group
    /// without anything to run that is settled itself: what its members owe each other is not paid while none of them
    /// is served, and the group has paid the same to its own siblings by then.
    ///
    /// # Errors
    /// If the key or group was forgotten.
    pub fn is_settled(&self, node: impl Into<Node>) -> Result<bool, Unknown> {
        let mut index = self.resolve(node.into().0)?;
        while index != NIL && self.slots[index as usize].place == Place::AWAY {
            if self.is_clear_of_debt(index) {
                return Ok(true);
            }
            if self.calendars.runnable(self.calendar_of(index)) > 0 {
                break;
            }
            index = self.parent_of(index);
        }
        Ok(false)
    }

    /// Returns the state of a key or group.
    ///
    /// # Errors
    /// If it was forgotten.
    pub fn state(&self, node: impl Into<Node>) -> Result<State, Unknown> {
        let index = self.resolve(node.into().0)?;
        let slot = &self.slots[index as usize];
        let calendar = self.calendars.view(self.calendar_of(index), &self.slots);
        Ok(match slot.place {
            _ if slot.has(Flag::Parked) => State::Parked,
            Place::AWAY => State::Idle,
            Place::FRESH => State::Fresh,
            _ if calendar.is_serving(index) => State::Serving,
            _ => State::Waiting,
        })
    }

    /// Returns the weight of a key or group.
    ///
    /// # Errors
    /// If it was forgotten.
    pub fn weight(&self, node: impl Into<Node>) -> Result<Weight, Unknown> {
        Ok(self.slots[self.resolve(node.into().0)? as usize].weight)
    }

    /// Returns by how much cost the key or group is ahead of its share. Waiting pays this off.
    ///
    /// # Errors
    /// If it was forgotten.
    pub fn debt(&self, node: impl Into<Node>) -> Result<u64, Unknown> {
        let index = self.resolve(node.into().0)?;
        let calendar = self.calendars.view(self.calendar_of(index), &self.slots);
        Ok(self
            .scale
            .cost(calendar.debt(&self.slots, index, &self.scale)))
    }

    /// Returns an upper bound on the cost that siblings are served before this key or group: B2 in numbers.
    ///
    /// `largest` is the largest cost of a piece of work. A turn costs at most the quantum plus that; where `costs` says that
    /// all pieces cost the same, it costs the quantum rounded up to whole pieces.
    ///
    /// For a key in the ring, the bound covers all service of its siblings until it is served, if no other sibling joins
    /// and no weight changes; siblings may leave and come back. For a newcomer, it covers everything that others do. For a
    /// key that is idle or parked, it is the bound that would hold if the key could run now. Refunds by
    /// [`settle`](Self::settle) come on top.
    ///
    /// # Errors
    /// If it was forgotten.
    pub fn bound(
        &self,
        node: impl Into<Node>,
        largest: Cost,
        costs: Costs,
    ) -> Result<u64, Unknown> {
        let index = self.resolve(node.into().0)?;
        let calendar = self.calendars.view(self.calendar_of(index), &self.slots);
        let (turn, reach) = self.turn_and_reach(largest, costs);
        let bound = calendar.bound(&self.slots, index, turn, reach, &self.scale);
        Ok(self.scale.cost_below(bound))
    }

    /// Returns the scaled cost of the longest turn, and how far one reaches that begins with a quantum.
    fn turn_and_reach(&self, largest: Cost, costs: Costs) -> (u64, u64) {
        let (quantum, piece) = (self.quantum().value(), largest.value());
        let turn = match costs {
            Costs::Equal => quantum.div_ceil(piece) * piece,
            Costs::Mixed => quantum + piece - 1,
        };
        let scaled = |cost| self.scale.credit(Cost::new(cost)).unsigned_abs();
        (scaled(turn), scaled(quantum + piece))
    }

    /// Returns an upper bound on the cost that all others are served before this key, in its group and outside of it.
    ///
    /// [`bound`](Self::bound) concerns one level. On the way up, each group has to hand out what the levels below
    /// it wait for; meanwhile the siblings of the group get their shares beside it, and one turn more (B1). For a key
    /// without a group the two bounds are the same.
    ///
    /// # Errors
    /// If the key was forgotten.
    pub fn bound_on_path(&self, key: Key, largest: Cost, costs: Costs) -> Result<u64, Unknown> {
        let bounds = self.bounds_on_path(key, largest, costs)?;
        Ok(bounds.last().unwrap_or(0))
    }

    /// Returns the bounds whose last is [`bound_on_path`](Self::bound_on_path), from the key or group upwards: the first one
    /// counts its siblings, the next one also the siblings of the group that it is in, and so on to the top. For a group,
    /// they concern the next service of any of its members.
    ///
    /// # Errors
    /// If the key or group was forgotten.
    pub fn bounds_on_path(
        &self,
        node: impl Into<Node>,
        largest: Cost,
        costs: Costs,
    ) -> Result<impl Iterator<Item = u64>, Unknown> {
        let mut index = self.resolve(node.into().0)?;
        let (turn, reach) = self.turn_and_reach(largest, costs);
        let mut others: u128 = 0;
        Ok(core::iter::from_fn(move || {
            if index == NIL {
                return None;
            }
            let calendar = self.calendars.view(self.calendar_of(index), &self.slots);
            let first = calendar.bound(&self.slots, index, turn, reach, &self.scale);
            let beside = match others {
                0 => 0,
                needed => calendar.beside(&self.slots, index, needed, reach, &self.scale),
            };
            others = others.saturating_add(first).saturating_add(beside);
            index = self.parent_of(index);
            Some(self.scale.cost_below(others))
        }))
    }

    /// Returns a forecast of the coming choices. The engine does not change.
    #[must_use]
    pub fn forecast(&self) -> Forecast<'_> {
        Forecast::new(self)
    }

    /// Returns the quantum.
    #[must_use]
    pub const fn quantum(&self) -> Quantum {
        self.scale.quantum()
    }

    /// Returns how many keys and groups are registered.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.live
    }

    /// Returns whether nothing is registered.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns whether [`next_key`](Self::next_key) would return a key.
    #[must_use]
    pub fn is_runnable(&self) -> bool {
        self.calendars.top.runnable() > 0
    }

    /// Returns how many keys and groups without a parent may run.
    #[must_use]
    pub fn runnable(&self) -> usize {
        self.calendars.top.runnable() as usize
    }

    /// Returns the sum of the weights of all of these. A key's share is its weight divided by this.
    #[must_use]
    pub fn runnable_weight(&self) -> u64 {
        self.calendars.top.weight()
    }

    /// Returns the group that a key or group is in.
    ///
    /// # Errors
    /// If the key or group was forgotten.
    pub fn parent(&self, node: impl Into<Node>) -> Result<Option<Group>, Unknown> {
        let index = self.resolve(node.into().0)?;
        Ok(self.home(index))
    }

    /// Returns how many keys and groups are directly in a group.
    ///
    /// # Errors
    /// If the group was disbanded.
    pub fn members(&self, group: Group) -> Result<u32, Unknown> {
        let index = self.resolve(group.0)?;
        Ok(self.calendars.children(self.kin[index as usize].calendar))
    }

    /// Returns how many of them may run, as [`runnable`](Self::runnable) does for those without a parent.
    ///
    /// # Errors
    /// If the group was disbanded.
    pub fn runnable_in(&self, group: Group) -> Result<usize, Unknown> {
        let calendar = self.calendar_within(Some(group))?;
        Ok(self.calendars.runnable(calendar) as usize)
    }

    /// Returns the sum of the weights of those that may run. A member's share of its group is its weight divided by this.
    ///
    /// # Errors
    /// If the group was disbanded.
    pub fn runnable_weight_in(&self, group: Group) -> Result<u64, Unknown> {
        let calendar = self.calendar_within(Some(group))?;
        Ok(self.calendars.view(calendar, &self.slots).weight())
    }

    /// Returns how many steps the engine has taken so far.
    #[must_use]
    pub const fn work(&self) -> Work {
        self.work
    }

    #[inline]
    pub(crate) fn resolve(&self, handle: Handle) -> Result<u32, Unknown> {
        match self.slots.get(handle.index as usize) {
            Some(slot) if slot.generation == handle.generation => Ok(handle.index),
            _ => Err(Unknown),
        }
    }

    fn occupy(&mut self, weight: Weight, group: Option<Group>) -> Handle {
        let index = if self.free == NIL {
            let index = u32::try_from(self.slots.len()).unwrap_or(NIL);
            assert!(
                index != NIL,
                "an engine holds at most 4,294,967,295 keys and groups"
            );
            grow(&mut self.slots);
            self.slots.push(Slot::FREE);
            index
        } else {
            let index = self.free;
            self.free = self.slots[index as usize].next;
            index
        };
        self.live += 1;
        let slot = &mut self.slots[index as usize];
        slot.occupy(weight);
        let handle = Handle {
            index,
            generation: slot.generation,
        };
        let mut calendar = TOP;
        if let Some(group) = group {
            slot.set(Flag::Nested);
            self.kin_mut(index).parent = group.0.index;
            calendar = self.kin[group.index()].calendar;
            *self.calendars.children_mut(calendar) += 1;
        }
        self.calendars
            .view(calendar, &self.slots)
            .welcome(&mut self.slots, index, &self.scale);
        handle
    }

    /// Takes a slot out of its ring for a while; tells whether it was in it.
    fn pause(&mut self, index: u32) -> bool {
        let was_in_ring = self.slots[index as usize].place != Place::AWAY;
        if was_in_ring {
            self.leave(index);
        }
        was_in_ring
    }

    /// Gives a slot that is away another parent. Its place in time is still that among its old siblings.
    fn rehome(&mut self, index: u32, to: Option<Group>) {
        let before = self.parent_of(index);
        if before != NIL {
            *self.children_of(before) -= 1;
        }
        let slot = &mut self.slots[index as usize];
        match to {
            Some(group) => {
                slot.set(Flag::Nested);
                self.kin_mut(index).parent = group.0.index;
                *self.children_of(group.0.index) += 1;
            }
            None => slot.clear(Flag::Nested),
        }
    }

    /// Makes a fresh slot a group.
    fn found(&mut self, handle: Handle) -> Group {
        let calendar = self.calendars.claim();
        self.kin_mut(handle.index).calendar = calendar;
        self.slots[handle.index as usize].set(Flag::Group);
        Group(handle)
    }

    fn vacate(&mut self, index: u32) -> Option<Standing> {
        if self.slots[index as usize].place != Place::AWAY {
            self.leave(index);
        }
        let parent = self.parent_of(index);
        let slot = &self.slots[index as usize];
        let standing = (!self.is_clear_of_debt(index)).then(|| Standing {
            home: self.home(index),
            due: slot.due,
            epoch: slot.next,
            owed: self.scale.visits(slot.weight).grant - slot.credit,
        });
        if parent != NIL {
            *self.children_of(parent) -= 1;
        }
        if let Some(kin) = self.kin.get_mut(index as usize) {
            *kin = NO_KIN;
        }
        self.slots[index as usize].vacate(self.free);
        self.free = index;
        self.live -= 1;
        standing
    }

    /// Returns whether a slot that is away owes nothing, and its next visit has come.
    fn is_clear_of_debt(&self, index: u32) -> bool {
        let calendar = self.calendars.view(self.calendar_of(index), &self.slots);
        calendar.lead_away(&self.slots[index as usize]) <= 0
            && calendar.debt(&self.slots, index, &self.scale) == 0
    }

    fn restore(&mut self, standing: Standing, weight: Weight) -> Result<Handle, Unknown> {
        self.calendar_within(standing.home)?;
        let handle = self.occupy(weight, standing.home);
        let slot = &mut self.slots[handle.index as usize];
        slot.due = standing.due;
        slot.next = standing.epoch;
        slot.credit = self.scale.visits(weight).grant - standing.owed;
        Ok(handle)
    }

    #[inline]
    fn debit(&mut self, index: u32, amount: i64) {
        let slot = &mut self.slots[index as usize];
        slot.debit(amount);
        if !slot.pays_alone() {
            self.debit_with_kin(index, amount);
        }
    }

    /// Completes the charge of a guest or of a key in a group.
    fn debit_with_kin(&mut self, index: u32, amount: i64) {
        let mut index = index;
        loop {
            if self.slots[index as usize].place == Place::GUEST {
                let calendar = self.calendar_of(index);
                let (scale, work) = (&self.scale, &mut self.work);
                self.calendars
                    .change(calendar, &mut self.slots, |calendar, slots| {
                        calendar.guest_served(slots, amount, scale, work);
                    });
            }
            index = self.parent_of(index);
            if index == NIL {
                return;
            }
            self.slots[index as usize].debit(amount);
        }
    }

    /// Puts a slot into its ring, and the groups above it that had nothing to run until now into theirs.
    fn join(&mut self, index: u32) {
        let mut index = index;
        loop {
            let calendar = self.calendar_of(index);
            self.calendars
                .change(calendar, &mut self.slots, |calendar, slots| {
                    calendar.join(slots, index, &self.scale);
                });
            index = self.parent_of(index);
            if index == NIL || self.slots[index as usize].has(Flag::HasWork) {
                return;
            }
            self.slots[index as usize].set(Flag::HasWork);
            if self.slots[index as usize].has(Flag::Parked) {
                return;
            }
        }
    }

    /// Takes a slot out of its ring, and the groups above it that now have nothing to run out of theirs.
    fn leave(&mut self, index: u32) {
        let mut index = index;
        loop {
            let calendar = self.calendar_of(index);
            let left = self
                .calendars
                .change(calendar, &mut self.slots, |calendar, slots| {
                    calendar.leave(slots, index, &self.scale);
                    calendar.runnable()
                });
            index = self.parent_of(index);
            if index == NIL || left > 0 {
                return;
            }
            self.slots[index as usize].clear(Flag::HasWork);
            if self.slots[index as usize].place == Place::AWAY {
                return; // parked
            }
        }
    }

    fn home(&self, index: u32) -> Option<Group> {
        let parent = self.parent_of(index);
        (parent != NIL).then(|| {
            Group(Handle {
                index: parent,
                generation: self.slots[parent as usize].generation,
            })
        })
    }

    /// Returns the slot of the parent, or [`NIL`].
    pub(crate) fn parent_of(&self, index: u32) -> u32 {
        if self.slots[index as usize].has(Flag::Nested) {
            self.kin[index as usize].parent
        } else {
            NIL
        }
    }

    /// Returns the calendar that a slot is in.
    pub(crate) fn calendar_of(&self, index: u32) -> u32 {
        match self.parent_of(index) {
            NIL => TOP,
            parent => self.kin[parent as usize].calendar,
        }
    }

    /// Returns the calendar of a group's children.
    fn calendar_within(&self, group: Option<Group>) -> Result<u32, Unknown> {
        match group {
            None => Ok(TOP),
            Some(group) => Ok(self.kin[self.resolve(group.0)? as usize].calendar),
        }
    }

    /// Returns how many children the group in a slot has, to be changed.
    fn children_of(&mut self, group: u32) -> &mut u32 {
        let calendar = self.kin[group as usize].calendar;
        self.calendars.children_mut(calendar)
    }

    fn kin_mut(&mut self, index: u32) -> &mut Kin {
        extend_to(&mut self.kin, index as usize + 1, &NO_KIN);
        &mut self.kin[index as usize]
    }
}
