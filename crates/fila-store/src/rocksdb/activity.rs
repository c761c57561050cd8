//! Finds idle tables: their memtables keep old journals from being deleted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::rows::{Table, WriteSet};

/// Counts writes by table, and finds the tables without writes between two visits.
#[derive(Debug, Default)]
pub(super) struct Activity([Counter; Table::ALL.len()]);

#[derive(Debug, Default)]
struct Counter {
    writes: AtomicU64,
    seen: AtomicU64,
}

impl Activity {
    /// Counts writes that are about to be made.
    pub(super) fn note(&self, writes: &WriteSet) {
        let mut written = [0_u64; Table::ALL.len()];
        for write in writes.iter() {
            written[write.table as usize] += 1;
        }
        for (counter, written) in self.0.iter().zip(written) {
            counter.writes.fetch_add(written, Ordering::Relaxed);
        }
    }

    /// Visits all tables, and returns those without writes since the last visit.
    pub(super) fn idle(&self) -> impl Iterator<Item = Table> {
        Table::ALL.into_iter().filter(|&table| {
            let counter = &self.0[table as usize];
            let writes = counter.writes.load(Ordering::Relaxed);
            counter.seen.swap(writes, Ordering::Relaxed) == writes
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_idle_if_it_was_not_written_to_since_the_last_visit() {
        let mut writes = WriteSet::new();
        writes.unset(Table::Payloads, b"key");
        let activity = Activity::default();
        activity.note(&writes);
        let idle: Vec<_> = activity.idle().collect();
        assert!(!idle.contains(&Table::Payloads));
        assert_eq!(idle.len(), Table::ALL.len() - 1);
        assert!(activity.idle().eq(Table::ALL), "each is visited once");
    }
}
