//! The deliveries of one run, up to its limit, its idle time or Ctrl-C.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use fila_sdk::{Consumer, Delivery, Error};
use futures_util::FutureExt;

use crate::failure::Failure;
use crate::signals;

/// The reason why the deliveries end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// No message has come for the idle time.
    Idle,
    /// The limit is reached.
    Limit,
    /// The user has pressed Ctrl-C.
    Interrupted,
}

/// Whether messages are in work. A failed one may come back as a new delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    None,
    UnderWay,
}

pub(super) struct Feed {
    consumer: Consumer,
    left: u64,
    has_any: bool,
    idle: Option<Duration>,
    stop: Pin<Box<dyn Future<Output = ()>>>,
    ending: Option<Ending>,
}

impl Feed {
    /// Also begins to listen for Ctrl-C.
    pub(super) fn new(consumer: Consumer, limit: u64, idle: Option<Duration>) -> Self {
        Self {
            consumer,
            left: limit,
            has_any: false,
            idle,
            stop: Box::pin(signals::shutdown()),
            ending: None,
        }
    }

    /// Waits for the next delivery; none at the end. The idle time does not run while messages are in work.
    ///
    /// # Cancel safety
    /// May be dropped at any time without losing a delivery. The idle time begins again.
    pub(super) async fn next(&mut self, work: Work) -> Result<Option<Delivery>, Failure> {
        if self.ending.is_none() && self.left == 0 {
            self.ending = Some(Ending::Limit);
        }
        if self.ending.is_some() {
            return Ok(None);
        }
        let idle = match work {
            Work::None => self.idle,
            Work::UnderWay => None,
        };
        let silence = async {
            match idle {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = &mut self.stop => self.ending = Some(Ending::Interrupted),
            next = self.consumer.next() => return self.take(next).map(Some),
            () = silence => self.ending = Some(Ending::Idle),
        }
        Ok(None)
    }

    /// Returns the next delivery if it has already arrived.
    pub(super) fn next_at_once(&mut self) -> Result<Option<Delivery>, Failure> {
        if self.left == 0 || self.ending.is_some() {
            return Ok(None);
        }
        match self.consumer.next().now_or_never() {
            Some(next) => self.take(next).map(Some),
            None => Ok(None),
        }
    }

    fn take(&mut self, next: Option<Result<Delivery, Error>>) -> Result<Delivery, Failure> {
        let delivery = next.unwrap_or(Err(Error::Closed))?;
        self.left -= 1;
        self.has_any = true;
        Ok(delivery)
    }

    /// Returns whether any message has come.
    pub(super) fn has_any(&self) -> bool {
        self.has_any
    }

    pub(super) fn ending(&self) -> Ending {
        self.ending.unwrap_or(Ending::Idle)
    }

    /// Releases waiting deliveries, and returns when the server has stored all results.
    pub(super) async fn stop(self) {
        self.consumer.stop().await;
    }
}
