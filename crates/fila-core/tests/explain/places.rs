//! Keys that can run: how many others come before them, and how many may at most.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{Charge, Ordering, Position, QueueSettings, Settings};

use crate::support::{Chance, Shell, message};
use crate::{enqueue, position, serve, weigh};

#[test]
fn a_position_is_how_many_others_come_before() {
    for seed in 1..60 {
        let mut chance = Chance(seed);
        let mut definition = QueueSettings::default();
        definition.charge = [Charge::Message, Charge::Bytes][chance.below(2) as usize];
        let mut settings = Settings::default();
        let quantum = [1000, 1000, 4000, 300][chance.below(4) as usize];
        settings.quantum = drr::Quantum::new(quantum).unwrap();
        let mut shell = Shell::new(settings);
        let queue = shell.create("queue", definition);
        let consumer = shell.subscribe(queue, 0);
        let keys = 2 + chance.below(20);
        for round in 0..5 {
            for number in 0..keys {
                if chance.below(3) == 0 {
                    continue; // gone for a while, and perhaps a newcomer then
                }
                let count = chance.below(12);
                let mut new = message(&number.to_string(), vec![0; chance.below(4000) as usize]);
                new.schedule.weight = NonZeroU32::new(1 + chance.below(9) as u32).unwrap();
                let messages = vec![new; count as usize];
                shell.enqueue_all(queue, messages);
            }
            for _ in 0..chance.below(60) {
                if shell.stats(queue).ready > 0 {
                    serve(&mut shell, queue, consumer);
                }
            }
            if shell.stats(queue).ready > 0 {
                serve(&mut shell, queue, consumer);
            }
            let mut foreseen = BTreeMap::new();
            let mut bounds = BTreeMap::new();
            for number in 0..keys {
                let name = number.to_string();
                let explanation = shell.explain(queue, &name);
                if explanation.ready > 0 {
                    foreseen.insert(name.clone(), position(&explanation));
                    bounds.insert(name, explanation.bound.unwrap());
                }
            }
            if round < 4 {
                continue;
            }
            // No more messages come, so the forecast must be exact.
            let mut deliveries = 0;
            while !foreseen.is_empty() {
                let name = serve(&mut shell, queue, consumer);
                if let Some(position) = foreseen.remove(&name) {
                    assert_eq!(
                        position,
                        Position::Exactly(deliveries),
                        "{name}, seed {seed}"
                    );
                }
                deliveries += 1;
            }
        }
    }
}

#[test]
fn others_get_no_more_than_the_bound_whatever_keys_come_back_or_leave() {
    let mut checks = 0;
    for seed in 1..80 {
        let mut chance = Chance(seed);
        let mut settings = Settings::default();
        let quantum = [1000, 1000, 3500, 400][chance.below(4) as usize];
        settings.quantum = drr::Quantum::new(quantum).unwrap();
        let mut shell = Shell::new(settings);
        let queue = shell.create("queue", QueueSettings::default());
        let consumer = shell.subscribe(queue, 0);
        let keys = 2 + chance.below(10);
        let weights: Vec<u32> = (0..keys)
            .map(|_| [1, 2, 5, 100][chance.below(4) as usize])
            .collect();
        for number in 0..keys {
            let count = 5 + chance.below(40) as usize;
            let weight = weights[number as usize];
            enqueue(&mut shell, queue, &number.to_string(), weight, count);
        }
        // The forecast for each key, and the deliveries of other keys since.
        let mut said: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        // The bound counts keys that are there: it is asked while all are.
        let mut everyone = keys;
        for _ in 0..300 {
            if shell.stats(queue).ready == 0 {
                break;
            }
            if everyone == keys && chance.below(4) == 0 {
                let name = chance.below(keys).to_string();
                let explanation = shell.explain(queue, &name);
                if explanation.ready > 0 {
                    said.insert(name, (explanation.bound.unwrap(), 0));
                }
            }
            let delivered = serve(&mut shell, queue, consumer);
            said.remove(&delivered);
            for (name, (bound, others)) in &mut said {
                *others += 1;
                checks += 1;
                assert!(*others <= *bound, "{name} was told {bound}, seed {seed}");
            }
            if shell.explain(queue, &delivered).ready == 0 {
                // It has left the ring, and may come back to it.
                let number: usize = delivered.parse().unwrap();
                let count = chance.below(3) as usize;
                enqueue(&mut shell, queue, &delivered, weights[number], count);
                everyone = shell.stats(queue).active_keys;
            }
        }
    }
    assert!(checks > 10_000, "{checks}");
}

#[test]
fn a_newcomer_is_told_two_turns_however_many_keys_there_are() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    let consumer = shell.subscribe(queue, 0);
    for number in 0..3000 {
        shell.send(queue, vec![weigh(&format!("hot {number}"), 1); 3]);
    }
    shell.run();
    for _ in 0..4000 {
        serve(&mut shell, queue, consumer);
    }
    enqueue(&mut shell, queue, "quiet", 1, 1);
    let quiet = shell.explain(queue, "quiet");
    assert_eq!(quiet.bound, Some(2));
    let Position::Exactly(others) = position(&quiet) else {
        panic!("{quiet:?}");
    };
    assert!(others <= 2);
    for _ in 0..others {
        assert_ne!(serve(&mut shell, queue, consumer), "quiet");
    }
    assert_eq!(serve(&mut shell, queue, consumer), "quiet");
}

#[test]
fn a_place_far_behind_is_told_within_a_tenth() {
    let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
    let consumer = shell.subscribe(queue, 0);
    let keys = 6000;
    for number in 0..keys {
        shell.send(queue, vec![weigh(&number.to_string(), 1); 3]);
    }
    shell.run();
    let mut order = Vec::new();
    for _ in 0..keys + 1500 {
        order.push(serve(&mut shell, queue, consumer));
    }
    let mut foreseen = BTreeMap::new();
    for number in (0..keys).step_by(97) {
        let name = number.to_string();
        let explanation = shell.explain(queue, &name);
        foreseen.insert(name, position(&explanation));
    }
    let (mut exact, mut about) = (0, 0);
    for others in 0..keys {
        let name = serve(&mut shell, queue, consumer);
        match foreseen.remove(&name) {
            Some(Position::Exactly(said)) => {
                assert_eq!(said, others);
                exact += 1;
            }
            Some(Position::About(said)) => {
                assert!(said.abs_diff(others) <= others / 10, "{said} and {others}");
                about += 1;
            }
            None => {}
        }
    }
    assert!(exact >= 5 && about >= 40, "{exact} and {about}");
}

#[test]
fn a_debt_is_told_and_paid_by_waiting() {
    let mut definition = QueueSettings::default();
    definition.charge = Charge::Bytes;
    let (mut shell, queue) = Shell::with_queue(definition);
    let consumer = shell.subscribe(queue, 0);
    // Messages of 20 KiB, which are worth 20, beside messages of 1 KiB.
    shell.enqueue_all(queue, vec![message("large", vec![0; 20 << 10]); 5]);
    shell.enqueue_all(queue, vec![message("small", vec![0; 1 << 10]); 200]);
    while serve(&mut shell, queue, consumer) != "large" {}
    let large = shell.explain(queue, "large");
    assert!((18_000..=20_000).contains(&large.debt), "{large:?}");
    let bound = large.bound.unwrap();
    let Position::Exactly(others) = position(&large) else {
        panic!("{large:?}");
    };
    assert!((17..=21).contains(&others) && others <= bound, "{large:?}");
    for _ in 0..others {
        assert_eq!(serve(&mut shell, queue, consumer), "small");
    }
    assert!(shell.explain(queue, "large").debt <= 1000);
    assert_eq!(serve(&mut shell, queue, consumer), "large");
}

#[test]
fn strict_lines_that_are_not_due_come_before_no_other() {
    let mut definition = QueueSettings::default();
    definition.ordering = Ordering::Key;
    let (mut shell, queue) = Shell::with_queue(definition);
    let consumer = shell.subscribe(queue, 0);
    shell.enqueue(queue, message("before", ""));
    serve(&mut shell, queue, consumer);
    let later = (0..5_000).map(|number| fila_core::NewMessage {
        delay: Duration::from_secs(60),
        ..message(&format!("later {number}"), "")
    });
    shell.enqueue_all(queue, later.collect());
    for _ in 0..2 {
        shell.enqueue(queue, message("now", ""));
        let said = position(&shell.explain(queue, "now"));
        assert_eq!(said, Position::Exactly(0));
        assert_eq!(serve(&mut shell, queue, consumer), "now");
    }
}

#[test]
fn asking_changes_nothing() {
    let run = |asks: bool| {
        let (mut shell, queue) = Shell::with_queue(QueueSettings::default());
        let consumer = shell.subscribe(queue, 0);
        let mut order = Vec::new();
        for number in 0..20 {
            enqueue(&mut shell, queue, &number.to_string(), 1 + number % 4, 30);
        }
        for _ in 0..500 {
            for number in 0..20 {
                if asks {
                    shell.explain(queue, &number.to_string());
                }
            }
            order.push(serve(&mut shell, queue, consumer));
        }
        order
    };
    assert_eq!(run(true), run(false));
}
