//! A seat in a wait queue, given up on drop.

use std::sync::Arc;

use crate::capacity::{Capacity, Room};
use crate::consumers::Consumers;
use crate::wait_queue::Ticket;

/// A place in the queue for a task or for room.
///
/// [`poll_dequeue`](crate::Scheduler::poll_dequeue) and [`poll_submit`](crate::Scheduler::poll_submit) take
/// a seat when they answer [`Pending`](std::task::Poll::Pending), and keep it in the waiter that they are
/// given. Use one waiter for one wait at a time, as a future does.
///
/// # Cancel safety
/// Dropping a waiter gives the seat up. If the waiter had been woken already, it wakes the next waiter, so no
/// wake-up is lost.
#[derive(Debug, Default)]
#[must_use = "dropping a waiter gives up its place"]
pub struct Waiter {
    seat: Option<Seat>,
}

#[derive(Debug)]
enum Seat {
    Consumer {
        of: Arc<Consumers>,
        ticket: Ticket,
    },
    Producer {
        of: Arc<Capacity>,
        room: Room,
        ticket: Ticket,
    },
}

/// A seat that was given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VacatedSeat {
    pub(crate) room: Room,
    pub(crate) ticket: Ticket,
    pub(crate) was_called: bool,
}

impl Waiter {
    /// Returns a waiter without a seat.
    pub const fn new() -> Self {
        Self { seat: None }
    }

    pub(crate) fn sit_for_task(&mut self, of: &Arc<Consumers>, ticket: Ticket) {
        let of = Arc::clone(of);
        self.seat = Some(Seat::Consumer { of, ticket });
    }

    pub(crate) fn sit_for_room(&mut self, of: &Arc<Capacity>, room: Room, ticket: Ticket) {
        let of = Arc::clone(of);
        self.seat = Some(Seat::Producer { of, room, ticket });
    }

    /// Gives up the seat of a consumer, without passing a call on: the caller answers it.
    pub(crate) fn rise(&mut self) {
        match self.seat.take() {
            Some(Seat::Consumer { of, ticket }) => {
                of.leave(ticket);
            }
            other => self.seat = other,
        }
    }

    /// Gives up the seat of a producer, without passing a call on: the caller answers it.
    pub(crate) fn rise_from_room(&mut self) -> Option<VacatedSeat> {
        match self.seat.take()? {
            Seat::Producer { of, room, ticket } => Some(VacatedSeat {
                room,
                ticket,
                was_called: !of.leave(room, ticket),
            }),
            seat @ Seat::Consumer { .. } => {
                self.seat = Some(seat);
                None
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        match self.seat.take() {
            Some(Seat::Consumer { of, ticket }) if !of.leave(ticket) => of.call(1),
            Some(Seat::Producer { of, room, ticket }) if !of.leave(room, ticket) => of.call(room),
            _ => {}
        }
    }
}
