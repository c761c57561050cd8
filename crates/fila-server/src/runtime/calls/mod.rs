//! The calls that servers of clients can make.

pub(super) mod consumer;
pub(super) mod credit;
pub(super) mod handle;
pub(super) mod hooks;
pub(super) mod key_selection;
pub(super) mod peek;
pub(super) mod redrive;
pub(super) mod transit;
pub(super) mod whatif;
