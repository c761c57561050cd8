//! The queues: which there are, how they are opened, and how they change.

pub(super) mod manager;
pub(super) mod names;
pub(super) mod opening;
pub(super) mod recovery;
pub(super) mod registry;
