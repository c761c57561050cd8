//! The cost of groups: the same pairs with tenants in groups beside tenants in none.

use std::sync::Arc;

use firq_core::{GroupOf, TenantKey};

use super::best_of;
use crate::contenders::{Ours, Room};
use crate::report::{Cell, Report};

const SIZES: [usize; 3] = [10, 1_000, 100_000];

/// The names of groups are numbers that no tenant has.
const GROUP: u64 = 1 << 32;

pub(super) fn run(samples: usize, pairs: usize) -> Report {
    let rows = SIZES.map(|tenants| row(tenants, samples, pairs));
    Report {
        title: "One thread: tenants in groups beside tenants in none, ns per pair".to_owned(),
        note: "One task queued per tenant; tenants in random order, and all stay in memory. Best of alternating samples. \
               Two levels: groups of ten, in groups of ten. There the order of service is not that of arrival, so most \
               tenants come and go with each pair.",
        columns: vec![
            "tenants",
            "flat",
            "all in one group",
            "groups of ten",
            "two levels",
            "a group each",
            "groups of ten ÷ flat",
        ],
        rows: rows.into(),
    }
}

fn row(tenants: usize, samples: usize, pairs: usize) -> Vec<Cell> {
    let room = Room {
        total: 2 * tenants + 16,
        per_tenant: 2 * tenants + 16,
        shards: 1,
    };
    let flat = Ours::keeping_all(room, None);
    let nested = |size: u64, levels: u64| {
        let group_of: GroupOf<TenantKey> = Arc::new(move |name| group_of(*name, size, levels));
        Ours::keeping_all(room, Some(group_of))
    };
    let (one, tens) = (nested(u64::MAX, 1), nested(10, 1));
    let (two, alone) = (nested(10, 2), nested(1, 1));
    let best = best_of([&flat, &one, &tens, &two, &alone], tenants, samples, pairs);
    let mut row = vec![Cell::count(tenants)];
    row.extend(best.map(|nanos| Cell::Number(nanos, 0)));
    row.push(Cell::Number(best[2] / best[0], 2));
    row
}

/// Returns the group of a tenant or of a group, where `size` of them are in each and there are `levels` of groups.
fn group_of(name: TenantKey, size: u64, levels: u64) -> Option<TenantKey> {
    let (level, number) = (name.as_u64() / GROUP, name.as_u64() % GROUP);
    (level < levels).then(|| TenantKey::from((level + 1) * GROUP + number / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_measured_beside_flat_tenants() {
        let table = run(1, 1_000);
        assert_eq!(table.rows.len(), SIZES.len());
        assert!(
            table
                .rows
                .iter()
                .all(|row| row.len() == table.columns.len())
        );
    }

    #[test]
    fn tenants_are_in_groups_of_the_size_and_depth_that_the_columns_say() {
        let of = |name: u64, size, levels| {
            group_of(TenantKey::from(name), size, levels).map(TenantKey::as_u64)
        };
        assert_eq!(of(37, u64::MAX, 1), Some(GROUP));
        assert_eq!(of(37, 10, 1), Some(GROUP + 3));
        assert_eq!(of(GROUP + 3, 10, 1), None);
        assert_eq!(of(GROUP + 37, 10, 2), Some(2 * GROUP + 3));
        assert_eq!(of(37, 1, 1), Some(GROUP + 37));
    }
}
