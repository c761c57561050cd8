//! Calls the hooks of one script.

use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::{Duration, Instant};

use mlua::{IntoLuaMulti, Lua, Table, Value};

use crate::answer::mistake;
use crate::fault;
use crate::meter::Stop;
use crate::vm::{Entry, Outcome, Vm};
use crate::watch::Watch;
use crate::{
    EnqueueInput, FailureAnswer, FailureInput, Fault, Hook, HookError, Scheduling, Script,
};

/// Runtime configuration, as scripts read it by `fila.get`.
///
/// Functions implement it. A script must see the same values during one call: if they may change meanwhile, read them from
/// a snapshot.
pub trait Settings: 'static {
    /// Returns the value of a key, if it is set.
    fn value(&self, key: &str) -> Option<String>;
}

impl<F: Fn(&str) -> Option<String> + 'static> Settings for F {
    fn value(&self, key: &str) -> Option<String> {
        self(key)
    }
}

/// The cost of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The time from its start to its end.
    pub elapsed: Duration,
    /// Instructions of the VM, rounded down to a multiple of the interval between two checks of the clock.
    pub instructions: u64,
}

/// One VM for one script, for the thread that made it.
///
/// A call sees the script as if it had just been loaded: it sees no globals, locals of the top level or tables that a
/// call before has set. So an answer depends on the message, the settings and `math.random` alone; every sandbox gives
/// the same.
#[derive(Debug)]
pub struct Sandbox {
    script: Script,
    settings: OpaqueSettings,
    seed: u64,
    vm: Option<Vm>,
    cost: Cost,
    watch: Watch,
}

/// Settings with a `Debug` that hides them.
struct OpaqueSettings(Rc<dyn Settings>);

impl std::fmt::Debug for OpaqueSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Settings")
    }
}

impl Sandbox {
    /// Makes a sandbox with a random seed for `math.random`.
    pub fn new(script: &Script, settings: impl Settings) -> Self {
        Self::with_seed(script, settings, RandomState::new().hash_one(0))
    }

    /// Makes a sandbox with this seed: `math.random` gives the same numbers for the same seed and calls.
    pub fn with_seed(script: &Script, settings: impl Settings, seed: u64) -> Self {
        Self {
            script: script.clone(),
            settings: OpaqueSettings(Rc::new(settings)),
            seed,
            vm: None,
            cost: Cost::default(),
            watch: Watch::new(),
        }
    }

    /// Calls `on_enqueue`, which decides how the broker schedules a message. The answer names the fields that cannot be
    /// used.
    ///
    /// # Errors
    /// If the script does not define `on_enqueue`, fails, exceeds a limit, or returns no table.
    pub fn on_enqueue(&mut self, input: &EnqueueInput<'_>) -> Result<Scheduling, HookError> {
        let fields = self.ask(Hook::OnEnqueue, |lua| {
            let size = i64::try_from(input.payload_size).unwrap_or(i64::MAX);
            let queue = lua.create_string(input.queue)?;
            Ok((table(lua, input.headers)?, size, queue))
        })?;
        Ok(Scheduling::parse(fields, self.script.limits()))
    }

    /// Calls `on_failure`, which decides what the broker does with a message that has failed.
    ///
    /// # Errors
    /// If the script does not define `on_failure`, fails, exceeds a limit, or returns an answer that cannot be used.
    pub fn on_failure(&mut self, input: &FailureInput<'_>) -> Result<FailureAnswer, HookError> {
        let fields = self.ask(Hook::OnFailure, |lua| {
            let id = lua.create_string(input.id)?;
            let queue = lua.create_string(input.queue)?;
            let error = lua.create_string(input.error)?;
            Ok((table(lua, input.headers)?, id, input.attempts, queue, error))
        })?;
        FailureAnswer::parse(fields, self.script.limits())
            .map_err(|mistake| wrong(Hook::OnFailure, mistake))
    }

    /// Returns the cost of the last call.
    pub const fn cost(&self) -> Cost {
        self.cost
    }

    /// Returns the bytes of the script and its data, with the garbage of earlier calls.
    pub fn memory(&self) -> usize {
        self.vm.as_ref().map_or(0, Vm::memory)
    }

    /// Returns a handle that shows another thread how long a call has been running.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Calls a hook and returns the fields of its answer.
    fn ask<const FIELDS: usize, A: IntoLuaMulti>(
        &mut self,
        hook: Hook,
        arguments: impl FnOnce(&Lua) -> mlua::Result<A>,
    ) -> Result<[Value; FIELDS], HookError> {
        if !self.script.defines(hook) {
            return Err(HookError::Missing(hook));
        }
        let started = Instant::now();
        self.watch.begin(started);
        let outcome = self.call(hook, arguments, started);
        self.watch.end();
        self.cost = Cost {
            elapsed: started.elapsed(),
            instructions: self.vm.as_ref().map_or(0, Vm::instructions),
        };
        let limits = self.script.limits();
        match outcome {
            Outcome::Returned(mut results) => match results.pop_front() {
                Some(Value::String(kind)) if *kind.as_bytes() == *b"table" => {
                    Ok(std::array::from_fn(|_| {
                        results.pop_front().unwrap_or_default()
                    }))
                }
                Some(Value::String(kind)) if *kind.as_bytes() == *b"missing" => {
                    Err(HookError::Missing(hook))
                }
                kind => Err(wrong(hook, not_a_table(kind))),
            },
            Outcome::Raised(fault) => Err(HookError::Failed(fault)),
            Outcome::Stopped(Stop::Time) => Err(HookError::Timeout {
                limit: limits.timeout,
            }),
            Outcome::Stopped(Stop::Memory) => {
                self.vm = None; // its state is unknown, and a new VM is cheap
                Err(HookError::Memory {
                    limit: limits.memory_bytes,
                })
            }
        }
    }

    fn call<A: IntoLuaMulti>(
        &mut self,
        hook: Hook,
        arguments: impl FnOnce(&Lua) -> mlua::Result<A>,
        started: Instant,
    ) -> Outcome {
        let limits = self.script.limits();
        let (vm, started) = match &mut self.vm {
            Some(vm) => (vm, started),
            vacant @ None => {
                // A new VM must not repeat the random numbers of the one before.
                self.seed = self
                    .seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let source = self.script.source();
                match Vm::new(source, limits.memory_bytes, &self.settings.0, self.seed) {
                    Ok(vm) => (vacant.insert(vm), Instant::now()),
                    Err(error) => return refused(&error),
                }
            }
        };
        let entry = match hook {
            Hook::OnEnqueue => Entry::OnEnqueue,
            Hook::OnFailure => Entry::OnFailure,
        };
        match vm.begin(limits.timeout, started, arguments) {
            Ok(arguments) => vm.call(entry, arguments),
            Err(error) => vm.failed(error),
        }
    }
}

fn table(lua: &Lua, headers: &[(String, String)]) -> mlua::Result<Table> {
    let pairs = headers.iter();
    lua.create_table_from(pairs.map(|(name, value)| (name.as_str(), value.as_str())))
}

/// Returns the outcome of a call for which there is no VM.
fn refused(error: &mlua::Error) -> Outcome {
    if fault::is_memory_error(error) {
        Outcome::Stopped(Stop::Memory)
    } else {
        Outcome::Raised(Fault::parse(&fault::text(error)))
    }
}

fn not_a_table(kind: Option<Value>) -> crate::AnswerError {
    let found = match kind {
        Some(Value::String(kind)) if *kind.as_bytes() != *b"nil" => {
            format!("a {}", kind.to_string_lossy())
        }
        _ => "nil".to_owned(),
    };
    mistake("its answer", found, "a table is expected, as `{}`")
}

const fn wrong(hook: Hook, mistake: crate::AnswerError) -> HookError {
    HookError::Answer { hook, mistake }
}
