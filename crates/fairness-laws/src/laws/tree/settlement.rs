//! What work really cost is paid on every level.

use std::collections::{BinaryHeap, VecDeque};

use super::super::steps;
use crate::driver::{Dispatched, TreeDriver};

/// The members of each group, by how long their work takes. The last group is in a group of its own.
const TIMES: [&[u64]; 3] = [&[1, 1], &[1, 10, 100], &[100]];

/// Groups whose members' work takes 1 to 100, on 1, 8 and 64 workers, charged one unit each and settled when done: each
/// group gets a third of the *time*, and each member of a group gets as much as the other members, within 2 %.
///
/// If only members settled, the groups would share by count, and the slowest would get 68 % of the time.
pub fn members_and_groups_get_equal_time<D: TreeDriver>(make: impl Fn(u64) -> D) {
    for workers in [1, 8, 64] {
        let mut office = Office::new(&make, workers, TIMES.iter().map(|times| times.len()));
        let times: Vec<u64> = TIMES.concat();
        let busy = office.work(&times, u64::from(steps(400_000).max(100_000)));
        let groups: Vec<u64> = office.groups(&busy);
        let total: u64 = groups.iter().sum();
        let assert_share = |what: &str, at: usize, share: f64, due: f64| {
            assert!(
                (share / due - 1.0).abs() <= 0.02,
                "{workers} workers: {what} {at} had {:.2} % of the time: {busy:?}",
                100.0 * share
            );
        };
        for (group, &time) in groups.iter().enumerate() {
            assert_share("group", group, time as f64 / total as f64, 1.0 / 3.0);
        }
        for (key, &time) in busy.iter().enumerate() {
            let group = office.home[key];
            let due = 1.0 / 3.0 / TIMES[group].len() as f64;
            assert_share("key", key, time as f64 / total as f64, due);
        }
    }
}

/// An estimate that was too high is given back to the groups, too: one whose members guess a hundredfold loses nothing.
pub fn overestimates_are_given_back_in_groups<D: TreeDriver>(make: impl Fn(u64) -> D) {
    for workers in [1, 8] {
        let mut driver = make(10);
        for key in 0..4 {
            if key < 2 {
                driver.found(key, None, 1);
            }
            driver.adopt(key, key % 2);
        }
        let estimate = |key: u32| if key.is_multiple_of(2) { 100 } else { 1 };
        for key in 0..4 {
            (0..2 * workers).for_each(|_| driver.enqueue(key, estimate(key), 1));
        }
        let mut in_flight = VecDeque::new();
        let mut done = [0_u64; 2];
        for _ in 0..steps(50_000).max(5_000) {
            while in_flight.len() < workers {
                let work = driver.dispatch().expect("all are backlogged");
                driver.enqueue(work.key, estimate(work.key), 1);
                in_flight.push_back(work);
            }
            let work = in_flight.pop_front().expect("just filled");
            driver.finish(work, 1); // it costs one, whatever was declared
            done[work.key as usize % 2] += 1;
        }
        let share = done[0] as f64 / (done[0] + done[1]) as f64;
        assert!(
            (share - 0.5).abs() <= 0.01,
            "{workers} workers: the group that overestimates got {share:.3}"
        );
    }
}

/// Workers that serve the keys of some groups.
struct Office<D> {
    driver: D,
    workers: usize,
    /// The group of each key.
    home: Vec<usize>,
}

/// When a worker is done.
#[derive(Debug, PartialEq, Eq)]
struct Shift {
    at: u64,
    number: u64,
    work: Dispatched,
}

impl Ord for Shift {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number)) // the earliest is the greatest
    }
}

impl PartialOrd for Shift {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<D: TreeDriver> Office<D> {
    fn new(
        make: &impl Fn(u64) -> D,
        workers: usize,
        sizes: impl ExactSizeIterator<Item = usize>,
    ) -> Self {
        let mut driver = make(1);
        let mut home = Vec::new();
        let last = sizes.len() as u32 - 1;
        for (group, size) in sizes.enumerate() {
            let number = group as u32;
            // The members of the last group are one level further down.
            let inner = if number == last { number + 1 } else { number };
            driver.found(number, None, 1);
            if inner != number {
                driver.found(inner, Some(number), 1);
            }
            for _ in 0..size {
                let key = home.len() as u32;
                driver.adopt(key, inner);
                home.push(group);
                // Enough work that even all workers on one key leave it backlogged.
                (0..2 * workers).for_each(|_| driver.enqueue(key, 1, 1));
            }
        }
        Self {
            driver,
            workers,
            home,
        }
    }

    /// Works until then, and returns how long the workers were busy for each key.
    fn work(&mut self, times: &[u64], until: u64) -> Vec<u64> {
        let mut busy = vec![0; times.len()];
        let mut running = BinaryHeap::new();
        let (mut now, mut number) = (0, 0);
        while now < until {
            while running.len() < self.workers {
                let work = self.driver.dispatch().expect("every key is backlogged");
                self.driver.enqueue(work.key, 1, 1);
                let at = now + times[work.key as usize];
                running.push(Shift { at, number, work });
                number += 1;
            }
            let Shift { at, work, .. } = running.pop().expect("just filled");
            now = at;
            let time = times[work.key as usize];
            self.driver.finish(work, time);
            busy[work.key as usize] += time;
        }
        busy
    }

    fn groups(&self, busy: &[u64]) -> Vec<u64> {
        let mut groups = vec![0; TIMES.len()];
        for (key, time) in busy.iter().enumerate() {
            groups[self.home[key]] += time;
        }
        groups
    }
}
