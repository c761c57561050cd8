//! The weights of the groups that a message's fairness key is in.

use std::num::NonZeroU32;

/// The weights that a hook has named for the groups of a fairness key, by their level: 0 is the top of the path. Almost
/// no message has one.
///
/// A level has no weight if the hook has named none for it. The group then keeps the weight that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupWeights([Option<NonZeroU32>; Self::LEVELS]);

impl GroupWeights {
    /// The most groups that a key is in.
    pub const LEVELS: usize = 3;

    /// No weights.
    pub const NONE: Self = Self([None; Self::LEVELS]);

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// Returns the weight of the group at this level.
    pub fn get(&self, level: usize) -> Option<NonZeroU32> {
        self.0.get(level).copied().flatten()
    }

    /// Sets the weight of the group at this level. A level that no group can have is ignored.
    pub fn set(&mut self, level: usize, weight: NonZeroU32) {
        if let Some(place) = self.0.get_mut(level) {
            *place = Some(weight);
        }
    }

    /// Returns each level that has a weight, from the top down.
    pub fn iter(&self) -> impl Iterator<Item = (usize, NonZeroU32)> + use<> {
        let weights = self.0.into_iter().enumerate();
        weights.filter_map(|(level, weight)| Some((level, weight?)))
    }

    /// Takes over the weights that a later message of the same key names.
    pub fn follow(&mut self, later: &Self) {
        for (level, weight) in later.iter() {
            self.set(level, weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(weight: u32) -> NonZeroU32 {
        NonZeroU32::new(weight).unwrap()
    }

    #[test]
    fn a_level_without_a_weight_keeps_the_one_before() {
        let mut first = GroupWeights::NONE;
        assert!(first.is_empty());
        first.set(0, weight(3));
        first.set(2, weight(4));
        let mut later = GroupWeights::default();
        later.set(2, weight(7));
        later.set(GroupWeights::LEVELS, weight(9));
        first.follow(&later);
        let all: Vec<_> = first.iter().collect();
        assert_eq!(all, [(0, weight(3)), (2, weight(7))]);
        assert_eq!(first.get(1), None);
        assert_eq!(first.get(GroupWeights::LEVELS), None);
        assert!(!first.is_empty());
    }

    #[test]
    fn it_takes_no_more_than_twelve_bytes() {
        assert_eq!(size_of::<GroupWeights>(), 12);
        // They fill a gap in part: a schedule has eight bytes more than without them.
        assert_eq!(size_of::<crate::Schedule>(), 64);
    }
}
