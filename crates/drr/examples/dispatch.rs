//! Makes dispatches of one shape and nothing else, to be counted by a profiler:
//!
//! ```sh
//! cargo build --release -p drr --example dispatch
//! valgrind --tool=callgrind target/release/examples/dispatch alone 1 100000
//! ```
//! The arguments are the shape, the number of keys and that of dispatches. The difference of two runs that differ in the
//! last one has no start-up in it.

use drr::{Cost, Drr, Key, Quantum, Unknown, Weight};

const USAGE: &str =
    "dispatch alone|backlogged|groups-of-one|groups-of-one-alone|one-group KEYS DISPATCHES";

/// How keys are grouped, and whether they have a backlog or come and go one by one.
#[derive(Clone, Copy)]
struct Shape {
    groups: Groups,
    comes_and_goes: bool,
}

#[derive(Clone, Copy)]
enum Groups {
    None,
    One,
    OneEach,
}

fn parse(args: &[String]) -> Option<(Shape, usize, u64)> {
    let [shape, keys, dispatches] = args else {
        return None;
    };
    let (groups, comes_and_goes) = match shape.as_str() {
        "alone" => (Groups::None, true),
        "backlogged" => (Groups::None, false),
        "groups-of-one" => (Groups::OneEach, false),
        "groups-of-one-alone" => (Groups::OneEach, true),
        "one-group" => (Groups::One, false),
        _ => return None,
    };
    let shape = Shape {
        groups,
        comes_and_goes,
    };
    Some((shape, keys.parse().ok()?, dispatches.parse().ok()?))
}

fn main() -> Result<(), Unknown> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((shape, keys, dispatches)) = parse(&args).filter(|(_, keys, _)| *keys > 0) else {
        eprintln!("usage: {USAGE}");
        std::process::exit(2);
    };
    let mut engine = Drr::new(Quantum::new(1).expect("not zero"));
    let shared = engine.register_group(Weight::ONE);
    let keys: Vec<Key> = (0..keys)
        .map(|_| match shape.groups {
            Groups::None => Ok(engine.register(Weight::ONE)),
            Groups::One => engine.register_in(shared, Weight::ONE),
            Groups::OneEach => {
                let group = engine.register_group(Weight::ONE);
                engine.register_in(group, Weight::ONE)
            }
        })
        .collect::<Result<_, _>>()?;
    if !shape.comes_and_goes {
        keys.iter().try_for_each(|&key| engine.wake(key))?;
    }
    let mut next = keys.iter().cycle();
    for _ in 0..dispatches {
        if shape.comes_and_goes {
            engine.wake(*next.next().expect("there are keys"))?;
        }
        let key = engine.next_key().expect("a key has work");
        engine.charge(key, Cost::ONE)?;
        if shape.comes_and_goes {
            engine.sleep(key)?;
        }
    }
    println!("{} visits", engine.work().visits);
    Ok(())
}
