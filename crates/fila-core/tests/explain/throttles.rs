//! Keys that wait for tokens: the throttle, the keys before them, and the end of the wait.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{Basis, Command, Ordering, Position, QueueSettings, Waiting};
use fila_store::Timestamp;

use crate::support::{START, Shell, message, throttle_key, throttled};
use crate::{later, name, position};

#[test]
fn a_key_without_a_token_names_its_throttle_and_the_end_of_its_wait() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    shell.subscribe(queue, u32::MAX);
    shell.throttle("api", 10.0, 1.0);
    shell.enqueue_all(queue, vec![throttled("a", &["api"]); 5]);
    assert_eq!(shell.deliveries.len(), 1);
    for passed in 1..5 {
        let explanation = shell.explain(queue, "a");
        let until = Timestamp::from_millis(START + passed * 100);
        let waiting = Waiting::Throttled {
            key: throttle_key("api"),
            until: Some(until),
        };
        assert_eq!(explanation.waiting, waiting);
        let estimate = explanation.estimate.unwrap();
        assert_eq!((estimate.at, estimate.basis), (until, Basis::Due));
        // Not a millisecond before, and then.
        shell.now = Timestamp::from_millis(until.as_millis() - 1);
        shell.run();
        assert_eq!(shell.deliveries.len() as u64, passed);
        shell.now = until;
        shell.run();
        assert_eq!(shell.deliveries.len() as u64, passed + 1);
    }
    assert_eq!(shell.explain(queue, "a").waiting, Waiting::Empty);
}

#[test]
fn who_waits_before_it_for_the_same_throttle_is_counted_in() {
    // A key that was called waits again, and may come back one place earlier or later than forecast: two tokens at most.
    let flat = ["a", "b", "c", "d", "e"];
    let nested = ["x/a", "x/b", "c", "y/z/d", "y/e"];
    for (names, weight, tolerance) in [(flat, 1, 200), (flat, 3, 400), (nested, 1, 600)] {
        let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
        shell.subscribe(queue, u32::MAX);
        shell.throttle("api", 5.0, 1.0);
        for name in names {
            let mut new = throttled(name, &["api"]);
            let weight = if name == "c" { weight } else { 1 };
            new.schedule.weight = NonZeroU32::new(weight).unwrap();
            shell.enqueue_all(queue, vec![new; 12]);
        }
        // For a while, and then what is said is held against what happens.
        for _ in 0..4 {
            shell.advance(Duration::from_millis(1570));
            shell.run();
            shell.deliveries.clear();
            let mut said = BTreeMap::new();
            for name in names {
                let Waiting::Throttled { key, until } = shell.explain(queue, name).waiting else {
                    panic!("{name} has more");
                };
                assert_eq!(key, throttle_key("api"));
                said.insert(name.to_owned(), until.unwrap());
            }
            while !said.is_empty() {
                shell.advance(Duration::from_millis(1));
                shell.run();
                while let Some((_, delivery)) = shell.deliveries.pop_front() {
                    if let Some(until) = said.remove(&name(&delivery)) {
                        let error = shell.now.as_millis().abs_diff(until.as_millis());
                        assert!(error <= tolerance, "{} by {error} ms", name(&delivery));
                    }
                }
            }
        }
    }
}

#[test]
fn a_throttle_that_gives_nothing_has_no_end() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    shell.subscribe(queue, u32::MAX);
    shell.throttle("off", 0.0, 1.0);
    shell.enqueue(queue, throttled("a", &["off"]));
    let explanation = shell.explain(queue, "a");
    let waiting = Waiting::Throttled {
        key: throttle_key("off"),
        until: None,
    };
    assert_eq!(explanation.waiting, waiting);
    assert_eq!(explanation.estimate, None);
}

#[test]
fn of_several_throttles_the_first_to_let_something_through_is_told() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    let consumer = shell.subscribe(queue, 100);
    for (name, rate) in [("slow", 1.0), ("fast", 4.0), ("off", 0.0)] {
        shell.throttle(name, rate, 1.0);
    }
    for throttle in ["off", "slow", "fast"] {
        shell.enqueue_all(queue, vec![throttled("a", &[throttle]); 3]);
    }
    let explanation = shell.explain(queue, "a");
    let waiting = Waiting::Throttled {
        key: throttle_key("fast"),
        until: Some(later(&shell, 250)),
    };
    assert_eq!(explanation.waiting, waiting);
    // Its other messages do not wait for the throttled ones.
    shell.tell(Command::Drain { consumer });
    let consumer = shell.subscribe(queue, 0);
    shell.enqueue(queue, message("a", "free"));
    assert_eq!(position(&shell.explain(queue, "a")), Position::Exactly(0));
    assert!(shell.next(consumer).is_some());
}

#[test]
fn in_a_strict_line_the_first_waits_for_its_token_and_all_behind_it() {
    let mut definition = QueueSettings::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    shell.subscribe(queue, u32::MAX);
    shell.throttle("api", 2.0, 1.0);
    shell.enqueue(queue, throttled("other", &["api"]));
    shell.enqueue(queue, throttled("a", &["api"]));
    shell.enqueue(queue, message("a", "free"));
    let until = later(&shell, 500);
    let waiting = Waiting::Throttled {
        key: throttle_key("api"),
        until: Some(until),
    };
    assert_eq!(shell.explain(queue, "a").waiting, waiting);
    shell.deliveries.clear();
    shell.now = until;
    shell.run();
    assert_eq!(shell.deliveries.len(), 1);
}
