//! The hooks of one queue: its script, its fallback, its statistics, and the permits of its jobs.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fila_core::{HookFallback, Judgement, NewMessage, QueueSettings};
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

/// Calls that may wait for the hook of one queue. At 10 ms for each message that is half a minute.
const CALLS_MAX: usize = 4_096;

/// Failures of one queue that may wait for `on_failure`. The core waits for a bounded time, so more would be in vain.
pub(super) const FAILURES_MAX: usize = 4_096;

/// Settings of the hooks of all queues.
#[derive(Clone, Debug)]
pub(crate) struct HookSettings {
    limits: Limits,
    breaker: Breaker,
    /// Scripts do not see a message with more headers, which might make them fail: the core rejects it.
    headers_max: usize,
    header_bytes_max: usize,
    /// KiB of messages that may wait for the hook of one queue.
    waiting_kib: u32,
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
            waiting_kib: u32::try_from(config.limits.buffered_bytes.bytes() >> 12)
                .unwrap_or(u32::MAX)
                .max(64),
        }
    }

    /// Returns how long a call may run.
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

    /// Compiles a script of the store. The server starts even if a script does not load.
    pub(crate) fn recover(&self, queue: &QueueName, source: &str) -> Program {
        self.compile(source).unwrap_or_else(|error| {
            error!(queue = %queue, %error, "the script of the queue's hooks does not load; its fallback is in effect");
            Program::Broken(error.to_string().into())
        })
    }
}

/// A script, or why it does not load.
#[derive(Clone, Debug)]
pub(crate) enum Program {
    Loaded(Arc<Loaded>),
    Broken(Arc<str>),
}

/// A script that can run.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(super) script: Script,
    /// Identifies the script in this process.
    pub(super) number: u64,
    /// Set when the queue gets another script or is deleted: workers then drop the sandboxes.
    is_retired: AtomicBool,
}

impl Loaded {
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }
}

/// The hooks of a queue as they are set. A change of the settings makes a new value.
#[derive(Debug)]
pub(crate) struct QueueHooks {
    pub(super) queue: QueueId,
    name: QueueName,
    program: Program,
    fallback: HookFallback,
    settings: Arc<HookSettings>,
    /// Kept as long as the script.
    records: Arc<Records>,
    /// Kept as long as the queue has a script.
    permits: Arc<Permits>,
}

#[derive(Debug)]
struct Records {
    on_enqueue: HookStats,
    on_failure: HookStats,
    last_good: LastGood,
}

/// Bounds on the jobs of a queue, those that run included.
#[derive(Debug)]
struct Permits {
    calls: Arc<Semaphore>,
    failures: Arc<Semaphore>,
    kib: Arc<Semaphore>,
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

/// The permit of a call. It belongs to the job, which may outlive its caller.
#[derive(Debug)]
pub(crate) struct CallPermit {
    _call: OwnedSemaphorePermit,
    _kib: OwnedSemaphorePermit,
}

/// As many calls wait for the hook of a queue as may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooManyCalls {
    pub(crate) max: usize,
}

impl QueueHooks {
    /// Makes the hooks of a queue from its settings, and takes over statistics and permits of the hooks before.
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
        let permits = match before {
            Some(before) => before.permits.clone(),
            None => Arc::new(Permits {
                calls: Arc::new(Semaphore::new(CALLS_MAX)),
                failures: Arc::new(Semaphore::new(FAILURES_MAX)),
                kib: Arc::new(Semaphore::new(settings.waiting_kib as usize)),
            }),
        };
        Self {
            queue,
            name,
            program,
            fallback,
            settings: settings.clone(),
            records,
            permits,
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

    /// Returns the program of a changed definition; `None` if it has no script. Sets in the definition whether the
    /// hooks decide about failures.
    ///
    /// # Errors
    /// If the script is new and does not load.
    pub(crate) fn program_of(
        definition: &mut QueueSettings,
        before: Option<(&Self, &QueueSettings)>,
        settings: &HookSettings,
    ) -> Result<Option<Program>, ScriptError> {
        let program = match (&definition.script, before) {
            (None, _) => None,
            // A broken script stays: a queue can be paused although its script does not load.
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
            // The definition still has what the script defined when it was set.
            Some(Program::Broken(_)) => {}
        }
        Ok(program)
    }

    /// Retires the script if the queue is gone or its `next` hooks have another script.
    pub(crate) fn retire(&self, next: Option<&Self>) {
        if let Program::Loaded(loaded) = &self.program
            && !next.is_some_and(|next| next.has(&self.program))
        {
            loaded.is_retired.store(true, Ordering::Release);
        }
    }

    /// Returns whether the script defines this hook. A broken script counts as one with `on_enqueue`.
    pub(crate) fn defines(&self, hook: Hook) -> bool {
        match &self.program {
            Program::Loaded(loaded) => loaded.script.defines(hook),
            Program::Broken(_) => hook == Hook::OnEnqueue,
        }
    }

    pub(super) fn loaded(&self) -> Option<&Arc<Loaded>> {
        match &self.program {
            Program::Loaded(loaded) => Some(loaded),
            Program::Broken(_) => None,
        }
    }

    /// Returns the figures of each hook that the script defines.
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

    /// Waits for the permit of a call with this many bytes of messages.
    ///
    /// # Errors
    /// If too many calls wait.
    pub(crate) async fn enter(&self, bytes: usize) -> Result<CallPermit, TooManyCalls> {
        let full = TooManyCalls { max: CALLS_MAX };
        let call = self.permits.calls.clone().try_acquire_owned();
        let call = call.map_err(|_| full)?;
        let kib = u32::try_from(1 + (bytes >> 10)).unwrap_or(u32::MAX);
        // A call that is larger than the bound waits until it is alone.
        let kib = kib.min(self.settings.waiting_kib);
        let kib = self.permits.kib.clone().acquire_many_owned(kib).await;
        Ok(CallPermit {
            _call: call,
            _kib: kib.map_err(|_| full)?,
        })
    }

    /// Returns the permit of a failure; `None` if too many wait. Then the queue decides without the hook, and the
    /// failure counts as a fallback.
    pub(crate) fn enter_failure(&self) -> Option<OwnedSemaphorePermit> {
        let permit = self.permits.failures.clone().try_acquire_owned().ok();
        if permit.is_none() {
            self.records.on_failure.stood_in_for(1);
        }
        permit
    }

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
            Ok(action) => {
                self.changed(Hook::OnFailure, stats.succeeded(took), None);
                match action {
                    FailureAction::Retry { delay } => Judgement::Retry { delay },
                    FailureAction::DeadLetter => Judgement::DeadLetter {
                        reason: DeathReason::Hook,
                    },
                }
            }
            Err(error) => {
                self.failed(Hook::OnFailure, now + took, took, &error.to_string());
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
