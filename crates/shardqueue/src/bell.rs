//! A signal that wakes one future, once.

use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, lock};
use crate::ticket::Alerts;

#[derive(Debug)]
pub(crate) struct Bell(Mutex<BellState>);

#[derive(Debug)]
enum BellState {
    Silent(Option<Waker>),
    Rung,
}

impl Bell {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(BellState::Silent(None)))
    }

    /// Rings, and returns the waker.
    pub(crate) fn ring(&self) -> Alerts {
        match std::mem::replace(&mut *lock(&self.0), BellState::Rung) {
            BellState::Silent(waker) => Alerts::one(waker),
            BellState::Rung => Alerts::default(),
        }
    }

    pub(crate) fn poll_rung(&self, cx: &Context<'_>) -> Poll<()> {
        match &mut *lock(&self.0) {
            BellState::Rung => Poll::Ready(()),
            BellState::Silent(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
