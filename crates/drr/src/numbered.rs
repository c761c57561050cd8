//! Values by numbers that are small and reused.
//!
//! While the numbers have no gaps, a value is at the place of its number. The numbers of an engine's keys have gaps once
//! there are groups, which have numbers as well. A value may be large, so from the first gap on a table says where each
//! value is, and no place stays empty for a group.
//!
//! # Invariants
//! - Without a table (`places` is empty), the value of number `n` is `values[n]`.
//! - With one, it is `values[places[n]]`; every place without a value is in `free` exactly once, and `free` has room for all
//!   of them, so that only insertion allocates.

use alloc::vec::Vec;

/// No place.
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(crate) struct Numbered<T> {
    values: Vec<Option<T>>,
    places: Vec<u32>,
    free: Vec<u32>,
}

impl<T> Numbered<T> {
    pub(crate) const fn new() -> Self {
        Self {
            values: Vec::new(),
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Returns a number that is larger than all.
    pub(crate) const fn extent(&self) -> usize {
        if self.places.is_empty() {
            self.values.len()
        } else {
            self.places.len()
        }
    }

    #[inline]
    fn place(&self, number: u32) -> usize {
        if self.places.is_empty() {
            return number as usize;
        }
        let place = self.places.get(number as usize);
        place.copied().unwrap_or(NOWHERE) as usize
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.values.get(self.place(number))?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let place = self.place(number);
        self.values.get_mut(place)?.as_mut()
    }

    /// Gives a number that has none a value.
    pub(crate) fn insert(&mut self, number: u32, value: T) {
        if self.places.is_empty() && number as usize > self.values.len() {
            self.make_table(number);
        }
        let place = if self.places.is_empty() {
            number as usize
        } else {
            self.find_place(number)
        };
        if place == self.values.len() {
            self.values.push(None);
        }
        self.values[place] = Some(value);
    }

    /// Begins with a table, which has a place for this number too.
    fn make_table(&mut self, number: u32) {
        let values = self.values.iter().zip(0..);
        self.places = values
            .map(|(value, place)| if value.is_some() { place } else { NOWHERE })
            .collect();
        self.places.resize(number as usize + 1, NOWHERE);
        let gaps = self.values.iter().zip(0..);
        self.free = gaps
            .filter_map(|(value, place)| value.is_none().then_some(place))
            .collect();
    }

    /// Returns a place for the value of this number.
    fn find_place(&mut self, number: u32) -> usize {
        let index = number as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, NOWHERE);
        }
        let place = self.free.pop().unwrap_or(self.values.len() as u32);
        self.places[index] = place;
        self.free.reserve(self.values.len() + 1 - self.free.len());
        place as usize
    }

    /// Takes the value of a number.
    pub(crate) fn take(&mut self, number: u32) -> Option<T> {
        let place = self.place(number);
        let value = self.values.get_mut(place)?.take()?;
        if !self.places.is_empty() {
            self.places[number as usize] = NOWHERE;
            self.free.push(place as u32);
        }
        Some(value)
    }

    /// Returns all numbers with their values, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbers = 0..self.extent() as u32;
        numbers.filter_map(|number| Some((number, self.get(number)?)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_take_no_places_for_the_numbers_between_them() {
        let mut numbered = Numbered::new();
        for number in 0..100 {
            numbered.insert(2 * number, number);
        }
        assert_eq!((numbered.values.len(), numbered.extent()), (100, 199));
        for number in 0..100 {
            assert_eq!(numbered.take(2 * number), Some(number));
            numbered.insert(2 * number + 1, number);
        }
        assert_eq!(numbered.values.len(), 100);
    }

    #[test]
    fn numbers_without_gaps_need_no_table() {
        let mut numbered = Numbered::new();
        for number in 0..100 {
            numbered.insert(number, ());
        }
        for number in [3, 99, 50] {
            numbered.take(number);
            numbered.insert(number, ());
        }
        assert!(numbered.places.is_empty() && numbered.free.is_empty());
    }

    proptest! {
        #[test]
        fn it_is_a_map(numbers in prop::collection::vec((0u32..20, 0u32..1000), 0..200)) {
            let mut numbered = Numbered::new();
            let mut map = BTreeMap::new();
            for (number, value) in numbers {
                let before = map.remove(&number);
                prop_assert_eq!(numbered.take(number), before);
                if before.is_none() {
                    numbered.insert(number, value);
                    map.insert(number, value);
                }
                prop_assert_eq!(numbered.get(number), map.get(&number));
                prop_assert_eq!(numbered.get_mut(number), map.get_mut(&number));
                let found: Vec<(u32, u32)> = numbered.iter().map(|(n, v)| (n, *v)).collect();
                let expected: Vec<(u32, u32)> = map.iter().map(|(n, v)| (*n, *v)).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
