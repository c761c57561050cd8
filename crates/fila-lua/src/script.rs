//! A script that compiles and loads.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use mlua::Value;

use crate::fault;
use crate::meter::{Stop, processor_time};
use crate::vm::{Entry, Outcome, Vm};
use crate::{
    Cost, EnqueueInput, FailureAnswer, FailureInput, Fault, Hook, HookError, Limits, Sandbox,
    Scheduling, ScriptError, Settings,
};

/// Compiling may take this many times the limit of a call. It happens once for each sandbox.
const COMPILE_FACTOR: u32 = 10;

/// A script that compiles, loads within its limits, and defines a hook.
///
/// Cheap to clone and to send to the threads that make a [`Sandbox`] of it.
#[derive(Clone, Debug)]
pub struct Script {
    inner: Arc<CheckedScript>,
}

#[derive(Debug)]
struct CheckedScript {
    source: String,
    limits: Limits,
    on_enqueue: bool,
    on_failure: bool,
}

impl Script {
    /// Compiles a script and loads it once, with empty runtime configuration.
    ///
    /// # Errors
    /// If the source is too long or not Lua, if loading it fails or exceeds a limit, or if it defines no hook.
    pub fn compile(source: impl Into<String>, limits: Limits) -> Result<Self, ScriptError> {
        let source = source.into();
        if source.len() > limits.source_bytes {
            return Err(ScriptError::TooLong {
                bytes: source.len(),
                bytes_max: limits.source_bytes,
            });
        }
        let memory = ScriptError::Memory {
            limit: limits.memory_bytes,
        };
        let settings: Rc<dyn Settings> = Rc::new(|_: &str| None);
        let (start, start_of_thread) = (Instant::now(), processor_time());
        let vm = match Vm::new(&source, limits.memory_bytes, &settings, 0) {
            Ok(vm) => vm,
            Err(error) if fault::is_memory_error(&error) => return Err(memory),
            Err(error) => return Err(ScriptError::Syntax(Fault::parse(&fault::text(&error)))),
        };
        // Nothing interrupts the compiler, and some sources take it long.
        let compile_max = limits.timeout.saturating_mul(COMPILE_FACTOR);
        // Measured in the thread's own time, as calls are: on a busy machine the thread may wait for long.
        let took = processor_time().zip(start_of_thread);
        let took = took.map_or_else(|| start.elapsed(), |(end, start)| end.saturating_sub(start));
        if took > compile_max {
            return Err(ScriptError::Timeout { limit: compile_max });
        }
        let outcome = match vm.begin(limits.timeout, Instant::now(), |_| Ok(())) {
            Ok(()) => vm.call(Entry::Defines, ()),
            Err(error) => vm.failed(error),
        };
        let results = match outcome {
            Outcome::Returned(results) => results,
            Outcome::Raised(fault) => return Err(ScriptError::Failed(fault)),
            Outcome::Stopped(Stop::Memory) => return Err(memory),
            Outcome::Stopped(Stop::Time) => {
                return Err(ScriptError::Timeout {
                    limit: limits.timeout,
                });
            }
        };
        let is_defined = |index| results.get(index) == Some(&Value::Boolean(true));
        let (on_enqueue, on_failure) = (is_defined(0), is_defined(1));
        if !on_enqueue && !on_failure {
            return Err(ScriptError::NoHook);
        }
        Ok(Self {
            inner: Arc::new(CheckedScript {
                source,
                limits,
                on_enqueue,
                on_failure,
            }),
        })
    }

    /// Returns whether the script defines this hook.
    pub fn defines(&self, hook: Hook) -> bool {
        match hook {
            Hook::OnEnqueue => self.inner.on_enqueue,
            Hook::OnFailure => self.inner.on_failure,
        }
    }

    /// Returns the source.
    pub fn source(&self) -> &str {
        &self.inner.source
    }

    /// Returns the limits of its calls and answers.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Calls `on_enqueue` once, in a sandbox of its own, and measures the call.
    pub fn try_enqueue(
        &self,
        input: &EnqueueInput<'_>,
        settings: impl Settings,
    ) -> Trial<Scheduling> {
        let mut sandbox = Sandbox::with_seed(self, settings, 0);
        let result = sandbox.on_enqueue(input);
        let cost = sandbox.cost();
        Trial { result, cost }
    }

    /// Calls `on_failure` once, in a sandbox of its own, and measures the call.
    pub fn try_failure(
        &self,
        input: &FailureInput<'_>,
        settings: impl Settings,
    ) -> Trial<FailureAnswer> {
        let mut sandbox = Sandbox::with_seed(self, settings, 0);
        let result = sandbox.on_failure(input);
        let cost = sandbox.cost();
        Trial { result, cost }
    }
}

/// The result of trying a hook.
#[derive(Clone, Debug)]
pub struct Trial<T> {
    /// Its answer.
    pub result: Result<T, HookError>,
    /// The cost of the call, without making the sandbox.
    pub cost: Cost,
}
