//! The fluid reference: generalised processor sharing.
//!
//! GPS serves every backlogged key at once, each in proportion to its weight, in infinitely small portions.
//! No scheduler of whole tasks can do that; a bound says how far it is away at worst.

/// Shares `capacity` among keys that want `demand` each, in proportion to their weights.
///
/// This is weighted max-min: a key that wants less than its share gets all it wants, and what it leaves is
/// shared among the others by the same rule (water-filling).
#[must_use]
pub fn max_min(capacity: f64, keys: &[Want]) -> Vec<f64> {
    let mut got = vec![0.0; keys.len()];
    let mut open: Vec<usize> = (0..keys.len())
        .filter(|&key| keys[key].demand > 0.0)
        .collect();
    let mut left = capacity;
    while !open.is_empty() {
        let weight: f64 = open.iter().map(|&key| keys[key].weight).sum();
        let level = left / weight;
        let (full, thirsty): (Vec<usize>, Vec<usize>) = open
            .iter()
            .partition(|&&key| keys[key].demand <= level * keys[key].weight);
        if full.is_empty() {
            for &key in &thirsty {
                got[key] = level * keys[key].weight;
            }
            break;
        }
        for &key in &full {
            got[key] = keys[key].demand;
            left -= keys[key].demand;
        }
        open = thirsty;
    }
    got
}

/// A key's weight and how much it wants.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Its weight.
    pub weight: f64,
    /// The service it could use.
    pub demand: f64,
}

/// A fluid server that keys arrive at over time.
#[derive(Clone, Debug, Default)]
pub struct Fluid {
    keys: Vec<FluidKey>,
}

#[derive(Clone, Copy, Debug)]
struct FluidKey {
    weight: f64,
    backlog: f64,
    served: f64,
}

impl Fluid {
    /// Returns a server for keys of these weights, without work.
    #[must_use]
    pub fn new(weights: &[u32]) -> Self {
        let key = |&weight: &u32| FluidKey {
            weight: f64::from(weight),
            backlog: 0.0,
            served: 0.0,
        };
        Self {
            keys: weights.iter().map(key).collect(),
        }
    }

    /// Adds work of a key.
    pub fn arrive(&mut self, key: usize, amount: f64) {
        self.keys[key].backlog += amount;
    }

    /// Serves `amount` in all, or less if there is not so much.
    pub fn serve(&mut self, amount: f64) {
        let wants: Vec<Want> = self
            .keys
            .iter()
            .map(|key| Want {
                weight: key.weight,
                demand: key.backlog,
            })
            .collect();
        for (key, got) in self.keys.iter_mut().zip(max_min(amount, &wants)) {
            key.backlog -= got;
            key.served += got;
        }
    }

    /// Returns the service that a key has got.
    #[must_use]
    pub fn served(&self, key: usize) -> f64 {
        self.keys[key].served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modest_key_gets_all_it_wants_and_the_rest_is_shared_by_weight() {
        let want = |weight, demand| Want { weight, demand };
        let got = max_min(
            100.0,
            &[
                want(1.0, 10.0),
                want(1.0, 1e9),
                want(2.0, 1e9),
                want(5.0, 0.0),
            ],
        );
        assert_eq!(got, vec![10.0, 30.0, 60.0, 0.0]);
    }

    #[test]
    fn nothing_is_served_without_demand() {
        assert_eq!(
            max_min(
                100.0,
                &[Want {
                    weight: 1.0,
                    demand: 7.0
                }]
            ),
            vec![7.0]
        );
        assert_eq!(max_min(100.0, &[]), Vec::<f64>::new());
    }

    #[test]
    fn the_fluid_server_conserves_work() {
        let mut fluid = Fluid::new(&[1, 3]);
        fluid.arrive(0, 50.0);
        fluid.arrive(1, 6.0);
        fluid.serve(16.0);
        assert_eq!((fluid.served(0), fluid.served(1)), (10.0, 6.0));
        fluid.serve(1000.0);
        assert_eq!((fluid.served(0), fluid.served(1)), (50.0, 6.0));
    }
}
