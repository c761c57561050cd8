//! `Redrive` at the edge: which dead letters a request asks for, how fast they go, and how far it is.

use std::time::Duration;

use fila_proto::v1::{RedriveRequest, RedriveResponse};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use super::consume::stopped;
use super::key_selection;
use super::produce::stopping;
use super::refusal::Refusal;
use crate::runtime::{Handle, RedriveQuery, Redriving, State};

/// The most messages that one step moves.
const STEP: u64 = 256;

/// The least number of steps per second if a rate is given.
const STEPS_PER_SECOND: f64 = 20.0;

/// The stream of one redrive.
#[derive(Debug)]
pub(super) struct Redrive {
    redriving: Redriving,
    left: u64,
    rate: Option<f64>,
    began: Instant,
    total: u64,
    /// A stop of the server ends the waits between steps.
    state: watch::Receiver<State>,
    is_over: bool,
}

impl Redrive {
    /// Parses a request, and begins the redrive.
    pub(super) async fn begin(handle: &Handle, request: RedriveRequest) -> Result<Self, Status> {
        let RedriveRequest {
            queue,
            count,
            fairness_key: key,
            headers,
            rate,
            within,
        } = request;
        if count == Some(0) {
            let text = "count 0 is out of range; give 1 or more, or leave it out for all";
            return Err(Refusal::invalid(text).into());
        }
        if let Some(rate) = rate.filter(|rate| !rate.is_finite() || *rate <= 0.0) {
            let text = format!("rate {rate} is out of range; give messages per second above 0");
            return Err(Refusal::invalid(text).into());
        }
        let queue = handle.queue(&queue)?;
        let query = RedriveQuery {
            keys: key_selection::parse(key, within, handle.key_separator(&queue))?,
            headers: headers.into_iter().collect(),
        };
        let redriving = handle.redrive(&queue, query)?;
        let total = handle.inspect(&queue).await?.depth();
        Ok(Self {
            redriving,
            left: count.unwrap_or(u64::MAX),
            rate,
            began: Instant::now(),
            total,
            state: handle.state(),
            is_over: false,
        })
    }

    /// Moves some messages, and returns the progress. Returns `None` after the last step.
    pub(super) async fn next(&mut self) -> Option<Result<RedriveResponse, Status>> {
        if self.is_over {
            return None;
        }
        let before = self.redriving.progress().redriven;
        let step = match self.rate {
            None => STEP,
            Some(rate) => {
                tokio::select! {
                    () = tokio::time::sleep_until(self.began + due(before, rate)) => {}
                    () = stopping(&mut self.state) => {
                        self.is_over = true;
                        return Some(Err(stopped()));
                    }
                }
                ((rate / STEPS_PER_SECOND) as u64).clamp(1, STEP)
            }
        };
        let most = step.min(self.left);
        if let Err(error) = self.redriving.step(most as usize).await {
            self.is_over = true;
            return Some(Err(error.into()));
        }
        let progress = self.redriving.progress();
        self.left -= progress.redriven - before;
        self.is_over = self.redriving.is_done() || self.left == 0;
        Some(Ok(RedriveResponse {
            redriven: progress.redriven,
            skipped_leased: progress.leased,
            seen: progress.seen,
            total: self.total,
            done: self.is_over,
        }))
    }
}

/// Returns how long moving this many messages takes at least.
fn due(messages: u64, rate: f64) -> Duration {
    Duration::try_from_secs_f64(messages as f64 / rate).unwrap_or(Duration::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_says_when_how_many_may_have_gone() {
        assert_eq!(due(0, 5.0), Duration::ZERO);
        assert_eq!(due(10, 5.0), Duration::from_secs(2));
        assert!(due(u64::MAX, f64::MIN_POSITIVE) > Duration::from_secs(1 << 40));
    }
}
