//! The shares that keys and groups should have, by their weights.
//!
//! On each level, those that compete share the part of their group by their weights. A key or group competes if it has ready
//! messages and is not paused. The sums are over the keys and groups of a sample: they are too small where it has left some
//! out.

use std::collections::HashMap;

use fila_sdk::{GroupInfo, KeyInfo};

use super::sample::Keys;

pub(crate) struct Ideals<'a> {
    groups: HashMap<&'a str, &'a GroupInfo>,
    separator: Option<&'a str>,
    /// The weights of those that compete in each group, and of those in none.
    weights: HashMap<Option<&'a str>, u64>,
}

impl<'a> Ideals<'a> {
    pub(crate) fn new(keys: &'a Keys, separator: Option<&'a str>) -> Self {
        let groups = keys.groups.iter().map(|it| (&*it.path, it)).collect();
        let mut ideals = Self {
            groups,
            separator,
            weights: HashMap::new(),
        };
        for key in &keys.keys {
            if is_competing(key.paused, key.ready) {
                let (group, weight) = ideals.place(key);
                *ideals.weights.entry(group).or_default() += u64::from(weight);
            }
        }
        for group in &keys.groups {
            if is_competing(group.paused, group.ready) {
                let around = ideals.around(&group.path);
                *ideals.weights.entry(around).or_default() += u64::from(group.weight);
            }
        }
        ideals
    }

    pub(crate) fn of_key(&self, key: &'a KeyInfo) -> Option<f64> {
        let (group, weight) = self.place(key);
        is_competing(key.paused, key.ready).then(|| self.part(group, weight))?
    }

    pub(crate) fn of_group(&self, group: &'a GroupInfo) -> Option<f64> {
        let around = self.around(&group.path);
        is_competing(group.paused, group.ready).then(|| self.part(around, group.weight))?
    }

    /// Returns the part of a competitor of this weight in a group, or in none.
    fn part(&self, group: Option<&'a str>, weight: u32) -> Option<f64> {
        let whole = match group {
            None => 1.0,
            // Four levels at most.
            Some(path) => self.of_group(self.groups.get(path)?)?,
        };
        let weights = *self.weights.get(&group)?;
        Some(whole * f64::from(weight) / weights as f64)
    }

    /// Returns the group that a key is in, and its weight there. The messages of a key with the path of a group are one
    /// member of that group, of weight 1.
    fn place(&self, key: &'a KeyInfo) -> (Option<&'a str>, u32) {
        match self.groups.contains_key(&*key.key) {
            true => (Some(&key.key), 1),
            false => (self.around(&key.key), key.weight),
        }
    }

    fn around(&self, path: &'a str) -> Option<&'a str> {
        let (around, _) = path.rsplit_once(self.separator?)?;
        self.groups.contains_key(around).then_some(around)
    }
}

fn is_competing(paused: bool, ready: u64) -> bool {
    !paused && ready > 0
}

#[cfg(test)]
mod tests {
    use super::super::samples::key;
    use super::*;

    fn group(path: &str, weight: u32, ready: u64) -> GroupInfo {
        let mut group = GroupInfo::default();
        group.path = path.to_owned();
        (group.weight, group.ready) = (weight, ready);
        group
    }

    #[test]
    fn members_share_the_part_of_their_group() {
        let mut held = group("held", 9, 5);
        held.paused = true;
        let keys = Keys {
            queue: "orders".to_owned(),
            keys: vec![
                key("zeta", 1, 5, 0),
                key("acme/a", 3, 5, 0),
                // Its weight is the group's.
                key("acme", 3, 5, 0),
                key("acme/idle", 7, 0, 0),
                key("held/b", 1, 5, 0),
            ],
            groups: vec![group("acme", 3, 10), held],
        };
        let ideals = Ideals::new(&keys, Some("/"));
        let of_keys: Vec<_> = keys.keys.iter().map(|key| ideals.of_key(key)).collect();
        let (quarter, rest) = (Some(0.25), Some(0.75 * 0.75));
        assert_eq!(of_keys, [quarter, rest, Some(0.75 * 0.25), None, None]);
        let of_groups = keys.groups.iter().map(|it| ideals.of_group(it));
        assert_eq!(of_groups.collect::<Vec<_>>(), [Some(0.75), None]);
        // Without a separator they are names.
        let flat = Keys {
            groups: Vec::new(),
            ..keys.clone()
        };
        let ideals = Ideals::new(&flat, None);
        assert_eq!(ideals.of_key(&flat.keys[0]), Some(1.0 / 8.0));
    }
}
