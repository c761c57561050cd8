//! The hooks of one queue: its script, what stands in for answers, and how all that fares.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fila_core::{Definition, HookFallback, Judgement, NewMessage};
use fila_lua::{
    Breaker, EnqueueInput, FailureAction, FailureInput, Hook, Limits, Sandbox, Scheduling, Script,
    ScriptError,
};
use fila_store::{
    DeathReason, FairnessKey, OutOfRange, Payload, QueueId, QueueName, Schedule, Sizes,
    StoredMessage, ThrottleKey,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{error, info, warn};

use super::last_good::LastGood;
use super::stats::{BreakerChange, HookFigures, HookState, HookStats};
use crate::config::Config;

/// How many calls may wait for the hook of one queue. At a limit of 10 ms for each message that is half a minute.
const CALLS_MAX: usize = 4_096;

/// How many failures of one queue may wait to be judged. What waits longer than the core does is judged for nothing.
pub(super) const FAILURES_MAX: usize = 4_096;

/// What is the same for the hooks of all queues.
#[derive(Clone, Debug)]
pub(crate) struct HookSettings {
    limits: Limits,
    breaker: Breaker,
    /// What the core refuses anyway is not shown to scripts: it might make them fail.
    headers_max: usize,
    header_bytes_max: usize,
    /// KiB of messages that may be in the line of one queue.
    room: usize,
}

impl HookSettings {
    pub(crate) fn new(config: &Config) -> Self {
        let mut limits = Limits::default();
        limits.timeout = config.lua.default_timeout;
        limits.memory_bytes = config.lua.default_memory_limit_bytes.as_usize();
        limits.fairness_key_bytes = config.limits.message.fairness_key_bytes.as_usize();
        limits.throttle_key_bytes = ThrottleKey::MAX;
        limits.weight = drr::Weight::MAX.value();
        limits.delay = config.limits.delay;
        Self {
            limits,
            breaker: Breaker::new(
                config.lua.circuit_breaker_threshold,
                config.lua.circuit_breaker_cooldown,
            ),
            headers_max: config.limits.message.headers,
            header_bytes_max: config.limits.message.header_bytes.as_usize(),
            room: (config.limits.buffered_bytes.as_usize() / 4) >> 10,
        }
    }

    /// Returns how long a call may at most take by the clock on the wall, if its sandbox does what it promises.
    pub(crate) fn timeout(&self) -> Duration {
        self.limits.timeout
    }

    /// Compiles and loads a script.
    pub(crate) fn compile(&self, source: &str) -> Result<Program, ScriptError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let script = Script::compile(source, self.limits.clone())?;
        Ok(Program::Loaded(Arc::new(Loaded {
            script,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            is_retired: AtomicBool::new(false),
        })))
    }

    /// Takes a script as the store has it. One that does not load does not keep the server from starting.
    pub(crate) fn recover(&self, queue: &QueueName, source: &str) -> Program {
        self.compile(source).unwrap_or_else(|error| {
            error!(queue = %queue, %error, "the script of the queue's hooks does not load; its fallback is in effect");
            Program::Broken(error.to_string().into())
        })
    }
}

/// A script, or why there is none.
#[derive(Clone, Debug)]
pub(crate) enum Program {
    Loaded(Arc<Loaded>),
    Broken(Arc<str>),
}

/// A script that can be run.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(super) script: Script,
    /// Tells it apart from all others of this process.
    pub(super) number: u64,
    /// Set when the queue has another script, or is gone: then its sandboxes go, too.
    is_retired: AtomicBool,
}

impl Loaded {
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }
}

/// The hooks of a queue, as they are set now. Another is made when that changes.
#[derive(Debug)]
pub(crate) struct QueueHooks {
    pub(super) queue: QueueId,
    name: QueueName,
    program: Program,
    fallback: HookFallback,
    settings: Arc<HookSettings>,
    /// Kept as long as the script is.
    records: Arc<Records>,
    /// Kept as long as the queue has one.
    entrance: Arc<Entrance>,
}

#[derive(Debug)]
struct Records {
    on_enqueue: HookStats,
    on_failure: HookStats,
    last_good: LastGood,
}

/// Who may wait in the line.
#[derive(Debug)]
struct Entrance {
    calls: Arc<AtomicUsize>,
    /// Failures that wait to be judged.
    failures: Arc<AtomicUsize>,
    room: Arc<Semaphore>,
    /// All there is, in KiB.
    capacity: u32,
}

/// Converts the answer of `on_enqueue`, which `fila-lua` has checked. An empty key is the default one, as on the wire.
fn schedule_of(answer: Scheduling) -> Result<Schedule, OutOfRange> {
    let Scheduling {
        fairness_key,
        weight,
        throttle_keys,
    } = answer;
    Ok(Schedule {
        fairness_key: if fairness_key.is_empty() {
            FairnessKey::default()
        } else {
            FairnessKey::new(fairness_key)?
        },
        weight: NonZeroU32::new(weight).unwrap_or(NonZeroU32::MIN),
        throttle_keys: throttle_keys
            .iter()
            .map(|key| ThrottleKey::parse(key))
            .collect::<Result<_, _>>()?,
    })
}

/// What `on_enqueue`, or what stands in for it, says of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The message gets this schedule.
    Scheduled(Schedule),
    /// It is not taken.
    Refused(Arc<str>),
    /// Nothing: it is refused for something else.
    Unasked,
}

impl Verdict {
    /// Makes it so. What the producer said of scheduling counts no more.
    pub(crate) fn apply(self, message: &mut NewMessage) {
        match self {
            Self::Scheduled(schedule) => message.schedule = schedule,
            Self::Refused(error) => message.refusal = Some(error),
            Self::Unasked => {}
        }
    }
}

/// A message that is to be scheduled, as `on_enqueue` sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) headers: &'a [(String, String)],
    pub(crate) sizes: Sizes,
}

impl<'a> From<&'a NewMessage> for About<'a> {
    fn from(message: &'a NewMessage) -> Self {
        Self {
            headers: message.payload.headers(),
            sizes: message.payload.sizes(),
        }
    }
}

impl About<'_> {
    /// Returns how many bytes the message keeps in memory while it waits, about.
    pub(crate) fn bytes(&self) -> usize {
        const ITSELF: usize = 256;
        ITSELF + self.sizes.headers as usize + self.sizes.body as usize
    }
}

/// A dead letter on its way back, with its headers and without its body.
impl<'a> From<&'a StoredMessage> for About<'a> {
    fn from(message: &'a StoredMessage) -> Self {
        Self {
            headers: message.payload.as_ref().map_or(&[], Payload::headers),
            sizes: message.meta.sizes,
        }
    }
}

/// A message that has failed, as `on_failure` sees it.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) headers: Vec<(String, String)>,
    /// As users see it.
    pub(crate) id: String,
    pub(crate) attempts: u32,
    pub(crate) error: Arc<str>,
}

/// Counts a call in the line, until it is dropped. It goes with the job: one whose caller is gone is in the line all the
/// same.
#[derive(Debug)]
pub(crate) struct Place {
    _call: Counted,
    _room: OwnedSemaphorePermit,
}

/// As many calls as may be in the line of a queue are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowded {
    pub(crate) max: usize,
}

impl QueueHooks {
    /// Makes the hooks of a queue of what is set for it, and keeps what it can of those before.
    pub(crate) fn new(
        queue: QueueId,
        name: QueueName,
        program: Program,
        fallback: HookFallback,
        settings: &Arc<HookSettings>,
        before: Option<&Self>,
    ) -> Self {
        let breaker = || settings.breaker.clone();
        let records = match before {
            Some(before) if before.has(&program) => before.records.clone(),
            Some(before) => Arc::new(Records {
                on_enqueue: before.records.on_enqueue.for_another_script(breaker()),
                on_failure: before.records.on_failure.for_another_script(breaker()),
                last_good: LastGood::default(),
            }),
            None => Arc::new(Records {
                on_enqueue: HookStats::new(breaker()),
                on_failure: HookStats::new(breaker()),
                last_good: LastGood::default(),
            }),
        };
        let capacity = u32::try_from(settings.room).unwrap_or(u32::MAX).max(64);
        let entrance = before.map(|before| before.entrance.clone());
        let entrance = entrance.unwrap_or_else(|| {
            Arc::new(Entrance {
                calls: Arc::default(),
                failures: Arc::default(),
                room: Arc::new(Semaphore::new(capacity as usize)),
                capacity,
            })
        });
        Self {
            queue,
            name,
            program,
            fallback,
            settings: settings.clone(),
            records,
            entrance,
        }
    }

    fn has(&self, program: &Program) -> bool {
        match (&self.program, program) {
            (Program::Loaded(one), Program::Loaded(other)) => Arc::ptr_eq(one, other),
            (Program::Broken(one), Program::Broken(other)) => one == other,
            (Program::Loaded(_), Program::Broken(_)) | (Program::Broken(_), Program::Loaded(_)) => {
                false
            }
        }
    }

    /// Returns what makes the hooks that a changed definition asks for; none if it has no script. Says in the definition
    /// whether they judge failures.
    ///
    /// # Errors
    /// If the script is another one, and does not load.
    pub(crate) fn program_of(
        definition: &mut Definition,
        before: Option<(&Self, &Definition)>,
        settings: &HookSettings,
    ) -> Result<Option<Program>, ScriptError> {
        let program = match (&definition.script, before) {
            (None, _) => None,
            // Also one that is broken: a queue can be paused, whatever its script is.
            (Some(source), Some((hooks, old))) if old.script.as_ref() == Some(source) => {
                Some(hooks.program.clone())
            }
            (Some(source), _) => Some(settings.compile(source)?),
        };
        match &program {
            None => definition.failure_hook = false,
            Some(Program::Loaded(loaded)) => {
                definition.failure_hook = loaded.script.defines(Hook::OnFailure);
            }
            // What it would define is not known; it was when it was set.
            Some(Program::Broken(_)) => {}
        }
        Ok(program)
    }

    /// Says that the queue is gone, or has another script: `next`, if it has any.
    pub(crate) fn retire(&self, next: Option<&Self>) {
        if let Program::Loaded(loaded) = &self.program
            && !next.is_some_and(|next| next.has(&self.program))
        {
            loaded.is_retired.store(true, Ordering::Release);
        }
    }

    /// Tells whether the script has this hook, as far as that is known.
    pub(crate) fn defines(&self, hook: Hook) -> bool {
        match &self.program {
            Program::Loaded(loaded) => loaded.script.defines(hook),
            // Of what it would define nothing is known. That it schedules is the more careful guess.
            Program::Broken(_) => hook == Hook::OnEnqueue,
        }
    }

    pub(super) fn loaded(&self) -> Option<&Arc<Loaded>> {
        match &self.program {
            Program::Loaded(loaded) => Some(loaded),
            Program::Broken(_) => None,
        }
    }

    /// Returns how each hook fares that the script defines.
    pub(crate) fn figures(&self, now: Instant) -> Vec<HookFigures> {
        let of = |hook: Hook| {
            let mut figures = self.stats(hook).read(hook.name(), now);
            if let Program::Broken(error) = &self.program {
                figures.state = HookState::Broken;
                figures.last_error = Some(error.clone());
            }
            figures
        };
        let hooks = [Hook::OnEnqueue, Hook::OnFailure].into_iter();
        hooks.filter(|hook| self.defines(*hook)).map(of).collect()
    }

    fn stats(&self, hook: Hook) -> &HookStats {
        match hook {
            Hook::OnEnqueue => &self.records.on_enqueue,
            Hook::OnFailure => &self.records.on_failure,
        }
    }

    /// Waits for room in the line for messages of so many bytes.
    ///
    /// # Errors
    /// If too many wait.
    pub(crate) async fn enter(&self, bytes: usize) -> Result<Place, Crowded> {
        let entrance = &*self.entrance;
        let crowded = Crowded { max: CALLS_MAX };
        let call = Counted::of(&entrance.calls, CALLS_MAX).ok_or(crowded)?;
        let room = u32::try_from(1 + (bytes >> 10)).unwrap_or(u32::MAX);
        // What is larger than all room there is waits until it is alone.
        let waiting = entrance.room.clone();
        let room = waiting.acquire_many_owned(room.min(entrance.capacity));
        Ok(Place {
            _room: room.await.map_err(|_| crowded)?,
            _call: call,
        })
    }

    /// Returns a place in the line for a failure that is to be judged; none if as many wait as may. Then it is left to
    /// its queue, and counted.
    pub(crate) fn enter_failure(&self) -> Option<Counted> {
        let place = Counted::of(&self.entrance.failures, FAILURES_MAX);
        if place.is_none() {
            self.records.on_failure.stood_in_for(1);
        }
        place
    }

    /// Returns what stands in for the answers about these messages, if the hook would not be asked about any.
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

    /// Asks how a message is to be scheduled, or says what stands in for the answer.
    pub(super) fn schedule(
        &self,
        sandbox: &mut Sandbox,
        message: About<'_>,
        now: Instant,
    ) -> Verdict {
        let About { headers, sizes } = message;
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
        let schedule = answer
            .map_err(|error| error.to_string())
            .and_then(|answer| schedule_of(answer).map_err(|error| error.to_string()));
        match schedule {
            Ok(schedule) => {
                self.changed(Hook::OnEnqueue, stats.succeeded(took), None);
                if self.fallback == HookFallback::LastGood {
                    self.records.last_good.remember(headers, &schedule);
                }
                Verdict::Scheduled(schedule)
            }
            Err(error) => {
                self.failed(Hook::OnEnqueue, now + took, took, &error);
                self.stand_in(message)
            }
        }
    }

    /// Asks what becomes of a message that has failed. If there is no answer, it is what the queue does without a hook:
    /// to refuse a failure would be to lose the message.
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
            Ok(action) => {
                self.changed(Hook::OnFailure, stats.succeeded(took), None);
                match action {
                    FailureAction::Retry { delay } => Judgement::Retry { delay },
                    FailureAction::DeadLetter => Judgement::DeadLetter {
                        reason: DeathReason::Hook,
                    },
                    _ => Judgement::Default,
                }
            }
            Err(error) => {
                self.failed(Hook::OnFailure, now + took, took, &error.to_string());
                stats.stood_in_for(1);
                Judgement::Default
            }
        }
    }

    /// Tells that judging would not ask the hook now.
    pub(crate) fn judges_without_asking(&self, now: Instant) -> bool {
        let is_shut = self.loaded().is_none() || self.records.on_failure.is_shut(now);
        if is_shut {
            self.records.on_failure.stood_in_for(1);
        }
        is_shut
    }

    /// Takes a call that does not end for one that has failed.
    pub(super) fn given_up(&self, hook: Hook, now: Instant, waited: Duration) {
        let error = format!("the hook did not end within {waited:?}; its thread was given up");
        self.failed(hook, now, waited, &error);
    }

    pub(super) fn stand_in(&self, message: About<'_>) -> Verdict {
        let last_error = self.records.on_enqueue.stood_in_for(1);
        match self.fallback {
            HookFallback::Default => Verdict::Scheduled(Schedule::default()),
            HookFallback::LastGood => {
                let known = self.records.last_good.find(message.headers);
                Verdict::Scheduled(known.unwrap_or_default())
            }
            HookFallback::Refuse => Verdict::Refused(match (&self.program, last_error) {
                (Program::Broken(error), _) => error.clone(),
                (Program::Loaded(_), Some(error)) => error,
                (Program::Loaded(_), None) => "it was not asked".into(),
            }),
        }
    }

    fn failed(&self, hook: Hook, now: Instant, took: Duration, error: &str) {
        let change = self.stats(hook).failed(now, took, error.into());
        self.changed(hook, change, Some(error));
    }

    /// Says in the log what has changed, once for each change and not once for each message.
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

/// One of a number that has a bound, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn of(count: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let counted = Self(count.clone());
        // One too many is taken back by its end.
        (counted.0.fetch_add(1, Ordering::AcqRel) < max).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
