//! Keys that are paths, and the groups that they are in: pauses and caps of groups bind their members, and a group counts
//! what its keys count.

use std::num::NonZeroU32;

use fila_core::{Delivering, KeyCursor, KeySeparator, KeySettings};
use fila_store::{FairnessKey, GroupWeights, QueueId};

use super::{Chance, Life, Simulation};
use crate::support::key;

/// The keys of messages. Most are paths under one separator or another, and `g` is a key and a group.
pub(super) const KEYS: [&str; 6] = ["a", "g", "g/b", "g/h/c", "g/h/d", "i:g/e"];

/// Names of groups that are no keys.
const GROUPS: [&str; 3] = ["g/h", "i", "i:g"];

/// Returns the name of some key or group.
pub(super) fn some_name(chance: &mut Chance) -> FairnessKey {
    let nth = chance.below((KEYS.len() + GROUPS.len()) as u64) as usize;
    let mut names = KEYS.iter().chain(&GROUPS);
    key(names.nth(nth).unwrap())
}

pub(super) fn some_settings(chance: &mut Chance) -> KeySettings {
    KeySettings {
        delivery: if chance.one_in(2) {
            Delivering::Paused
        } else {
            Delivering::Running
        },
        weight: NonZeroU32::new(chance.below(4) as u32),
        concurrency: NonZeroU32::new(chance.below(3) as u32),
        // Never reached here: the model cannot say how many messages there are before those that expired are read.
        depth_max: chance.one_in(3).then_some(100_000),
    }
}

pub(super) fn some_separator(chance: &mut Chance) -> Option<KeySeparator> {
    let separators = [Some('/'), Some(':'), None];
    let separator = separators[chance.below(3) as usize]?;
    KeySeparator::new(separator).ok()
}

/// Returns weights of groups that a hook might name.
pub(super) fn some_group_weights(chance: &mut Chance) -> GroupWeights {
    let mut weights = GroupWeights::NONE;
    for level in 0..GroupWeights::LEVELS {
        if let Some(weight) = NonZeroU32::new(chance.below(3) as u32) {
            weights.set(level, weight);
        }
    }
    weights
}

impl Simulation {
    /// Returns the groups whose settings bind a key: those that it is in, and the one that may bear its name.
    fn levels(&self, key: &FairnessKey) -> Vec<FairnessKey> {
        let mut levels = vec![key.clone()];
        if let Some(separator) = self.definition.key_separator {
            let groups = separator.groups(key.as_bytes());
            levels.extend(groups.map(|group| FairnessKey::new(group.to_vec()).unwrap()));
        }
        levels
    }

    fn is_within(&self, key: &FairnessKey, group: &FairnessKey) -> bool {
        self.levels(key).contains(group)
    }

    /// Tells whether neither the key nor a group that it is in is paused.
    pub(super) fn is_path_running(&self, key: &FairnessKey) -> bool {
        self.levels(key).iter().all(|name| {
            let settings = self.definition.keys.get(name);
            settings.is_none_or(|it| it.delivery == Delivering::Running)
        })
    }

    /// Tells whether every group that a key is in may have one more lease.
    pub(super) fn has_group_room(&self, key: &FairnessKey) -> bool {
        self.levels(key).iter().all(|group| {
            let settings = self.definition.keys.get(group);
            let Some(cap) = settings.and_then(|settings| settings.concurrency) else {
                return true;
            };
            let messages = self.messages.values();
            let leased = messages.filter(|known| {
                matches!(known.life, Life::Leased(_)) && self.is_within(&known.key, group)
            });
            leased.count() < cap.get() as usize
        })
    }

    /// Checks that each group counts what its keys count together, and that there is no other.
    pub(super) fn check_groups(&mut self, queue: QueueId) {
        let (now, start) = (self.shell.now, KeyCursor::start());
        let broker = &mut self.shell.broker;
        let (groups, next) = broker.groups(now, queue, start, usize::MAX).unwrap();
        assert_eq!(next, None);
        let keys = self.shell.keys(queue);
        for group in &groups {
            let is_within = |key: &FairnessKey| self.is_within(key, &group.path);
            let members = keys.iter().filter(|it| is_within(&it.fairness_key));
            let mut sums = [0; 4];
            for member in members {
                let counts = [
                    member.ready,
                    member.throttled,
                    member.delayed,
                    member.leased,
                ];
                for (sum, count) in sums.iter_mut().zip(counts) {
                    *sum += count;
                }
            }
            let counts = [group.ready, group.throttled, group.delayed, group.leased];
            assert_eq!(counts, sums, "{group:?}: {keys:?}");
        }
        for member in keys
            .iter()
            .filter(|it| it.ready + it.delayed + it.leased > 0)
        {
            for level in &self.levels(&member.fairness_key)[1..] {
                let is_there = groups.iter().any(|group| group.path == *level);
                assert!(is_there, "{level:?} of {member:?}");
            }
        }
    }
}
