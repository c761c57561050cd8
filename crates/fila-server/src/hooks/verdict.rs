//! Messages as hooks see them, and the decisions about them.

use std::sync::Arc;

use fila_core::{NewMessage, Source};
use fila_store::{FairnessKey, Payload, Schedule, Sizes, StoredMessage};

/// The answer of `on_enqueue`, or of the fallback, about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The message gets this schedule.
    Scheduled(Schedule),
    /// The broker rejects the message.
    Refused(Arc<str>),
    /// The hook was not called: the broker rejects the message for another reason.
    Unasked,
}

impl Verdict {
    /// Applies the verdict, in place of the schedule that the producer gave.
    pub(crate) fn apply(self, message: &mut NewMessage) {
        match self {
            Self::Scheduled(schedule) => message.schedule = schedule,
            Self::Refused(error) => message.refusal = Some(error),
            Self::Unasked => {}
        }
    }
}

/// A message as `on_enqueue` sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) headers: &'a [(String, String)],
    pub(crate) sizes: Sizes,
    pub(crate) own: OwnSchedule<'a>,
    /// The client that sends it, if that is known.
    pub(crate) source: Option<Source>,
}

/// How a message is scheduled if its hook gives no answer, and never gave one for such a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OwnSchedule<'a> {
    /// By the fairness key that its producer names. Its weight and its throttle keys are the hook's to give.
    Claimed(&'a FairnessKey),
    /// As before.
    Decided(&'a Schedule),
}

impl OwnSchedule<'_> {
    pub(super) fn key(&self) -> &FairnessKey {
        match self {
            Self::Claimed(key) => key,
            Self::Decided(schedule) => &schedule.fairness_key,
        }
    }

    pub(super) fn to_schedule(self) -> Schedule {
        match self {
            Self::Claimed(key) => key.clone().into(),
            Self::Decided(schedule) => schedule.clone(),
        }
    }
}

impl<'a> From<&'a NewMessage> for About<'a> {
    fn from(message: &'a NewMessage) -> Self {
        Self {
            headers: message.payload.headers(),
            sizes: message.payload.sizes(),
            own: OwnSchedule::Claimed(&message.schedule.fairness_key),
            source: message.source,
        }
    }
}

impl About<'_> {
    /// Returns about how many bytes of memory the message takes while it waits.
    pub(crate) fn bytes(&self) -> usize {
        NewMessage::OVERHEAD_BYTES + self.sizes.headers as usize + self.sizes.body as usize
    }
}

/// A dead letter on its way back, with its headers and without its body.
impl<'a> From<&'a StoredMessage> for About<'a> {
    fn from(message: &'a StoredMessage) -> Self {
        Self {
            headers: message.payload.as_ref().map_or(&[], Payload::headers),
            sizes: message.meta.sizes,
            own: OwnSchedule::Decided(&message.meta.schedule),
            source: None,
        }
    }
}

/// A failed message as `on_failure` sees it.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) headers: Vec<(String, String)>,
    /// In the form that users see.
    pub(crate) id: String,
    pub(crate) attempts: u32,
    pub(crate) error: Arc<str>,
}
