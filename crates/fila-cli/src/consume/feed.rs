//! The deliveries of one run, up to its limit, its idle time or Ctrl-C.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use fila_sdk::{Admin, Consumer, Delivery, Error};
use futures_util::FutureExt;
use tokio::time::{sleep, timeout};

use crate::failure::Failure;

/// How often a run without end asks whether the server can still deliver, while no message comes.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// How long the server may take to answer.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(5);

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
    /// As many as may be: there is no room for a delivery.
    Full,
}

/// How long a run waits for a message.
#[derive(Clone, Debug)]
pub(super) enum Patience {
    /// It ends after this time.
    Idle(Duration),
    /// It waits until Ctrl-C, unless the server cannot deliver any more.
    Endless(Admin),
}

pub(super) struct Feed {
    /// None once the run takes no more messages.
    consumer: Option<Consumer>,
    left: u64,
    has_any: bool,
    patience: Patience,
    stop: Pin<Box<dyn Future<Output = ()>>>,
    ending: Option<Ending>,
}

impl Feed {
    /// `stop` completes with Ctrl-C.
    pub(super) fn new(
        consumer: Consumer,
        limit: u64,
        patience: Patience,
        stop: impl Future<Output = ()> + 'static,
    ) -> Self {
        Self {
            consumer: Some(consumer),
            left: limit,
            has_any: false,
            patience,
            stop: Box::pin(stop),
            ending: None,
        }
    }

    /// Waits for the next delivery; none at the end. While all places are taken it waits for Ctrl-C only, and the idle
    /// time does not run while messages are in work.
    ///
    /// # Cancel safety
    /// May be dropped at any time without losing a delivery. The idle time begins again.
    pub(super) async fn next(&mut self, work: Work) -> Result<Option<Delivery>, Failure> {
        if self.ending.is_none() && self.left == 0 {
            self.ending = Some(Ending::Limit);
        }
        let Some(consumer) = self.consumer.as_mut().filter(|_| self.ending.is_none()) else {
            return Ok(None);
        };
        let silence = async {
            match (&self.patience, work) {
                (Patience::Endless(admin), Work::None | Work::UnderWay) => {
                    Err(store_failed(admin).await)
                }
                (Patience::Idle(time), Work::None) => {
                    sleep(*time).await;
                    Ok(())
                }
                (Patience::Idle(_), Work::UnderWay) | (_, Work::Full) => {
                    std::future::pending().await
                }
            }
        };
        tokio::select! {
            biased;
            () = &mut self.stop => {
                self.ending = Some(Ending::Interrupted);
                if work != Work::None {
                    // Deliveries that wait go to other consumers now, not when the work is done.
                    self.consumer = None;
                }
            }
            next = consumer.next(), if work != Work::Full => return self.take(next).map(Some),
            silent = silence => {
                silent?;
                self.ending = Some(Ending::Idle);
            }
        }
        Ok(None)
    }

    /// Returns the next delivery if it has already arrived.
    pub(super) fn next_at_once(&mut self) -> Result<Option<Delivery>, Failure> {
        if self.left == 0 || self.ending.is_some() {
            return Ok(None);
        }
        let next = self.consumer.as_mut().map(Consumer::next);
        match next.and_then(FutureExt::now_or_never) {
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
        if let Some(consumer) = self.consumer {
            consumer.stop().await;
        }
    }
}

/// Asks the server from time to time, and completes if its store has failed: then it delivers nothing until it is
/// started again, and a silent queue may be full.
async fn store_failed(admin: &Admin) -> Failure {
    loop {
        sleep(CHECK_EVERY).await;
        if let Err(failure) = check_store(admin).await {
            return failure;
        }
    }
}

/// Fails if the server's store has failed: then the queue is silent whatever it holds.
pub(super) async fn check_store(admin: &Admin) -> Result<(), Failure> {
    match timeout(ANSWER_MAX, admin.server()).await {
        Ok(Ok(server)) if !server.writable => Err(Failure::Other(anyhow::anyhow!(
            "the server delivers nothing, because its store takes no more writes; look at the server's log and restart \
             it"
        ))),
        // A server that does not answer is the concern of the caller.
        Ok(Ok(_) | Err(_)) | Err(_) => Ok(()),
    }
}
