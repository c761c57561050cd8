//! Fairness keys that messages are spread over: flat, or in groups.

/// How many keys there are, and the groups that they are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyShape {
    /// Its name in a table.
    pub(crate) name: &'static str,
    pub(crate) count: u64,
    /// How many keys a group of each level has, from the top; flat keys have no groups.
    groups: &'static [u64],
}

impl KeyShape {
    /// The same keys, flat and in groups.
    pub(crate) const THOUSAND: Self = Self::flat(1_000);
    pub(crate) const TEN_GROUPS: Self = Self::new("1,000 keys in 10 groups", 1_000, &[100]);
    pub(crate) const GROUPS_OF_ONE: Self = Self::new("1,000 groups of one key", 1_000, &[1]);
    pub(crate) const FOUR_LEVELS: Self = Self::new("1,000 keys on 4 levels", 1_000, &[200, 40, 8]);

    const fn new(name: &'static str, count: u64, groups: &'static [u64]) -> Self {
        Self {
            name,
            count,
            groups,
        }
    }

    /// Returns keys without groups.
    pub(crate) const fn flat(count: u64) -> Self {
        Self::new("flat keys", count, &[])
    }

    /// Returns the fairness key of this number: a name, below the names of its groups.
    pub(crate) fn path(self, key: u64) -> String {
        let groups = self.groups.iter();
        let groups = groups.map(|size| format!("group-{}/", key / size));
        groups.collect::<String>() + &format!("tenant-{key}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_below_its_groups() {
        assert_eq!(KeyShape::flat(10).path(7), "tenant-7");
        assert_eq!(KeyShape::TEN_GROUPS.path(999), "group-9/tenant-999");
        assert_eq!(KeyShape::GROUPS_OF_ONE.path(7), "group-7/tenant-7");
        let deep = KeyShape::FOUR_LEVELS.path(399);
        assert_eq!(deep, "group-1/group-9/group-49/tenant-399");
    }
}
