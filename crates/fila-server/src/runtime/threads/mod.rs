//! The threads of a server, and the messages between them: inputs, rounds, events and tickets.

pub(super) mod commit;
pub(super) mod failure_hooks;
pub(super) mod inbox;
pub(super) mod reader;
pub(super) mod scheduler;
pub(super) mod sweeper;
pub(super) mod ticket;
