//! How tenants nest: which group a tenant is in, and what follows for a new one.
//!
//! The scheduler asks the user's function without holding a lock. A tenant that comes brings what the ring needs to
//! know about its groups: their names and their weights.

use std::fmt;
use std::sync::Arc;

use drr::Weight;

/// The most levels: three groups and a tenant in them.
///
/// Each level costs one more choice per task, and adds one more turn to the longest wait. Four are an organisation, a
/// team, a user and a job.
pub(crate) const DEPTH_MAX: usize = 4;

/// A tenant whose outermost group is not reached after this many steps is in no group.
const STEPS_MAX: usize = 32;

/// Returns the group that a tenant or a group is in, or `None` if it is in none.
pub type GroupOf<K> = Arc<dyn Fn(&K) -> Option<K> + Send + Sync>;

/// Groups pairs by their first half: `("acme", "/search")` is in the group `("acme", "")`.
///
/// For [`with_groups`](crate::SchedulerConfig::with_groups). The name of a group has the default value as its second half:
/// an empty text, `None`, zero. A tenant that has that second half is the group itself, with work of its own.
///
/// ```
/// use firq_core::{Scheduler, SchedulerConfig, Task, group_by_first};
///
/// let scheduler = Scheduler::new(SchedulerConfig::fair().with_groups(group_by_first))?;
/// for route in ["/search", "/report", "/export"] {
///     assert!(scheduler.submit(("acme", route), Task::new(())).is_ok());
/// }
/// assert_eq!(scheduler.tenant_len(&("acme", "")), 3);
/// # Ok::<(), firq_core::ConfigError>(())
/// ```
pub fn group_by_first<A: Clone, B: Default + PartialEq>(
    (first, second): &(A, B),
) -> Option<(A, B)> {
    let outermost = B::default();
    (*second != outermost).then(|| (first.clone(), outermost))
}

/// Groups names by their parts: `acme/alice` is in the group `acme`.
///
/// For [`with_groups`](crate::SchedulerConfig::with_groups), where keys are `String`, `Arc<str>` or `Box<str>`. Every text is
/// a name, whatever a client sends: a part may be empty, and a name of more than four parts is in the group of its first
/// three, so that no number of parts leads out of a group. [`TenantPath`](crate::TenantPath) is the key that refuses such
/// names instead, limits their length, and is cloned without copying the text.
///
/// ```
/// use firq_core::{Scheduler, SchedulerConfig, Task, group_by_slash};
///
/// let scheduler = Scheduler::new(SchedulerConfig::fair().with_groups(group_by_slash))?;
/// for user in ["acme/alice", "acme/bob"] {
///     assert!(scheduler.submit(user.to_owned(), Task::new(())).is_ok());
/// }
/// assert_eq!(scheduler.tenant_len(&"acme".to_owned()), 2);
/// # Ok::<(), firq_core::ConfigError>(())
/// ```
pub fn group_by_slash<K: AsRef<str> + for<'a> From<&'a str>>(name: &K) -> Option<K> {
    let name = name.as_ref();
    let slashes = name.match_indices('/').take(DEPTH_MAX - 1);
    let (end, _) = slashes.last()?;
    Some(K::from(&name[..end]))
}

/// How the tenants of a scheduler nest.
pub(crate) struct Levels<K> {
    group_of: GroupOf<K>,
    /// The most tasks that the members of a group may have queued together.
    pub(crate) max_per_group: u32,
}

impl<K> Levels<K> {
    pub(crate) const fn new(group_of: GroupOf<K>, max_per_group: u32) -> Self {
        Self {
            group_of,
            max_per_group,
        }
    }

    /// Returns the groups that a tenant is in, the innermost first. The caller holds no lock.
    ///
    /// If there are more than fit, the outermost ones count.
    pub(crate) fn groups_of(&self, tenant: &K) -> Vec<K>
    where
        K: PartialEq,
    {
        let mut groups = Vec::new();
        let mut next = (self.group_of)(tenant);
        while let Some(group) = next {
            if groups.len() == STEPS_MAX || group == *tenant || groups.contains(&group) {
                return Vec::new(); // it goes in circles, or has no end
            }
            next = (self.group_of)(&group);
            groups.push(group);
        }
        groups.drain(..groups.len().saturating_sub(DEPTH_MAX - 1));
        groups
    }
}

impl<K> fmt::Debug for Levels<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Levels")
            .field("max_per_group", &self.max_per_group)
            .finish_non_exhaustive()
    }
}

/// A tenant that the ring may not know yet, with its groups.
#[derive(Debug)]
pub(crate) struct Newcomer<'a, K> {
    pub(crate) tenant: &'a K,
    pub(crate) weight: Weight,
    /// The weight of a tenant with the base quantum.
    pub(crate) neutral: Weight,
    /// The groups with their weights, the innermost first.
    pub(crate) groups: Vec<(K, Weight)>,
}

impl<K: PartialEq> Newcomer<'_, K> {
    /// Returns the group with its weight that this tenant or group of it is in.
    pub(crate) fn around(&self, name: &K) -> Option<&(K, Weight)> {
        if name == self.tenant {
            return self.groups.first();
        }
        let at = self.groups.iter().position(|(group, _)| group == name)?;
        self.groups.get(at + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(group_of: impl Fn(&u32) -> Option<u32> + Send + Sync + 'static) -> Levels<u32> {
        Levels::new(Arc::new(group_of), u32::MAX)
    }

    #[test]
    fn groups_come_innermost_first_and_at_most_three() {
        let levels = levels(|&tenant| (tenant > 0).then(|| tenant - 1));
        assert_eq!(levels.groups_of(&0), [0; 0]);
        assert_eq!(levels.groups_of(&2), [1, 0]);
        assert_eq!(levels.groups_of(&3), [2, 1, 0]);
        assert_eq!(levels.groups_of(&9), [2, 1, 0], "the outermost count");
    }

    #[test]
    fn a_function_without_an_end_makes_no_groups() {
        for endless in [
            levels(|&tenant| Some(tenant)),
            levels(|&tenant| Some((tenant + 1) % 3)),
            levels(|&tenant| Some(tenant + 1)),
        ] {
            assert_eq!(endless.groups_of(&0), [0; 0]);
        }
    }

    #[test]
    fn names_are_grouped_by_their_parts() {
        let parent = |name: &str| group_by_slash(&name.to_owned());
        assert_eq!(parent("acme"), None);
        assert_eq!(parent(""), None);
        assert_eq!(parent("acme/alice").as_deref(), Some("acme"));
        assert_eq!(parent("a/b/c/d").as_deref(), Some("a/b/c"));
        assert_eq!(parent("/x").as_deref(), Some(""));
        assert_eq!(parent("a//b").as_deref(), Some("a/"));
        assert_eq!(parent("é/ü").as_deref(), Some("é"));
    }

    #[test]
    fn no_number_of_parts_leads_out_of_a_group() {
        let levels = Levels::new(Arc::new(group_by_slash::<String>), u32::MAX);
        for parts in [2, 4, 5, 40, 4_000] {
            let name = vec!["acme"; parts].join("/");
            let groups = levels.groups_of(&name);
            assert_eq!(groups.last().map(String::as_str), Some("acme"), "{parts}");
            assert!(groups.len() < DEPTH_MAX);
        }
    }

    #[test]
    fn pairs_are_grouped_by_their_first_half() {
        assert_eq!(group_by_first(&("acme", "/search")), Some(("acme", "")));
        assert_eq!(group_by_first(&("acme", "")), None);
        assert_eq!(group_by_first(&(7, Some(1))), Some((7, None)));
    }
}
