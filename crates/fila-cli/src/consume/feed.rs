//! Deliveries, until there are none, enough, or somebody says stop.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use fila_sdk::{Consumer, Delivery, Error};
use futures_util::FutureExt;

use crate::failure::Failure;
use crate::signals;

/// Why there are no more deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Nothing has come for a while.
    Idle,
    /// There were as many as were wanted.
    Limit,
    /// Somebody has pressed Ctrl-C.
    Interrupted,
}

/// Whether something is under way that may bring new deliveries.
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
    /// Begins to listen for Ctrl-C, too.
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

    /// Waits for the next delivery; None at the end. Silence is no end while work is under way.
    ///
    /// # Cancel safety
    /// May be dropped at any time: nothing is lost by it. The time of silence begins again.
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

    /// Returns a delivery that is there already.
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

    /// Whether anything has come at all.
    pub(super) fn has_any(&self) -> bool {
        self.has_any
    }

    pub(super) fn ending(&self) -> Ending {
        self.ending.unwrap_or(Ending::Idle)
    }

    /// Gives back what was not handed out, and waits until results are stored.
    pub(super) async fn stop(self) {
        self.consumer.stop().await;
    }
}
