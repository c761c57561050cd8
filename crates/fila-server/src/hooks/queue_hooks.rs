//! The hooks of one queue: its script, its fallback, its statistics, and the permits of its jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fila_core::{HookFallback, KeySeparator, QueueSettings};
use fila_lua::{Breaker, Hook, Limits, Script, ScriptError};
use fila_store::{FairnessKey, QueueId, QueueName, ThrottleKey};
use tracing::error;

use super::call_line::{Call, CallLine, CallPermit, HookPartUsed, Producer};
use super::last_good::LastGood;
use super::stats::{HookFigures, HookState, HookStats};
use super::verdict::{About, OwnSchedule};
use crate::config::Config;

/// Settings of the hooks of all queues.
#[derive(Clone, Debug)]
pub(crate) struct HookSettings {
    limits: Limits,
    breaker: Breaker,
    /// Scripts do not see a message with more headers, which might make them fail: the core rejects it.
    pub(super) headers_max: usize,
    pub(super) header_bytes_max: usize,
    /// KiB of messages that may wait for the hook of one queue.
    waiting_kib: u64,
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
            waiting_kib: (config.limits.buffered_bytes.bytes() >> 12).max(64),
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

impl Program {
    /// Returns whether the script defines this hook. A broken script counts as one with `on_enqueue`.
    pub(crate) fn defines(&self, hook: Hook) -> bool {
        match self {
            Self::Loaded(loaded) => loaded.script.defines(hook),
            Self::Broken(_) => hook == Hook::OnEnqueue,
        }
    }
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
    pub(super) name: QueueName,
    pub(super) program: Program,
    pub(super) fallback: HookFallback,
    /// That of the queue: the fairness keys of answers are paths under it.
    pub(super) separator: Option<KeySeparator>,
    pub(super) settings: Arc<HookSettings>,
    /// Kept as long as the script and the separator, under which the last answers name their groups.
    pub(super) records: Arc<Records>,
    /// Kept as long as the queue has a script.
    permits: Arc<Permits>,
}

#[derive(Debug)]
pub(super) struct Records {
    pub(super) on_enqueue: HookStats,
    pub(super) on_failure: HookStats,
    pub(super) last_good: LastGood,
}

/// Bounds on the jobs of a queue, those that run included.
#[derive(Debug)]
struct Permits {
    calls: Arc<CallLine>,
    /// Failures that wait for `on_failure`. The core waits for a bounded time, so more would be in vain.
    failures: Arc<CallLine>,
}

impl QueueHooks {
    /// Makes the hooks of a queue from its settings, and takes over statistics and permits of the hooks before.
    pub(crate) fn new(
        queue: QueueId,
        name: QueueName,
        program: Program,
        definition: &QueueSettings,
        settings: &Arc<HookSettings>,
        before: Option<&Self>,
    ) -> Self {
        let breaker = || settings.breaker.clone();
        let records = match before {
            Some(before)
                if before.has(&program) && before.separator == definition.key_separator =>
            {
                before.records.clone()
            }
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
                calls: Arc::new(CallLine::new(settings.waiting_kib)),
                failures: Arc::new(CallLine::new(u64::MAX)),
            }),
        };
        Self {
            queue,
            name,
            program,
            fallback: definition.hook_fallback,
            separator: definition.key_separator,
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
        self.program.defines(hook)
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

    pub(super) fn stats(&self, hook: Hook) -> &HookStats {
        match hook {
            Hook::OnEnqueue => &self.records.on_enqueue,
            Hook::OnFailure => &self.records.on_failure,
        }
    }

    /// Waits for the permit of a call of a producer with this many bytes of messages.
    ///
    /// # Errors
    /// If the producer has too many calls or bytes here.
    pub(crate) async fn enter(
        &self,
        producer: Producer,
        bytes: usize,
    ) -> Result<CallPermit, HookPartUsed> {
        let pace = self.records.on_enqueue.pace();
        self.permits.calls.enter(producer, bytes, pace).await
    }

    /// Returns the permit of a failure of a fairness key; `None` if too many of its tenant wait. Then the queue decides
    /// without the hook, and the failure counts as a fallback.
    pub(crate) fn enter_failure(&self, key: &FairnessKey) -> Option<Call> {
        let tenant = self.tenant(key);
        let permit = self
            .permits
            .failures
            .admit(Producer::Key(tenant), 0, Duration::ZERO)
            .ok();
        if permit.is_none() {
            self.records.on_failure.stood_in_for(1);
        }
        permit
    }

    /// Returns who sent a message: the tenant that the hook named for such a message, else the one that its producer
    /// names, else the client. A key that is no path names no tenant.
    pub(crate) fn producer(&self, message: About<'_>) -> Producer {
        match message.own {
            OwnSchedule::Claimed(key) => {
                let known = self.records.last_good.find_key_of(message.headers);
                let claimed = || Some(key).filter(|key| self.is_path(key));
                let named = known.as_ref().or_else(claimed);
                let named = named.map_or_else(FairnessKey::default, |key| self.tenant(key));
                match (known, message.source) {
                    (None, Some(source)) if named == FairnessKey::default() => {
                        Producer::Client(source)
                    }
                    (None | Some(_), _) => Producer::Key(named),
                }
            }
            OwnSchedule::Decided(_) => Producer::Operator,
        }
    }

    fn is_path(&self, key: &FairnessKey) -> bool {
        let mut separator = self.separator.iter();
        separator.all(|it| it.check(key.as_bytes()).is_ok())
    }

    /// Returns the name at the top of a key's path.
    fn tenant(&self, key: &FairnessKey) -> FairnessKey {
        top_of(self.separator, key)
    }
}

/// Returns the name at the top of a key's path: the whole key if it is flat.
pub(crate) fn top_of(separator: Option<KeySeparator>, key: &FairnessKey) -> FairnessKey {
    let Some(separator) = separator else {
        return key.clone();
    };
    let top = separator.top(key.as_bytes());
    if top.len() == key.as_bytes().len() {
        return key.clone();
    }
    FairnessKey::new(top.to_vec()).expect("it is shorter than the key that it is a part of")
}
