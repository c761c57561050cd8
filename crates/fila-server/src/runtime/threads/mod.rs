//! The threads of a server, and the messages between them: inputs, rounds, events and tickets.

mod baton;
pub(super) mod commit;
pub(super) mod events;
pub(super) mod failure_hooks;
pub(super) mod inbox;
pub(super) mod reader;
pub(super) mod round_queue;
pub(super) mod scheduler;
pub(super) mod seat;
pub(super) mod sweeper;
pub(super) mod ticket;
