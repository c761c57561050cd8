//! The last minute: what a key got, what it should have got, and when it is served if things go on like that.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{Basis, Delivering, KeySettings, QueueSettings};

use crate::support::{Shell, key};
use crate::{enqueue, serve};

#[test]
fn shares_and_ideals_agree_within_one_percent_while_all_have_work() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    let consumer = shell.subscribe(queue, 0);
    for (name, weight) in [("one", 1), ("two", 2), ("seven", 7)] {
        enqueue(&mut shell, queue, name, weight, 8000);
    }
    for _ in 0..8000 {
        serve(&mut shell, queue, consumer);
        shell.advance(Duration::from_millis(10));
    }
    let mut sum = (0, 0);
    for (name, weight) in [("one", 1.0), ("two", 2.0), ("seven", 7.0)] {
        let recent = shell.explain(queue, name).recent;
        assert!((50..=60).contains(&recent.over.as_secs()), "{recent:?}");
        let (served, ideal) = (recent.served as f64, recent.ideal as f64);
        let total = recent.total as f64;
        assert!((served / total - weight / 10.0).abs() <= 0.01, "{recent:?}");
        assert!(
            (ideal / total - weight / 10.0).abs() <= 0.0001,
            "{recent:?}"
        );
        sum = (sum.0 + recent.served, sum.1 + recent.ideal);
        let expected = recent.over.as_millis() as u64 / 10 * 1000;
        assert!(recent.total.abs_diff(expected) <= 2000, "{recent:?}");
        assert!(sum.0 <= recent.total);
    }
    assert!(sum.1.abs_diff(sum.0) <= 100, "{sum:?}");
}

#[test]
fn the_ideal_follows_who_can_run_and_with_what_weight() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    let consumer = shell.subscribe(queue, 0);
    let serve_for = |shell: &mut Shell, count: u32| {
        for _ in 0..count {
            serve(shell, queue, consumer);
            shell.advance(Duration::from_millis(10));
        }
    };
    enqueue(&mut shell, queue, "a", 1, 5000);
    enqueue(&mut shell, queue, "b", 1, 5000);
    // 10 s with one of two, 10 s paused, 10 s with three of four.
    serve_for(&mut shell, 1000);
    let mut definition = QueueSettings::default();
    let settings = KeySettings {
        delivery: Delivering::Paused,
        ..KeySettings::default()
    };
    definition.keys.insert(key("a"), settings);
    shell.update(queue, definition);
    shell.run();
    serve_for(&mut shell, 1000);
    let mut definition = QueueSettings::default();
    let settings = KeySettings {
        weight: NonZeroU32::new(3),
        ..KeySettings::default()
    };
    definition.keys.insert(key("a"), settings);
    shell.update(queue, definition);
    shell.run();
    serve_for(&mut shell, 1000);
    let recent = shell.explain(queue, "a").recent;
    assert_eq!(recent.total, 3_000_000);
    assert!(
        recent.ideal.abs_diff(500_000 + 750_000) <= 2000,
        "{recent:?}"
    );
    assert!(recent.served.abs_diff(recent.ideal) <= 5000, "{recent:?}");
    // A minute later nothing of it counts.
    shell.advance(Duration::from_secs(61));
    let recent = shell.explain(queue, "a").recent;
    assert_eq!((recent.total, recent.served, recent.ideal), (0, 0, 0));
}

#[test]
fn at_a_steady_pace_the_estimate_is_right_within_five_percent() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    let consumer = shell.subscribe(queue, 0);
    for number in 0..200 {
        let weight = 1 + number % 3;
        enqueue(&mut shell, queue, &format!("key {number}"), weight, 60);
    }
    // One every 20 ms.
    let step = Duration::from_millis(20);
    for _ in 0..1500 {
        serve(&mut shell, queue, consumer);
        shell.advance(step);
    }
    let asked_at = shell.now;
    let mut said = BTreeMap::new();
    for number in (0..200).step_by(7) {
        let name = format!("key {number}");
        let estimate = shell.explain(queue, &name).estimate.expect("a pace");
        assert_eq!(estimate.basis, Basis::QueuePace);
        said.insert(name, estimate.at.since(asked_at));
    }
    while !said.is_empty() {
        let name = serve(&mut shell, queue, consumer);
        if let Some(said) = said.remove(&name) {
            let waited = shell.now.since(asked_at);
            let error = said.abs_diff(waited);
            assert!(error <= waited / 20 + step, "{said:?} and {waited:?}");
        }
        shell.advance(step);
    }
}
