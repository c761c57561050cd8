//! Worlds with groups, made by hand, and a play of 100,000 keys.

use drr::{Quantum, Weight};

use super::*;
use crate::{KeySettings, QueueSettings};

fn path(name: &str) -> FairnessKey {
    FairnessKey::new(name.to_owned()).unwrap()
}

/// Returns a snapshot of a queue whose consumers hold `slots` messages for 100 ms, and have none now.
fn snapshot(slots: u64) -> Snapshot {
    Snapshot {
        engine: Drr::new(Quantum::new(1000).unwrap()),
        lanes: Vec::new(),
        groups: Vec::new(),
        supply: Supply {
            pace: Some(slots as f64 * 10.0),
            spare: slots,
            hold: Some(Duration::from_millis(100)),
            leases: Vec::new(),
        },
    }
}

impl Snapshot {
    fn group(&mut self, name: &str, parent: Option<u32>) -> Option<u32> {
        let above = parent.map(|parent| self.groups[parent as usize].group);
        let group = match above {
            Some(above) => self.engine.register_group_in(above, Weight::ONE).unwrap(),
            None => self.engine.register_group(Weight::ONE),
        };
        self.groups.push(GroupSnapshot {
            path: path(name),
            group,
            parent,
            named: Weight::ONE,
        });
        Some(self.groups.len() as u32 - 1)
    }

    fn lane(&mut self, name: &str, group: Option<u32>, ready: u64) {
        let above = group.map(|group| self.groups[group as usize].group);
        let key = match above {
            Some(above) => self.engine.register_in(above, Weight::ONE).unwrap(),
            None => self.engine.register(Weight::ONE),
        };
        self.lanes.push(LaneSnapshot {
            path: path(name),
            key,
            group,
            named: Weight::ONE,
            ready,
            leased: 0,
            held_back: 0,
            arrivals: 0.0,
            hold: None,
            costs: UpcomingCosts {
                first: Box::default(),
                mean: Cost::new(1000),
            },
        });
    }

    fn tried(&self, then: &QueueSettings) -> Comparison {
        let query = WhatIfQuery {
            levels: 4,
            ..WhatIfQuery::default()
        };
        let now = QueueSettings::default();
        self.compare(&now, then, &query, &|| true).unwrap()
    }
}

/// Returns a snapshot with `acme`, which has two users and messages of its own, and with `globex`, a key.
fn companies() -> Snapshot {
    let mut snapshot = snapshot(10);
    let acme = snapshot.group("acme", None);
    snapshot.lane("acme/alice", acme, 50_000);
    snapshot.lane("acme/bob", acme, 50_000);
    snapshot.lane("acme", acme, 50_000);
    snapshot.lane("globex", None, 50_000);
    snapshot
}

fn changed(name: &str, change: impl Fn(&mut KeySettings)) -> QueueSettings {
    let mut settings = QueueSettings::default();
    change(settings.keys.entry(path(name)).or_default());
    settings
}

fn rows(comparison: &Comparison) -> Vec<(String, RowKind, u8, f64)> {
    let rows = comparison.rows.iter().map(|row| {
        let name = String::from_utf8_lossy(row.path.as_bytes()).into_owned();
        let share = (row.then.share * 1000.0).round() / 1000.0;
        (name, row.kind, row.level, share)
    });
    rows.collect()
}

#[test]
fn a_group_gets_one_share_and_its_members_parts_of_it() {
    let compared = companies().tried(&changed("acme/bob", |bob| {
        bob.weight = std::num::NonZeroU32::new(2);
    }));
    let expected = [
        ("acme", RowKind::Group, 0, 0.5),
        ("acme/bob", RowKind::Key, 1, 0.25),
        ("acme/alice", RowKind::Key, 1, 0.125),
        ("acme", RowKind::OwnMessages, 1, 0.125),
        ("globex", RowKind::Key, 0, 0.5),
    ];
    let expected = expected.map(|(name, kind, level, share)| (name.to_owned(), kind, level, share));
    assert_eq!(rows(&compared), expected);
    assert_eq!(compared.rows[0].ready, 150_000);
    assert!(!compared.rows[0].is_changed && compared.rows[1].is_changed);
}

#[test]
fn the_settings_of_a_group_bind_all_its_members() {
    let companies = companies();
    let weighed = companies.tried(&changed("acme", |acme| {
        acme.weight = std::num::NonZeroU32::new(3);
    }));
    assert_eq!(weighed.rows[0].then.weight, 3);
    assert!((weighed.rows[0].then.share - 0.75).abs() < 0.001);
    let own = &weighed.rows[1..4];
    let own = own.iter().find(|row| row.kind == RowKind::OwnMessages);
    assert!((own.unwrap().then.share - 0.25).abs() < 0.001);
    assert_eq!(own.unwrap().then.weight, 1);

    let paused = companies.tried(&changed("acme", |acme| {
        acme.delivery = crate::Delivering::Paused;
    }));
    assert_eq!(paused.rows[0].then.share, 0.0);
    assert_eq!(paused.rows[0].then.drained, None);
    let globex = paused.rows.last().unwrap();
    assert!((globex.then.share - 1.0).abs() < 0.001);

    let capped = companies.tried(&changed("acme", |acme| {
        acme.concurrency = std::num::NonZeroU32::new(3);
    }));
    assert!((capped.rows[0].then.rate.unwrap() - 30.0).abs() < 0.5);
    assert_eq!(capped.rows[0].then.cap, Some(3));
    // Its own messages have its cap. Its members have the queue's, which is none.
    let caps = |kind| {
        let rows = capped.rows.iter().filter(move |row| row.kind == kind);
        rows.map(|row| row.then.cap).collect::<Vec<_>>()
    };
    assert_eq!(caps(RowKind::OwnMessages), [Some(3)]);
    assert_eq!(caps(RowKind::Key), [None; 3]);
}

#[test]
fn a_cap_binds_groups_in_groups() {
    let mut snapshot = snapshot(10);
    let acme = snapshot.group("acme", None);
    let team = snapshot.group("acme/team", acme);
    snapshot.lane("acme/team/alice", team, 50_000);
    snapshot.lane("acme/bob", acme, 50_000);
    snapshot.lane("globex", None, 50_000);
    let then = changed("acme/team", |team| {
        team.concurrency = std::num::NonZeroU32::new(1);
    });
    let compared = snapshot.tried(&then);
    let rate = |name: &str| {
        let mut rows = compared.rows.iter();
        let row = rows.find(|row| row.path == path(name)).unwrap();
        row.then.rate.unwrap()
    };
    assert!((rate("acme/team") - 10.0).abs() < 0.5);
    assert!((rate("acme") - 50.0).abs() < 1.0);
    assert!((rate("acme/bob") - 40.0).abs() < 1.0);
}

#[test]
fn a_play_of_many_keys_takes_a_bounded_number_of_steps() {
    for keys in [10, 10_000, 100_000] {
        let mut snapshot = snapshot(1_000);
        for number in 0..keys {
            snapshot.lane(&format!("key-{number}"), None, 1_000);
        }
        let then = changed("key-1", |key| {
            key.weight = std::num::NonZeroU32::new(9);
        });
        let compared = snapshot.tried(&then);
        let drained: Vec<_> = compared.rows.iter().map(|row| row.then.drained).collect();
        assert!(drained.iter().all(Option::is_some));
        // The queue delivers 10,000 in a second.
        let all = keys as f64 * 1_000.0 / 10_000.0;
        let Some(Drained {
            after: Span::Time(last),
            ..
        }) = drained.last().unwrap()
        else {
            panic!("there is a pace");
        };
        let error = (last.as_secs_f64() - all).abs() / all;
        // With as many keys, few of the messages of each are played.
        assert!(error < 0.15, "{last:?} is not {all} s");
    }
}
