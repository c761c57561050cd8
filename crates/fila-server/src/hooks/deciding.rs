//! Calls of hooks, and the decisions about messages.
//!
//! A message's producer chooses its headers, so it can make the hook fail or answer nonsense for that message. What
//! always holds:
//! - Only failures of the script (errors, time, memory) count for the breaker. An answer that cannot be used does not.
//! - The parts of an answer that can be used hold.
//! - With the fallback [`HookFallback::LastGood`], a message keeps the hook's last answer for such a message, and
//!   otherwise its own fairness key.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use fila_core::{HookFallback, Judgement};
use fila_lua::{
    AnswerPart, EnqueueInput, FailureAction, FailureInput, Hook, HookError, Sandbox, Scheduling,
};
use fila_store::{DeathReason, FairnessKey, GroupWeights, Schedule, ThrottleKey};
use tracing::{info, warn};

use super::answer_paths::check_paths;
use super::queue_hooks::{Program, QueueHooks};
use super::stats::{AnswerCheck, BreakerChange};
use super::verdict::{About, Failed, OwnSchedule, Verdict};

impl QueueHooks {
    /// Returns the fallback for each of these messages if the hook would not be called for any.
    pub(crate) fn without_asking<'a, M>(
        &self,
        messages: &'a [M],
        now: Instant,
    ) -> Option<Vec<Verdict>>
    where
        About<'a>: From<&'a M>,
    {
        let is_shut = self.loaded().is_none() || self.records.on_enqueue.is_shut(now);
        is_shut.then(|| {
            let messages = messages.iter();
            messages.map(|it| self.stand_in(it.into())).collect()
        })
    }

    /// Calls `on_enqueue` for a message, or returns the fallback.
    pub(super) fn schedule(
        &self,
        sandbox: &mut Sandbox,
        message: About<'_>,
        now: Instant,
    ) -> Verdict {
        let About { headers, sizes, .. } = message;
        if headers.len() > self.settings.headers_max
            || sizes.headers as usize > self.settings.header_bytes_max
        {
            return Verdict::Unasked;
        }
        let stats = &self.records.on_enqueue;
        if !stats.admits(now) {
            return self.stand_in(message);
        }
        let answer = sandbox.on_enqueue(&EnqueueInput {
            headers,
            payload_size: sizes.body as usize,
            queue: self.name.as_str(),
        });
        let took = sandbox.cost().elapsed;
        match answer {
            Ok(mut answer) => {
                let group_weights = check_paths(&mut answer, self.separator);
                let check = AnswerCheck {
                    adjusted: answer.adjustment().is_some(),
                    unusable: answer.mistake().map(|it| it.to_string().into()),
                };
                self.changed(Hook::OnEnqueue, stats.answered(took, check), None);
                self.accept(answer, group_weights, message)
            }
            Err(error) => {
                self.no_answer(Hook::OnEnqueue, now, took, &error);
                self.stand_in(message)
            }
        }
    }

    /// Returns the verdict of an answer.
    fn accept(
        &self,
        answer: Scheduling,
        group_weights: GroupWeights,
        message: About<'_>,
    ) -> Verdict {
        if !answer.unusable.is_empty() {
            return self.mend(&answer, group_weights, message);
        }
        let schedule = Schedule {
            fairness_key: fairness_key(answer.fairness_key),
            weight: weight(answer.weight),
            group_weights,
            throttle_keys: throttle_keys(&answer.throttle_keys),
        };
        self.records.last_good.remember(message.headers, &schedule);
        Verdict::Scheduled(schedule)
    }

    /// Returns the verdict of an answer of which a part cannot be used: the other parts hold, except that weights go
    /// with their key.
    fn mend(
        &self,
        answer: &Scheduling,
        group_weights: GroupWeights,
        message: About<'_>,
    ) -> Verdict {
        // Without some of too many throttle keys the message would escape limits. A dead letter has others already.
        if let OwnSchedule::Decided(schedule) = message.own
            && !answer.is_usable(AnswerPart::ThrottleCount)
            && self.fallback != HookFallback::Refuse
        {
            return Verdict::Scheduled(schedule.clone());
        }
        let refusal = match self.fallback {
            HookFallback::Refuse => answer.unusable.first(),
            HookFallback::Default | HookFallback::LastGood => {
                let mut mistakes = answer.unusable.iter();
                mistakes.find(|it| it.part == AnswerPart::ThrottleCount)
            }
        };
        if let Some(refusal) = refusal {
            return Verdict::Refused(refusal.error().to_string().into());
        }
        let mut schedule = if answer.is_usable(AnswerPart::FairnessKey) {
            let key = fairness_key(answer.fairness_key.clone());
            let mut known = self.known_of(key);
            if answer.is_usable(AnswerPart::Weight) {
                known.weight = weight(answer.weight);
            }
            if answer.is_usable(AnswerPart::GroupTable) {
                known.group_weights = group_weights;
            }
            known
        } else {
            self.known(message)
        };
        if answer.is_usable(AnswerPart::ThrottleList) {
            schedule.throttle_keys = throttle_keys(&answer.throttle_keys);
        }
        Verdict::Scheduled(schedule)
    }

    /// Calls `on_failure` for a message. Without an answer the queue decides as without a hook: rejecting a failure
    /// would lose the message.
    pub(super) fn judge(&self, sandbox: &mut Sandbox, failed: &Failed, now: Instant) -> Judgement {
        let stats = &self.records.on_failure;
        if !stats.admits(now) {
            stats.stood_in_for(1);
            return Judgement::Default;
        }
        let answer = sandbox.on_failure(&FailureInput {
            headers: &failed.headers,
            id: &failed.id,
            attempts: failed.attempts,
            queue: self.name.as_str(),
            error: &failed.error,
        });
        let took = sandbox.cost().elapsed;
        match answer {
            Ok(answer) => {
                let check = AnswerCheck {
                    adjusted: answer.adjusted.is_some(),
                    unusable: None,
                };
                self.changed(Hook::OnFailure, stats.answered(took, check), None);
                match answer.action {
                    FailureAction::Retry { delay } => Judgement::Retry { delay },
                    FailureAction::DeadLetter => Judgement::DeadLetter {
                        reason: DeathReason::Hook,
                    },
                }
            }
            Err(error) => {
                self.no_answer(Hook::OnFailure, now, took, &error);
                stats.stood_in_for(1);
                Judgement::Default
            }
        }
    }

    /// Returns whether `on_failure` would not be called now, and counts a fallback if so.
    pub(crate) fn judges_without_asking(&self, now: Instant) -> bool {
        let is_shut = self.loaded().is_none() || self.records.on_failure.is_shut(now);
        if is_shut {
            self.records.on_failure.stood_in_for(1);
        }
        is_shut
    }

    /// Counts a call that does not end as failed.
    pub(super) fn given_up(&self, hook: Hook, now: Instant, waited: Duration) {
        let error = format!("the hook did not end within {waited:?}; its thread was given up");
        self.failed(hook, now, waited, &error);
    }

    /// Returns the verdict on a message for which there is no answer.
    pub(super) fn stand_in(&self, message: About<'_>) -> Verdict {
        let last_error = self.records.on_enqueue.stood_in_for(1);
        match self.fallback {
            HookFallback::Default | HookFallback::LastGood => {
                Verdict::Scheduled(self.known(message))
            }
            HookFallback::Refuse => Verdict::Refused(match (&self.program, last_error) {
                (Program::Broken(error), _) => error.clone(),
                (Program::Loaded(_), Some(error)) => error,
                (Program::Loaded(_), None) => "it was not asked".into(),
            }),
        }
    }

    /// Returns the fallback schedule of a message.
    fn known(&self, message: About<'_>) -> Schedule {
        match self.fallback {
            HookFallback::LastGood => {
                let last_good = &self.records.last_good;
                let known = last_good.find(message.headers);
                let known = known.or_else(|| last_good.find_key(message.own.key()));
                known.unwrap_or_else(|| message.own.to_schedule())
            }
            HookFallback::Default | HookFallback::Refuse => Schedule::default(),
        }
    }

    /// Returns the fallback schedule of a fairness key.
    fn known_of(&self, key: FairnessKey) -> Schedule {
        let known = match self.fallback {
            HookFallback::LastGood => self.records.last_good.find_key(&key),
            HookFallback::Default | HookFallback::Refuse => None,
        };
        known.unwrap_or_else(|| key.into())
    }

    /// Records a call without an answer. Only a failure of the script counts for the breaker.
    fn no_answer(&self, hook: Hook, now: Instant, took: Duration, error: &HookError) {
        let text = error.to_string();
        if error.is_failure() {
            return self.failed(hook, now + took, took, &text);
        }
        let check = AnswerCheck {
            adjusted: false,
            unusable: Some(text.into()),
        };
        self.changed(hook, self.stats(hook).answered(took, check), None);
    }

    fn failed(&self, hook: Hook, now: Instant, took: Duration, error: &str) {
        let change = self.stats(hook).failed(now, took, error.into());
        self.changed(hook, change, Some(error));
    }

    /// Logs a change of the breaker: once for each change, not for each message.
    fn changed(&self, hook: Hook, change: BreakerChange, error: Option<&str>) {
        let hook = hook.name();
        match change {
            BreakerChange::None => {}
            BreakerChange::Opened => warn!(
                queue = %self.name, hook, error,
                "the hook keeps failing and is not asked for a while; its fallback is in effect"
            ),
            BreakerChange::Closed => info!(queue = %self.name, hook, "the hook is asked again"),
        }
    }
}

/// Returns the key of an answer, which `fila-lua` has checked. An empty key is the default one, as on the wire.
fn fairness_key(key: Vec<u8>) -> FairnessKey {
    if key.is_empty() {
        return FairnessKey::default();
    }
    FairnessKey::new(key).unwrap_or_default()
}

fn weight(weight: u32) -> NonZeroU32 {
    NonZeroU32::new(weight).unwrap_or(NonZeroU32::MIN)
}

/// Returns the throttle keys of an answer, which `fila-lua` has checked.
fn throttle_keys(keys: &[String]) -> Box<[ThrottleKey]> {
    let keys = keys.iter().map(|key| ThrottleKey::parse(key));
    keys.filter_map(Result::ok).collect()
}
