//! Doubly linked lists through slots of a table: constant-time removal, no allocation.

use std::ops::IndexMut;

/// "No slot": the end of a list, or an empty one.
pub(crate) const NIL: u32 = u32::MAX;

/// The neighbours of a slot in the list that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    pub(crate) const NONE: Self = Self {
        prev: NIL,
        next: NIL,
    };
}

/// Something that can be in one list at a time.
pub(crate) trait Linked {
    fn links(&mut self) -> &mut Links;
}

/// A list: first in, first out, but any slot can leave it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
    };

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// Returns the first slot.
    #[inline]
    pub(crate) const fn front(&self) -> Option<u32> {
        match self.head {
            NIL => None,
            slot => Some(slot),
        }
    }

    #[inline]
    pub(crate) fn push_back<T>(&mut self, table: &mut T, slot: u32)
    where
        T: IndexMut<u32, Output: Linked>,
    {
        *table[slot].links() = Links {
            prev: self.tail,
            next: NIL,
        };
        match self.tail {
            NIL => self.head = slot,
            tail => table[tail].links().next = slot,
        }
        self.tail = slot;
    }

    /// Takes a slot out, which must be in this list.
    #[inline]
    pub(crate) fn remove<T>(&mut self, table: &mut T, slot: u32)
    where
        T: IndexMut<u32, Output: Linked>,
    {
        let Links { prev, next } = std::mem::replace(table[slot].links(), Links::NONE);
        match prev {
            NIL => self.head = next,
            prev => table[prev].links().next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => table[next].links().prev = prev,
        }
    }

    #[inline]
    pub(crate) fn pop_front<T>(&mut self, table: &mut T) -> Option<u32>
    where
        T: IndexMut<u32, Output: Linked>,
    {
        let slot = self.front()?;
        self.remove(table, slot);
        Some(slot)
    }

    /// Returns how many slots there are, by counting them.
    pub(crate) fn len<T>(&self, table: &mut T) -> usize
    where
        T: IndexMut<u32, Output: Linked>,
    {
        match self.tail {
            NIL => 0,
            tail => 1 + ahead_of(table, tail),
        }
    }
}

/// Returns how many slots come before this one in its list.
pub(crate) fn ahead_of<T>(table: &mut T, slot: u32) -> usize
where
    T: IndexMut<u32, Output: Linked>,
{
    let mut ahead = 0;
    let mut at = table[slot].links().prev;
    while at != NIL {
        ahead += 1;
        at = table[at].links().prev;
    }
    ahead
}
