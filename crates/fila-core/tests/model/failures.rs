//! What becomes of deliveries that fail, and who judges them: at random, late, twice, or never.

use std::time::Duration;

use fila_core::{Judgement, Verdict};
use fila_store::{DeathReason, ErrorText, MessageId};

use super::fate::due;
use super::{Life, Simulation};

impl Simulation {
    pub(super) fn some_nack(&mut self) -> Verdict {
        let delay = Duration::from_millis(self.chance.below(3) * 60);
        Verdict::Nack {
            delay: self.chance.one_in(2).then_some(delay),
            error: self.chance.one_in(2).then(|| ErrorText::new("out of luck")),
        }
    }

    /// Does to the model what a failed delivery does.
    pub(super) fn fail(&mut self, id: MessageId, wish: Option<Duration>) {
        let now = self.shell.now;
        let retry = self.definition.retry;
        let known = self.messages.get_mut(&id).unwrap();
        known.attempts += 1;
        known.dues_before.clear();
        known.due = due(now, wish.unwrap_or_else(|| retry.delay(id, known.attempts)));
        known.life = Life::Waiting;
        if known.is_expired(now) {
            return;
        }
        if self.definition.failure_hook {
            let until = now.saturating_add(self.shell.judging_time());
            known.life = Life::Failing { until, wish };
        } else {
            self.pass_judgement(id, wish, Judgement::Default);
        }
    }

    fn pass_judgement(&mut self, id: MessageId, wish: Option<Duration>, judgement: Judgement) {
        let retry = self.definition.retry;
        let attempts = self.messages[&id].attempts;
        match judgement {
            Judgement::Retry { delay } => self.try_again(id, delay),
            Judgement::DeadLetter { reason } => self.die(id, reason),
            Judgement::Default if retry.is_exhausted(attempts) => {
                self.die(id, DeathReason::AttemptsExhausted);
            }
            Judgement::Default => {
                self.try_again(id, wish.unwrap_or_else(|| retry.delay(id, attempts)));
            }
        }
    }

    fn try_again(&mut self, id: MessageId, wait: Duration) {
        let now = self.shell.now;
        let known = self.messages.get_mut(&id).unwrap();
        known.life = Life::Waiting;
        known.dues_before.push(known.due);
        known.due = due(now, wait);
    }

    /// Applies the queue's policy to failures that were not judged in time.
    pub(super) fn judge_overdue(&mut self) {
        let now = self.shell.now;
        let failing = self
            .messages
            .iter()
            .filter_map(|(id, known)| match known.life {
                Life::Failing { until, wish } => Some((*id, until, wish)),
                Life::Waiting | Life::Leased(_) | Life::Leaving => None,
            });
        for (id, until, wish) in failing.collect::<Vec<_>>() {
            let known = self.messages.get_mut(&id).unwrap();
            if known.is_expired(now) {
                known.life = Life::Waiting;
            } else if until <= now {
                self.pass_judgement(id, wish, Judgement::Default);
            }
        }
    }

    /// Takes note of what is to be judged.
    pub(super) fn take_failures(&mut self) {
        for failure in std::mem::take(&mut self.shell.failures) {
            let known = &self.messages[&failure.locator.id];
            assert!(matches!(known.life, Life::Failing { .. }), "{known:?}");
            assert_eq!(failure.attempts, known.attempts);
            assert_eq!(failure.locator.fairness_key, known.key);
            self.cellar
                .told
                .insert((failure.locator.id, failure.attempts));
            self.to_judge.push(failure);
        }
    }

    pub(super) fn judge(&mut self) {
        if self.to_judge.is_empty() {
            return;
        }
        let nth = self.chance.below(self.to_judge.len() as u64) as usize;
        let failure = if self.chance.one_in(6) {
            self.to_judge[nth].clone() // and once more, later
        } else {
            self.to_judge.swap_remove(nth)
        };
        if self.chance.one_in(5) {
            return; // no judgement comes
        }
        let judgement = match self.chance.below(4) {
            0 => Judgement::Default,
            1 => Judgement::DeadLetter {
                reason: DeathReason::Hook,
            },
            _ => Judgement::Retry {
                delay: Duration::from_millis(self.chance.below(4) * 50),
            },
        };
        let id = failure.locator.id;
        if let Some(known) = self.messages.get(&id)
            && known.attempts == failure.attempts
            && let Life::Failing { wish, .. } = known.life
        {
            self.pass_judgement(id, wish, judgement);
        }
        self.shell.judge(self.queue, failure.token, judgement);
    }
}
