//! A queue of waiting callers, in order of arrival.
//!
//! Each has a ticket; tickets grow, so the queue is sorted by them and a seat is found by bisection. A seat
//! that was given up in the middle stays empty until the front or the back reaches it, or until more than
//! half of the seats are empty.

use std::collections::VecDeque;
use std::task::Waker;

/// A place in a queue: the lower, the earlier.
pub(crate) type Ticket = u64;

#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    seats: VecDeque<(Ticket, Option<Waker>)>,
    waiting: usize,
}

impl WaitQueue {
    pub(crate) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes a seat. A caller that had this ticket before gets the same place again.
    pub(crate) fn join(&mut self, ticket: Ticket, waker: Waker) {
        match self.find(ticket) {
            Ok(seat) => {
                let before = self.seats[seat].1.replace(waker);
                self.waiting += usize::from(before.is_none());
            }
            Err(seat) => {
                self.seats.insert(seat, (ticket, Some(waker)));
                self.waiting += 1;
            }
        }
    }

    /// Gives up a seat. Returns its waker; if there is none, its owner has been called.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<Waker> {
        let seat = self.find(ticket).ok()?;
        let waker = self.seats[seat].1.take()?;
        self.waiting -= 1;
        self.tidy();
        Some(waker)
    }

    /// Takes out the first waker.
    pub(crate) fn pop(&mut self) -> Option<Waker> {
        while let Some((_, seat)) = self.seats.pop_front() {
            if let Some(waker) = seat {
                self.waiting -= 1;
                return Some(waker);
            }
        }
        None
    }

    fn find(&self, ticket: Ticket) -> Result<usize, usize> {
        self.seats
            .binary_search_by_key(&ticket, |&(ticket, _)| ticket)
    }

    fn tidy(&mut self) {
        while self.seats.back().is_some_and(|(_, seat)| seat.is_none()) {
            self.seats.pop_back();
        }
        if self.seats.len() > 2 * self.waiting + 16 {
            self.seats.retain(|(_, seat)| seat.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(queue: &mut WaitQueue, ticket: Ticket) {
        queue.join(ticket, Waker::noop().clone());
    }

    #[test]
    fn the_first_to_come_is_the_first_to_be_called() {
        let mut queue = WaitQueue::default();
        (1..=3).for_each(|ticket| join(&mut queue, ticket));
        assert!(queue.pop().is_some());
        assert!(queue.leave(1).is_none(), "1 has been called");
        assert!(queue.leave(2).is_some());
        assert!(queue.leave(2).is_none(), "a seat is given up once");
        assert_eq!(queue.waiting(), 1);
        join(&mut queue, 1);
        assert_eq!(queue.seats[0].0, 1, "who comes back keeps its place");
        assert!(queue.pop().is_some() && queue.pop().is_some());
        assert!(queue.pop().is_none());
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn seats_given_up_do_not_pile_up() {
        let mut queue = WaitQueue::default();
        join(&mut queue, 0); // stays
        for ticket in 1..10_000 {
            join(&mut queue, ticket + 1);
            queue.leave(ticket);
        }
        assert!(
            queue.seats.len() <= 20,
            "{} seats for {}",
            queue.seats.len(),
            queue.waiting()
        );
        assert!(queue.leave(0).is_some());
    }

    #[test]
    fn joining_twice_takes_one_seat() {
        let mut queue = WaitQueue::default();
        join(&mut queue, 5);
        join(&mut queue, 5);
        assert_eq!(queue.waiting(), 1);
    }
}
