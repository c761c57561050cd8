//! What waits to be run, in a line for each queue, and whose turn it is.
//!
//! A pure structure: no threads, no clock. Queues take turns, one job or a part of one each. A queue has at most `cap`
//! jobs under way, which is less than there are workers: so one that comes finds a worker soon, however many jobs others
//! have. A queue that has nothing waiting and nothing under way has no line.

use std::collections::{HashMap, VecDeque};

use fila_store::QueueId;
use foldhash::fast::RandomState;

#[derive(Debug)]
pub(super) struct Lines<T> {
    lines: HashMap<QueueId, Line<T>, RandomState>,
    /// Each queue that has something waiting, once.
    ring: VecDeque<QueueId>,
    cap: usize,
    under_way: usize,
}

#[derive(Debug)]
struct Line<T> {
    waiting: VecDeque<T>,
    under_way: usize,
}

impl<T> Lines<T> {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            lines: HashMap::default(),
            ring: VecDeque::new(),
            cap: workers.saturating_sub(1).max(1),
            under_way: 0,
        }
    }

    /// Puts a job at the end of its queue's line.
    pub(super) fn push(&mut self, queue: QueueId, job: T) {
        self.insert(queue, job, VecDeque::push_back);
    }

    /// Returns the next job, if a worker may begin one.
    pub(super) fn take(&mut self) -> Option<T> {
        // Few are passed over: as many as have all workers that they may have.
        for _ in 0..self.ring.len() {
            let queue = self.ring.pop_front()?;
            let Some(line) = self.lines.get_mut(&queue) else {
                continue;
            };
            if line.under_way >= self.cap {
                self.ring.push_back(queue);
                continue;
            }
            let job = line.waiting.pop_front();
            if !line.waiting.is_empty() {
                self.ring.push_back(queue);
            }
            if let Some(job) = job {
                line.under_way += 1;
                self.under_way += 1;
                return Some(job);
            }
        }
        None
    }

    /// Takes note that a job of a queue is no longer under way: it is done, or its rest is to wait for another turn, before
    /// those that came later.
    pub(super) fn put_down(&mut self, queue: QueueId, rest: Option<T>) {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some(line) = self.lines.get_mut(&queue) {
            line.under_way = line.under_way.saturating_sub(1);
        }
        match rest {
            Some(rest) => self.insert(queue, rest, VecDeque::push_front),
            None => {
                let line = self.lines.get(&queue);
                if line.is_some_and(|line| line.under_way == 0 && line.waiting.is_empty()) {
                    self.lines.remove(&queue);
                }
            }
        }
    }

    fn insert(&mut self, queue: QueueId, job: T, put: impl FnOnce(&mut VecDeque<T>, T)) {
        let line = self.lines.entry(queue).or_insert_with(|| Line {
            waiting: VecDeque::new(),
            under_way: 0,
        });
        if line.waiting.is_empty() {
            self.ring.push_back(queue);
        }
        put(&mut line.waiting, job);
    }

    /// Returns how many queues have something waiting.
    pub(super) fn queues_waiting(&self) -> usize {
        self.ring.len()
    }

    /// Tells whether any job is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// Drops all that waits.
    pub(super) fn clear(&mut self) {
        self.lines.clear();
        self.ring.clear();
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.ring.is_empty() && self.under_way == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(number: u64) -> QueueId {
        QueueId::new(number)
    }

    #[test]
    fn queues_take_turns_however_long_their_lines_are() {
        let mut lines = Lines::new(8);
        for job in 0..3 {
            lines.push(queue(1), (1, job));
        }
        lines.push(queue(2), (2, 0));
        lines.push(queue(3), (3, 0));
        let taken: Vec<_> = std::iter::from_fn(|| lines.take()).collect();
        assert_eq!(taken, [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn a_queue_never_has_all_workers() {
        let mut lines = Lines::new(3);
        for job in 0..9 {
            lines.push(queue(1), job);
        }
        assert_eq!((lines.take(), lines.take()), (Some(0), Some(1)));
        assert_eq!(lines.take(), None);
        lines.push(queue(2), 100);
        assert_eq!(lines.take(), Some(100));
        lines.put_down(queue(1), None);
        assert_eq!(lines.take(), Some(2));
    }

    #[test]
    fn the_rest_of_a_job_comes_before_later_ones_of_its_queue_and_after_other_queues() {
        let mut lines = Lines::new(8);
        lines.push(queue(1), "one");
        assert_eq!(lines.take(), Some("one"));
        lines.push(queue(1), "two");
        lines.push(queue(2), "other");
        lines.put_down(queue(1), Some("rest of one"));
        assert_eq!(lines.take(), Some("rest of one"));
        assert_eq!(lines.take(), Some("other"));
        assert_eq!(lines.take(), Some("two"));
    }

    #[test]
    fn a_queue_without_jobs_leaves_nothing() {
        let mut lines = Lines::new(2);
        lines.push(queue(1), ());
        assert_eq!(lines.take(), Some(()));
        assert!(lines.is_busy());
        lines.put_down(queue(1), Some(()));
        assert_eq!(lines.take(), Some(()));
        lines.put_down(queue(1), None);
        assert!(lines.is_empty());
    }
}
