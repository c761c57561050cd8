//! The laws have teeth: schedulers that are known to be unfair break the laws they should.
#![cfg(test)] // helpers may unwrap, as tests do

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fairness_laws::laws::{conservation, flood, idleness, settlement, share, steps, wait};
use fairness_laws::{CountingDriver, Dispatched, Driver};

/// A way to be unfair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// One task on each visit, whatever deficit is left.
    OnePerVisit,
    /// `weight × quantum` in one burst; the cost must be covered beforehand; debt cannot exist.
    Bursts,
    /// As `Bursts`, charged afterwards, but leaving the ring erases what is owed.
    ForgetsDebt,
    /// As `Bursts`, charged afterwards, but deficits grow while a key is away.
    SavesUp,
    /// Serves a key that is parked.
    IgnoresParking,
}

/// Textbook deficit round robin in a plain ring, with a flaw.
#[derive(Debug)]
struct Flawed {
    flaw: Flaw,
    quantum: u64,
    ring: VecDeque<u32>,
    lanes: HashMap<u32, Lane>,
    steps: u64,
}

#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<u64>,
    weight: u32,
    deficit: i128,
    taken: u64,
    parked: bool,
    in_ring: bool,
    in_turn: bool,
}

impl Flawed {
    fn new(flaw: Flaw, quantum: u64) -> Self {
        Self {
            flaw,
            quantum,
            ring: VecDeque::new(),
            lanes: HashMap::new(),
            steps: 0,
        }
    }

    fn join(&mut self, key: u32) {
        let lane = self.lanes.entry(key).or_default();
        let runnable = !lane.parked || self.flaw == Flaw::IgnoresParking;
        if runnable && !lane.queue.is_empty() && !lane.in_ring {
            lane.in_ring = true;
            self.ring.push_back(key);
        }
    }

    /// Returns whether the key at the head of the ring may be served now, and grants it its quantum if not.
    fn is_served_now(&mut self, key: u32) -> bool {
        let lane = self.lanes.get_mut(&key).unwrap();
        let head = i128::from(*lane.queue.front().unwrap());
        let covers = match self.flaw {
            Flaw::OnePerVisit | Flaw::Bursts => lane.deficit >= head,
            Flaw::ForgetsDebt | Flaw::SavesUp | Flaw::IgnoresParking => lane.deficit > 0,
        };
        if !covers {
            if lane.in_turn && self.flaw != Flaw::OnePerVisit {
                lane.in_turn = false; // its turn is over; the next visit grants again
            } else {
                lane.deficit += i128::from(self.quantum) * i128::from(lane.weight);
                lane.in_turn = true;
                if self.flaw != Flaw::OnePerVisit {
                    return self.is_served_now(key);
                }
            }
        }
        covers
    }
}

impl Driver for Flawed {
    fn enqueue(&mut self, key: u32, cost: u64, weight: u32) {
        let lane = self.lanes.entry(key).or_default();
        lane.weight = weight;
        lane.queue.push_back(cost);
        self.join(key);
    }

    fn dispatch(&mut self) -> Option<Dispatched> {
        loop {
            let key = *self.ring.front()?;
            self.steps += 1;
            if !self.is_served_now(key) {
                self.ring.rotate_left(1);
                continue;
            }
            if self.flaw == Flaw::SavesUp {
                let quantum = i128::from(self.quantum);
                for lane in self.lanes.values_mut().filter(|lane| !lane.in_ring) {
                    lane.deficit += quantum * i128::from(lane.weight);
                }
            }
            let lane = self.lanes.get_mut(&key).unwrap();
            let cost = lane.queue.pop_front().unwrap();
            lane.deficit -= i128::from(cost);
            let sequence = lane.taken;
            lane.taken += 1;
            if lane.queue.is_empty() {
                lane.in_ring = false;
                lane.in_turn = false;
                if self.flaw != Flaw::SavesUp {
                    lane.deficit = 0;
                }
                self.ring.pop_front();
            } else if self.flaw == Flaw::OnePerVisit {
                self.ring.rotate_left(1);
            }
            return Some(Dispatched {
                key,
                sequence,
                cost,
                ticket: 0,
            });
        }
    }

    fn finish(&mut self, _: Dispatched, _: u64) {} // charges by estimate only

    fn park(&mut self, key: u32) {
        let lane = self.lanes.entry(key).or_default();
        lane.parked = true;
        if self.flaw != Flaw::IgnoresParking && lane.in_ring {
            lane.in_ring = false;
            self.ring.retain(|&other| other != key);
        }
    }

    fn unpark(&mut self, key: u32) {
        self.lanes.entry(key).or_default().parked = false;
        self.join(key);
    }

    fn set_weight(&mut self, key: u32, weight: u32) {
        self.lanes.entry(key).or_default().weight = weight;
    }

    fn evict(&mut self, key: u32) {
        let lane = self.lanes.entry(key).or_default();
        lane.deficit = 0;
    }
}

impl CountingDriver for Flawed {
    fn steps(&self) -> u64 {
        self.steps
    }
}

/// No fairness at all: first come, first served.
#[derive(Debug, Default)]
struct Fifo {
    queue: VecDeque<(u32, u64)>,
    taken: HashMap<u32, u64>,
}

impl Driver for Fifo {
    fn enqueue(&mut self, key: u32, cost: u64, _weight: u32) {
        self.queue.push_back((key, cost));
    }

    fn dispatch(&mut self) -> Option<Dispatched> {
        let (key, cost) = self.queue.pop_front()?;
        let taken = self.taken.entry(key).or_default();
        let sequence = *taken;
        *taken += 1;
        Some(Dispatched {
            key,
            sequence,
            cost,
            ticket: 0,
        })
    }

    fn finish(&mut self, _: Dispatched, _: u64) {}
    fn park(&mut self, _: u32) {}
    fn unpark(&mut self, _: u32) {}
    fn set_weight(&mut self, _: u32, _: u32) {}
    fn evict(&mut self, _: u32) {}
}

/// Asserts that a scheduler with this flaw breaks a law.
fn breaks(flaw: Flaw, law: impl FnOnce(&dyn Fn(u64) -> Flawed)) {
    let make = |quantum| Flawed::new(flaw, quantum);
    let verdict = catch_unwind(AssertUnwindSafe(|| law(&make)));
    assert!(verdict.is_err(), "{flaw:?} got away with it");
}

#[test]
fn one_task_per_visit_breaks_the_share_laws() {
    breaks(Flaw::OnePerVisit, |make| {
        share::every_thousand_dispatches_follow_the_weights(make);
    });
    breaks(Flaw::OnePerVisit, |make| {
        share::shares_stay_within_the_bound_in_every_window(make);
    });
    breaks(Flaw::OnePerVisit, |make| {
        share::extreme_weights_and_costs_share_exactly(make);
    });
    breaks(Flaw::OnePerVisit, |make| {
        share::service_stays_close_to_the_fluid_reference(make);
    });
    breaks(Flaw::OnePerVisit, |make| {
        share::a_new_weight_acts_on_the_backlog(make);
    });
}

#[test]
fn a_weight_served_in_one_burst_breaks_interleaving() {
    breaks(Flaw::Bursts, |make| {
        share::heavy_keys_are_interleaved_with_light_ones(make);
    });
}

#[test]
fn a_newcomer_at_the_end_of_the_ring_waits_too_long() {
    breaks(Flaw::Bursts, |make| {
        wait::a_quiet_key_is_served_ahead_of_the_hot_ones(make);
    });
    breaks(Flaw::Bursts, |make| {
        wait::a_newcomer_waits_at_most_for_earlier_newcomers(make);
    });
}

#[test]
fn a_debt_that_is_forgotten_is_noticed() {
    breaks(Flaw::ForgetsDebt, |make| {
        idleness::debt_survives_leaving_and_returning(make);
    });
}

#[test]
fn credit_that_is_saved_up_is_noticed() {
    breaks(Flaw::SavesUp, |make| {
        idleness::credit_dies_with_idleness(make);
    });
}

#[test]
fn a_parked_key_that_is_served_is_noticed() {
    breaks(Flaw::IgnoresParking, |make| {
        conservation::the_server_never_idles_while_a_key_may_run(make);
    });
}

#[test]
fn charging_by_estimate_only_breaks_settlement() {
    breaks(Flaw::Bursts, |make| {
        settlement::equal_keys_get_equal_time(make);
    });
    breaks(Flaw::Bursts, |make| {
        settlement::overestimates_are_given_back(make);
    });
}

#[test]
fn a_flood_in_a_plain_queue_is_noticed() {
    let law = || {
        flood::a_flood_delays_the_others_no_more_than_a_busy_neighbour(|_| Fifo::default());
    };
    assert!(catch_unwind(AssertUnwindSafe(law)).is_err());
}

#[test]
fn walking_through_rounds_is_counted() {
    breaks(Flaw::OnePerVisit, |make| {
        steps::debt_is_waited_out_not_walked_through(make);
    });
}
