//! A look ahead: the choices that the engine would make if nothing else happened.
//!
//! A forecast runs the engine's own calendars on a copy that is made as it goes: of each slot that is changed, and of each
//! calendar that is asked. Its cost depends on how far it looks, not on the number of keys.
//!
//! # Invariants
//! - A slot or calendar that was not changed is the engine's own.
//! - A forecast predicts each step exactly, as long as engine and forecast are told the same things.

use alloc::collections::BTreeMap;
use core::ops::{Index, IndexMut};

use crate::calendar::{Calendar, Work};
use crate::calendars::TOP;
use crate::engine::Drr;
use crate::handle::{Handle, Key, Unknown};
use crate::slot::{Flag, NIL, Place, Slot, Slots};
use crate::units::Cost;

/// A look ahead; see [`Drr::forecast`].
///
/// ```
/// use drr::{Cost, Drr, Quantum, Weight};
///
/// let mut engine = Drr::new(Quantum::new(1).unwrap());
/// let keys = [Weight::ONE; 3].map(|weight| engine.register(weight));
/// for key in keys {
///     engine.wake(key).unwrap();
/// }
/// // How many turns of others come before the last one's?
/// let mut forecast = engine.forecast();
/// let mut others = 0;
/// while let Some(key) = forecast.next_key().filter(|&key| key != keys[2]) {
///     forecast.charge(key, Cost::ONE).unwrap();
///     others += 1;
/// }
/// assert_eq!(others, 2);
/// assert_eq!(engine.next_key(), Some(keys[0])); // the engine has not moved
/// ```
#[derive(Clone, Debug)]
pub struct Forecast<'a> {
    engine: &'a Drr,
    slots: Changed<'a>,
    calendars: BTreeMap<u32, Calendar>,
    work: Work,
}

impl<'a> Forecast<'a> {
    pub(crate) const fn new(engine: &'a Drr) -> Self {
        Self {
            engine,
            slots: Changed {
                before: engine.slots.as_slice(),
                after: BTreeMap::new(),
            },
            calendars: BTreeMap::new(),
            work: engine.work(),
        }
    }

    /// Returns the key that would be served next, as [`Drr::next_key`] does.
    pub fn next_key(&mut self) -> Option<Key> {
        let mut index = self.next_in(TOP)?;
        while self.slots[index as usize].has(Flag::Group) {
            let calendar = self.engine.kin[index as usize].calendar;
            index = self.next_in(calendar)?;
        }
        Some(Key(Handle {
            index,
            generation: self.slots[index as usize].generation,
        }))
    }

    /// Charges the key, as [`Drr::charge`] does.
    ///
    /// # Errors
    /// If the key was forgotten.
    pub fn charge(&mut self, key: Key, cost: Cost) -> Result<(), Unknown> {
        let mut index = self.engine.resolve(key.0)?;
        let amount = self.engine.scale.credit(cost);
        while index != NIL {
            self.slots[index as usize].debit(amount);
            if self.slots[index as usize].place == Place::GUEST {
                let calendar = copied(
                    &mut self.calendars,
                    self.engine,
                    self.engine.calendar_of(index),
                );
                calendar.guest_served(&self.slots, amount, &self.engine.scale, &mut self.work);
            }
            index = self.engine.parent_of(index);
        }
        Ok(())
    }

    /// Says that the key would have no more work, as [`Drr::sleep`] does.
    ///
    /// # Errors
    /// If the key was forgotten.
    pub fn sleep(&mut self, key: Key) -> Result<(), Unknown> {
        let mut index = self.engine.resolve(key.0)?;
        while index != NIL && self.slots[index as usize].has(Flag::HasWork) {
            self.slots[index as usize].clear(Flag::HasWork);
            if self.slots[index as usize].place == Place::AWAY {
                break; // parked
            }
            let calendar = copied(
                &mut self.calendars,
                self.engine,
                self.engine.calendar_of(index),
            );
            calendar.leave(&mut self.slots, index, &self.engine.scale);
            if calendar.runnable() > 0 {
                break;
            }
            index = self.engine.parent_of(index);
        }
        Ok(())
    }

    /// Returns how many steps the engine would have taken by then.
    #[must_use]
    pub const fn work(&self) -> Work {
        self.work
    }

    /// Returns the child whose turn it would be in a calendar.
    fn next_in(&mut self, calendar: u32) -> Option<u32> {
        let calendar = copied(&mut self.calendars, self.engine, calendar);
        calendar.next(&mut self.slots, &self.engine.scale, &mut self.work)
    }
}

/// Returns the copy of a calendar, made if there is none.
fn copied<'c>(
    copies: &'c mut BTreeMap<u32, Calendar>,
    engine: &Drr,
    calendar: u32,
) -> &'c mut Calendar {
    let original = || engine.calendars.view(calendar, &engine.slots).into_owned();
    copies.entry(calendar).or_insert_with(original)
}

/// Slots, with changed copies of some of them.
#[derive(Clone, Debug)]
struct Changed<'a> {
    before: &'a [Slot],
    after: BTreeMap<usize, Slot>,
}

impl Index<usize> for Changed<'_> {
    type Output = Slot;

    fn index(&self, index: usize) -> &Slot {
        self.after.get(&index).unwrap_or(&self.before[index])
    }
}

impl IndexMut<usize> for Changed<'_> {
    fn index_mut(&mut self, index: usize) -> &mut Slot {
        let before = self.before;
        let original = || before[index].clone();
        self.after.entry(index).or_insert_with(original)
    }
}

impl Slots for Changed<'_> {
    fn find(&self, index: u32) -> Option<&Slot> {
        let index = index as usize;
        (index < self.before.len()).then(|| &self[index])
    }
}
