//! One Lua VM for one script.
//!
//! The code that can run for long, and the mechanism that ends it:
//!
//! | code | ended by |
//! |---|---|
//! | instructions of the script and of `library.lua` | a hook every [`INTERVAL`] instructions |
//! | calls, also those that C makes through metamethods | the same hook, at every call |
//! | slow instructions, as comparing long strings | the hook, then at every instruction |
//! | our functions in Rust | their own checks of the meter |
//! | stock functions in C | they make no calls that the hook does not see, and the memory limit bounds their loops |
//! | finalizers, closing values, weak tables | there are none |
//!
//! **Always holds.** No function that a script can reach changes state that outlives the call. The sandbox drops a VM that
//! has run out of memory.

use std::rc::Rc;
use std::time::{Duration, Instant};

use mlua::chunk::ChunkMode;
use mlua::debug::DebugEvent;
use mlua::{
    Error, Function, HookTriggers, IntoLuaMulti, Lua, LuaOptions, MultiValue, StdLib, Value,
    VmState,
};

use crate::Settings;
use crate::fault;
use crate::library;
use crate::meter::{Meter, Pace, Stop};

/// The prefix of a position in the script, in a message of Lua.
pub(crate) const CHUNK_PREFIX: &str = "script:";

/// Instructions between two checks of the clock. Small, since a single instruction may take milliseconds: comparing two
/// strings of zero bytes takes a step for each byte.
const INTERVAL: u32 = 16;

#[derive(Debug)]
pub(crate) struct Vm {
    lua: Lua,
    meter: Rc<Meter>,
    pcall: Function,
    defines: Function,
    on_enqueue: Function,
    on_failure: Function,
    script: Function,
    /// Bytes of the VM without a script.
    memory_base: usize,
    /// The limit of its bytes, with the script.
    memory_max: usize,
}

/// The outcome of a call of a VM.
pub(crate) enum Outcome {
    Returned(MultiValue),
    Stopped(Stop),
    Raised(crate::Fault),
}

impl Vm {
    /// Makes a VM and compiles the script, without running it.
    pub(crate) fn new(
        source: &str,
        memory_bytes: usize,
        settings: &Rc<dyn Settings>,
        seed: u64,
    ) -> Result<Self, Error> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::UTF8;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        let meter = Rc::new(Meter::new());
        let stock = lua.globals();
        let pcall = stock.get("pcall")?;
        let randomseed: Function = stock.get::<mlua::Table>("math")?.get("randomseed")?;
        randomseed.call::<()>(seed as i64)?;
        let ours = library::create(&lua, &meter, settings, memory_bytes)?;
        let (defines, on_enqueue, on_failure) = lua
            .load(include_str!("library.lua"))
            .set_name("=library")
            .set_mode(ChunkMode::Text)
            .call((stock, ours))?;
        lua.gc_collect()?;
        let memory_base = lua.used_memory();
        let memory_max = memory_base.saturating_add(memory_bytes);
        lua.set_memory_limit(memory_max)?;
        // The script's globals are an argument of its chunk, so that each call can have its own; the chunk's environment
        // stays empty. The prefix is on the script's first line, so that Lua counts the lines as the author does.
        let script = lua
            .load(format!("local _ENV = ...; {source}"))
            .set_name(format!("={}", CHUNK_PREFIX.trim_end_matches(':')))
            .set_mode(ChunkMode::Text)
            .set_environment(lua.create_table()?)
            .into_function()?;
        watch(&lua, &meter, INTERVAL)?;
        Ok(Self {
            lua,
            meter,
            pcall,
            defines,
            on_enqueue,
            on_failure,
            script,
            memory_base,
            memory_max,
        })
    }

    pub(crate) fn instructions(&self) -> u64 {
        self.meter.instructions()
    }

    /// Returns the bytes of the script and its data, with garbage that is not collected yet.
    pub(crate) fn memory(&self) -> usize {
        self.lua.used_memory().saturating_sub(self.memory_base)
    }

    /// Begins a call, and makes its arguments from the message.
    ///
    /// Meanwhile there is no memory limit. With one, mlua guards each of its steps by a call in protected mode, and the hook
    /// fires for it; for a few headers that costs more than the call. The broker limits the size of messages elsewhere.
    pub(crate) fn begin<T>(
        &self,
        timeout: Duration,
        now: Instant,
        prepare: impl FnOnce(&Lua) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.meter.begin(now, timeout);
        if self.meter.is_wary() {
            watch(&self.lua, &self.meter, INTERVAL)?;
        }
        self.lua.set_memory_limit(0)?;
        let prepared = prepare(&self.lua);
        self.lua.set_memory_limit(self.memory_max)?;
        prepared
    }

    /// Calls one of the functions of `library.lua` with the script and these arguments.
    pub(crate) fn call(&self, entry: Entry, arguments: impl IntoLuaMulti) -> Outcome {
        let entry = match entry {
            Entry::Defines => &self.defines,
            Entry::OnEnqueue => &self.on_enqueue,
            Entry::OnFailure => &self.on_failure,
        };
        // Stock `pcall`: mlua's own call would run `__tostring` of error objects, and make tracebacks.
        let called = self
            .pcall
            .call::<MultiValue>((entry, &self.script, arguments));
        match called {
            Ok(mut results) => match results.pop_front() {
                Some(Value::Boolean(true)) => Outcome::Returned(results),
                _ => self.raised(&results.pop_front().unwrap_or_default()),
            },
            Err(error) => self.failed(error),
        }
    }

    /// Converts an error that mlua returned.
    pub(crate) fn failed(&self, error: Error) -> Outcome {
        self.raised(&Value::Error(Box::new(error)))
    }

    fn raised(&self, raised: &Value) -> Outcome {
        if let Some(stop) = self.meter.stopped() {
            Outcome::Stopped(stop)
        } else if fault::is_memory(raised) {
            Outcome::Stopped(Stop::Memory)
        } else {
            Outcome::Raised(fault::of(raised))
        }
    }
}

/// A function of `library.lua`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    Defines,
    OnEnqueue,
    OnFailure,
}

/// Checks the meter at every call and every `interval` instructions.
fn watch(lua: &Lua, meter: &Rc<Meter>, interval: u32) -> Result<(), Error> {
    let triggers = HookTriggers::new()
        .on_calls()
        .every_nth_instruction(interval);
    meter.set_wary(interval == 1);
    let meter = Rc::clone(meter);
    lua.set_global_hook(triggers, move |lua, debug| {
        if matches!(debug.event(), DebugEvent::Count) {
            meter.count(interval);
        }
        let pace = meter.pace(Instant::now()).map_err(Error::external)?;
        if pace == Pace::Slow && interval > 1 {
            watch(lua, &meter, 1)?;
        }
        Ok(VmState::Continue)
    })
}
