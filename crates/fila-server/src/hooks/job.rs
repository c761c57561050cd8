//! A job: questions to the hooks of one queue that are answered together.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fila_core::{Judgement, NewMessage};
use fila_lua::{Hook, Sandbox};
use fila_store::StoredMessage;

use super::queue_hooks::QueueHooks;
use super::verdict::{About, Failed, Verdict};

/// Questions to a hook.
#[derive(Clone, Debug)]
pub(crate) enum Questions {
    /// How to schedule these messages.
    Enqueue(Arc<Vec<NewMessage>>),
    /// How to schedule these dead letters, which return to their queue.
    Redrive(Arc<Vec<StoredMessage>>),
    /// What to do with this failed message.
    Failure(Arc<Failed>),
}

impl Questions {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Enqueue(messages) => messages.len(),
            Self::Redrive(messages) => messages.len(),
            Self::Failure(_) => 1,
        }
    }

    /// Returns whether the caller is gone: a caller keeps the messages while it waits. A failure always has a caller.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Enqueue(messages) => Arc::strong_count(messages) == 1,
            Self::Redrive(messages) => Arc::strong_count(messages) == 1,
            Self::Failure(_) => false,
        }
    }

    fn hook(&self) -> Hook {
        match self {
            Self::Enqueue(_) | Self::Redrive(_) => Hook::OnEnqueue,
            Self::Failure(_) => Hook::OnFailure,
        }
    }

    /// Returns the message that the question at `index` is about; `None` for a failure.
    fn about(&self, index: usize) -> Option<About<'_>> {
        match self {
            Self::Enqueue(messages) => messages.get(index).map(About::from),
            Self::Redrive(messages) => messages.get(index).map(About::from),
            Self::Failure(_) => None,
        }
    }

    /// Asks the question at `index`.
    pub(super) fn ask(
        &self,
        index: usize,
        hooks: &QueueHooks,
        sandbox: &mut Sandbox,
        now: Instant,
    ) -> Answer {
        match self {
            Self::Enqueue(messages) => {
                Answer::Verdict(hooks.schedule(sandbox, (&messages[index]).into(), now))
            }
            Self::Redrive(messages) => {
                Answer::Verdict(hooks.schedule(sandbox, (&messages[index]).into(), now))
            }
            Self::Failure(failed) => Answer::Judged(hooks.judge(sandbox, failed, now)),
        }
    }
}

/// The answer to one question.
#[derive(Debug)]
pub(crate) enum Answer {
    Verdict(Verdict),
    Judged(Judgement),
}

/// Questions to the hooks of one queue that are answered together.
pub(crate) struct Job {
    pub(super) hooks: Arc<QueueHooks>,
    pub(super) questions: Questions,
    /// To the first of the questions.
    pub(super) answers: Vec<Answer>,
    done: Box<dyn FnOnce(Vec<Answer>) + Send>,
}

impl Job {
    /// Makes a job. `done` gets the answers. It must be quick, and is dropped if the server stops.
    pub(crate) fn new(
        hooks: Arc<QueueHooks>,
        questions: Questions,
        done: impl FnOnce(Vec<Answer>) + Send + 'static,
    ) -> Self {
        Self {
            answers: Vec::with_capacity(questions.len()),
            hooks,
            questions,
            done: Box::new(done),
        }
    }

    /// Returns whether all questions are answered, or the caller is gone. The questions must have no other copy here.
    pub(super) fn is_done(&self) -> bool {
        self.answers.len() >= self.questions.len() || self.questions.is_abandoned()
    }

    pub(super) fn finish(self) {
        // The caller takes the messages back without a copy if it has the only reference.
        drop(self.questions);
        (self.done)(self.answers);
    }

    /// Answers for the call that did not end.
    pub(super) fn answer_for_call(&mut self, now: Instant, waited: Duration) {
        self.hooks.given_up(self.questions.hook(), now, waited);
        let answer = match self.questions.about(self.answers.len()) {
            Some(about) => Answer::Verdict(self.hooks.stand_in(about)),
            None => Answer::Judged(Judgement::Default),
        };
        self.answers.push(answer);
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("questions", &self.questions.len())
            .field("answers", &self.answers.len())
            .finish_non_exhaustive()
    }
}
