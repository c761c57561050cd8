//! Names for schedulers whose keys are paths.

use std::collections::HashMap;

/// The path of every key and group that a law has named: `g0/g3/k5` is key 5 in group 3 in group 0, and `g0` is both the
/// group 0 and the key of its own work. A key that was put nowhere is at the top.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    parents: HashMap<u32, Option<u32>>,
    homes: HashMap<u32, Home>,
    /// The key of each group's own work.
    owners: HashMap<u32, u32>,
}

/// Where a key is.
#[derive(Clone, Copy, Debug)]
enum Home {
    In(u32),
    Is(u32),
}

impl Paths {
    /// Notes where a group is.
    pub fn found(&mut self, group: u32, parent: Option<u32>) {
        self.parents.insert(group, parent);
    }

    /// Notes that a key is a member of a group.
    pub fn adopt(&mut self, key: u32, group: u32) {
        self.homes.insert(key, Home::In(group));
    }

    /// Notes that a key has the name of a group.
    pub fn own(&mut self, key: u32, group: u32) {
        self.homes.insert(key, Home::Is(group));
        self.owners.insert(group, key);
    }

    /// Returns the path of a key.
    #[must_use]
    pub fn key(&self, key: u32) -> String {
        match self.homes.get(&key) {
            None => format!("k{key}"),
            Some(Home::In(group)) => format!("{}/k{key}", self.group(*group)),
            Some(Home::Is(group)) => self.group(*group),
        }
    }

    /// Returns the path of a group.
    #[must_use]
    pub fn group(&self, group: u32) -> String {
        let mut path = format!("g{group}");
        let mut above = self.parent(group);
        while let Some(group) = above {
            path = format!("g{group}/{path}");
            above = self.parent(group);
        }
        path
    }

    /// Returns the key that has a path, if a law has named it.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u32> {
        let last = path.rsplit('/').next()?;
        match last.strip_prefix('k') {
            Some(number) => number.parse().ok(),
            None => self
                .owners
                .get(&last.strip_prefix('g')?.parse().ok()?)
                .copied(),
        }
    }

    /// Returns whether a key is a group's own.
    #[must_use]
    pub fn is_own(&self, key: u32) -> bool {
        matches!(self.homes.get(&key), Some(Home::Is(_)))
    }

    /// Returns the groups whose pause or cap binds a key, the nearest first.
    pub fn groups(&self, key: u32) -> impl Iterator<Item = u32> {
        let first = self.homes.get(&key).map(|&home| match home {
            Home::In(group) | Home::Is(group) => group,
        });
        std::iter::successors(first, |&group| self.parent(group))
    }

    /// Returns the group that a group is in.
    #[must_use]
    pub fn parent(&self, group: u32) -> Option<u32> {
        self.parents.get(&group).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_key_and_the_groups_above_it() {
        let mut paths = Paths::default();
        paths.found(0, None);
        paths.found(3, Some(0));
        paths.adopt(5, 3);
        paths.own(6, 3);
        for (key, path, groups) in [
            (5, "g0/g3/k5", vec![3, 0]),
            (6, "g0/g3", vec![3, 0]),
            (7, "k7", vec![]),
        ] {
            assert_eq!(paths.key(key), path);
            assert_eq!(paths.number(path), Some(key));
            assert_eq!(paths.groups(key).collect::<Vec<_>>(), groups);
        }
        assert_eq!(paths.number("g0"), None, "it has no work of its own");
    }
}
