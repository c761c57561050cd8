//! Tells one waiting future, once, that something has happened.

use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, lock};
use crate::ticket::Alerts;

#[derive(Debug)]
pub(crate) struct Bell(Mutex<State>);

#[derive(Debug)]
enum State {
    Silent(Option<Waker>),
    Rung,
}

impl Bell {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State::Silent(None)))
    }

    /// Rings, and returns whom to wake.
    pub(crate) fn ring(&self) -> Alerts {
        match std::mem::replace(&mut *lock(&self.0), State::Rung) {
            State::Silent(waker) => Alerts::one(waker),
            State::Rung => Alerts::default(),
        }
    }

    pub(crate) fn poll_rung(&self, cx: &Context<'_>) -> Poll<()> {
        match &mut *lock(&self.0) {
            State::Rung => Poll::Ready(()),
            State::Silent(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
