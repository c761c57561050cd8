//! Groups beside flat keys: what a level costs.
//!
//! All keys are backlogged and all weights are one, so every shape serves its keys in turns. A dispatch goes down one
//! calendar per level and charges one slot per level.

use drr::{Cost, Drr, Group, Quantum, Weight};

use crate::{Dice, Effort, QUANTUM, serve, time};

const SIZES: [usize; 3] = [1_000, 100_000, 1_000_000];

/// Pieces of work to a turn.
const TURNS: [u64; 2] = [1, 8];

#[derive(Clone, Copy)]
enum Shape {
    Flat,
    GroupsOfOne,
    OneGroup,
    GroupsOfAThousand,
    FourLevels,
}

const SHAPES: [Shape; 5] = [
    Shape::Flat,
    Shape::GroupsOfOne,
    Shape::OneGroup,
    Shape::GroupsOfAThousand,
    Shape::FourLevels,
];

impl Shape {
    const fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::GroupsOfOne => "groups of one",
            Self::OneGroup => "one group",
            Self::GroupsOfAThousand => "groups of 1,000",
            Self::FourLevels => "four levels",
        }
    }

    /// Returns how many keys there are to a group of each level, from the top.
    fn sizes(self, keys: usize) -> Vec<usize> {
        match self {
            Self::Flat => Vec::new(),
            Self::GroupsOfOne => vec![1],
            Self::OneGroup => vec![keys],
            Self::GroupsOfAThousand => vec![1_000],
            Self::FourLevels => {
                let fan = (keys as f64).powf(0.25).round() as usize;
                vec![fan * fan * fan, fan * fan, fan]
            }
        }
    }

    /// Returns an engine with so many keys, all of them backlogged.
    fn grow(self, keys: usize, dice: &mut Dice) -> Drr {
        let mut engine = Drr::new(Quantum::new(QUANTUM).expect("not zero"));
        let sizes = self.sizes(keys);
        let mut groups: Vec<Group> = Vec::new();
        let mut awake = Vec::with_capacity(keys);
        for key in 0..keys {
            for (level, size) in sizes.iter().enumerate() {
                if key % size == 0 {
                    groups.truncate(level);
                    let group = match groups.last() {
                        Some(&above) => engine.register_group_in(above, Weight::ONE),
                        None => Ok(engine.register_group(Weight::ONE)),
                    };
                    groups.push(group.expect("just founded"));
                }
            }
            awake.push(match groups.last() {
                Some(&group) => engine.register_in(group, Weight::ONE).expect("live"),
                None => engine.register(Weight::ONE),
            });
        }
        // The order of the ring is not that of the slots in memory.
        for last in (1..keys).rev() {
            awake.swap(last, (dice.roll() % (last as u64 + 1)) as usize);
        }
        for key in awake {
            engine.wake(key).expect("live");
        }
        engine
    }
}

/// Prints a table of all shapes, measured in turns.
pub(crate) fn table(
    Effort {
        samples,
        dispatches,
    }: Effort,
) {
    println!("\n| keys | shape | levels | to a turn | ns | ns per level | beside flat | visits |");
    println!("|---:|---|---:|---:|---:|---:|---:|---:|");
    for keys in SIZES {
        let mut dice = Dice(1);
        let mut engines = SHAPES.map(|shape| shape.grow(keys, &mut dice));
        for engine in &mut engines {
            serve(engine, 2 * keys, |_| Cost::new(QUANTUM)); // past the newcomers' boost
        }
        for pieces in TURNS {
            let cost = Cost::new(QUANTUM / pieces);
            let before = engines.each_ref().map(|engine| engine.work().visits);
            let mut best = [f64::MAX; SHAPES.len()];
            for _ in 0..samples {
                for (engine, best) in engines.iter_mut().zip(&mut best) {
                    let ns = time(dispatches, || serve(engine, dispatches, |_| cost));
                    *best = best.min(ns);
                }
            }
            for (at, shape) in SHAPES.into_iter().enumerate() {
                let levels = shape.sizes(keys).len() + 1;
                let visits = engines[at].work().visits - before[at];
                println!(
                    "| {keys} | {} | {levels} | {pieces} | {:.1} | {:.1} | {:.1} | {:.2} |",
                    shape.name(),
                    best[at],
                    best[at] / levels as f64,
                    best[at] / best[0],
                    visits as f64 / (samples * dispatches) as f64,
                );
            }
        }
    }
}
