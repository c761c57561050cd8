//! The calendars of an engine: that of the keys and groups without a parent, and one for each group.
//!
//! A calendar is large beside a key. Most groups never have two members in their ring at a time, and the calendar of such
//! a group is little more than its clock: it is kept packed in 40 bytes, and unpacked for each use. A calendar that once had
//! two members in its ring stays unpacked, so that steady use allocates nothing.
//!
//! # Invariants
//! - A packed calendar has at most one child in its ring and no rows of buckets. Unpacking yields what was packed.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Deref;

use crate::buckets::Buckets;
use crate::calendar::{Calendar, Packed};
use crate::growth::grow;
use crate::slot::Slot;

/// The calendar of the keys and groups without a parent.
pub(crate) const TOP: u32 = 0;

#[derive(Clone, Debug)]
pub(crate) struct Calendars {
    pub(crate) top: Calendar,
    /// By number; the first one has number 1.
    groups: Vec<Stored>,
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
enum Stored {
    Packed(Packed),
    Whole(Box<Calendar>),
}

const _: () = assert!(size_of::<Stored>() == 40);

/// A calendar to look at: the one that is kept, or what was unpacked.
#[derive(Debug)]
pub(crate) enum View<'a> {
    Kept(&'a Calendar),
    Unpacked(Calendar),
}

impl Deref for View<'_> {
    type Target = Calendar;

    fn deref(&self) -> &Calendar {
        match self {
            Self::Kept(calendar) => calendar,
            Self::Unpacked(calendar) => calendar,
        }
    }
}

impl View<'_> {
    pub(crate) fn into_owned(self) -> Calendar {
        match self {
            Self::Kept(calendar) => calendar.clone(),
            Self::Unpacked(calendar) => calendar,
        }
    }
}

impl Calendars {
    pub(crate) fn new() -> Self {
        Self {
            top: Calendar::new(Buckets::with_all_levels()),
            groups: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Returns the number of a calendar without children.
    pub(crate) fn claim(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            grow(&mut self.groups);
            self.groups.push(Stored::Packed(Packed::EMPTY));
            self.groups.len() as u32
        })
    }

    /// Ends the use of a calendar without children.
    pub(crate) fn release(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Returns a calendar to look at.
    pub(crate) fn view(&self, number: u32, slots: &[Slot]) -> View<'_> {
        if number == TOP {
            return View::Kept(&self.top);
        }
        match &self.groups[number as usize - 1] {
            Stored::Whole(calendar) => View::Kept(calendar),
            Stored::Packed(packed) => View::Unpacked(packed.unpack(slots)),
        }
    }

    /// Returns how many children are in a calendar's ring.
    pub(crate) fn runnable(&self, number: u32) -> u32 {
        if number == TOP {
            return self.top.runnable();
        }
        match &self.groups[number as usize - 1] {
            Stored::Whole(calendar) => calendar.runnable(),
            Stored::Packed(packed) => packed.runnable(),
        }
    }

    /// Returns how many children the calendar of a group has, in its ring or not.
    pub(crate) fn children(&self, number: u32) -> u32 {
        match &self.groups[number as usize - 1] {
            Stored::Whole(calendar) => calendar.children,
            Stored::Packed(packed) => packed.children,
        }
    }

    /// Returns the same number, to be changed.
    pub(crate) fn children_mut(&mut self, number: u32) -> &mut u32 {
        match &mut self.groups[number as usize - 1] {
            Stored::Whole(calendar) => &mut calendar.children,
            Stored::Packed(packed) => &mut packed.children,
        }
    }

    /// Changes a calendar and slots of its children.
    #[inline]
    pub(crate) fn change<R>(
        &mut self,
        number: u32,
        slots: &mut [Slot],
        f: impl FnOnce(&mut Calendar, &mut [Slot]) -> R,
    ) -> R {
        if number == TOP {
            return f(&mut self.top, slots);
        }
        let stored = &mut self.groups[number as usize - 1];
        let packed = match stored {
            Stored::Whole(calendar) => return f(calendar, slots),
            Stored::Packed(packed) => packed,
        };
        let mut calendar = packed.unpack(slots);
        let result = f(&mut calendar, slots);
        match calendar.pack() {
            Some(changed) => *packed = changed,
            None => *stored = Stored::Whole(Box::new(calendar)),
        }
        result
    }
}
