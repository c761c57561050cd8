//! Microseconds per call of a hook, beside the same script called in a VM without a sandbox.
//!
//! The floor is mlua as it comes: no limits, no hook, globals that stay, and an answer that is read but not checked.
//! Machines are shared and noisy, so the two are measured in alternating samples, short enough that some of them are
//! not interrupted, and the best sample of each counts.
//!
//! `cargo bench -p fila-lua` prints the table; `-- --quick` takes a tenth of the time.

use std::hint::black_box;
use std::time::Instant;

use fila_lua::{EnqueueInput, FailureInput, Limits, Sandbox, Script};
use mlua::{Function, Lua, Table, Value};

const SCRIPT: &str = r#"
function on_enqueue(msg)
  return {
    fairness_key = msg.headers["tenant"] or "default",
    weight = tonumber(msg.headers["priority"]) or 1,
    throttle_keys = { msg.headers["endpoint"] }
  }
end
function on_failure(msg)
  if msg.attempts >= 3 then
    return { action = "dlq" }
  end
  return { action = "retry", delay_ms = 1000 * msg.attempts }
end
"#;

const TIERS: &str = r#"
local tiers = { gold = 10, silver = 5, bronze = 1 }
function on_enqueue(msg)
  local tenant, region = (msg.headers["tenant"] or ""):match("^(%w+)%-(%w+)$")
  local tier = fila.get("tier:" .. (tenant or "none")) or "bronze"
  return {
    fairness_key = tenant,
    weight = tiers[tier],
    throttle_keys = { "tenant:" .. (tenant or "none"), region and "region:" .. region },
  }
end
"#;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (samples, calls) = if quick { (200, 1_000) } else { (2_000, 1_000) };
    println!("µs per call, best of {samples} alternating samples of {calls} calls\n");
    println!("| hook | plain mlua | fila-lua | ratio |");
    println!("|---|---:|---:|---:|");
    let none = headers(0);
    let few = headers(3);
    let many = headers(20);
    for (name, script, headers) in [
        ("on_enqueue, no headers", SCRIPT, &none),
        ("on_enqueue, 3 headers", SCRIPT, &few),
        ("on_enqueue, 20 headers", SCRIPT, &many),
        ("on_enqueue, patterns and settings, 3 headers", TIERS, &few),
    ] {
        let mut sandbox = sandbox(script);
        let floor = Floor::new(script);
        let input = EnqueueInput {
            headers,
            payload_size: 1000,
            queue: "orders",
        };
        row(
            name,
            samples,
            calls,
            || floor.on_enqueue(&input),
            || {
                black_box(sandbox.on_enqueue(&input)).expect("an honest script");
            },
        );
    }
    let mut sandbox = sandbox(SCRIPT);
    let floor = Floor::new(SCRIPT);
    let input = FailureInput {
        headers: &few,
        id: "0190a5c2-0000-7000-8000-000000000001",
        attempts: 2,
        queue: "orders",
        error: "connection refused",
    };
    row(
        "on_failure, 3 headers",
        samples,
        calls,
        || floor.on_failure(&input),
        || {
            black_box(sandbox.on_failure(&input)).expect("an honest script");
        },
    );
    let start = Instant::now();
    for _ in 0..calls / 10 {
        let mut fresh = self::sandbox(SCRIPT);
        black_box(fresh.on_failure(&input)).expect("an honest script");
    }
    let each = start.elapsed().as_secs_f64() * 1e6 / (calls / 10) as f64;
    println!(
        "\nA sandbox with its first call takes {each:.0} µs, with compiling the script twice."
    );
}

fn row(name: &str, samples: usize, calls: usize, mut plain: impl FnMut(), mut boxed: impl FnMut()) {
    let (mut plain_us, mut boxed_us) = (f64::MAX, f64::MAX);
    for _ in 0..samples {
        plain_us = plain_us.min(time(calls, &mut plain));
        boxed_us = boxed_us.min(time(calls, &mut boxed));
    }
    println!(
        "| {name} | {plain_us:.2} | {boxed_us:.2} | {:.1} |",
        boxed_us / plain_us
    );
}

fn time(calls: usize, call: &mut impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    start.elapsed().as_secs_f64() * 1e6 / calls as f64
}

fn headers(count: usize) -> Vec<(String, String)> {
    let known = [
        ("tenant", "acme-eu"),
        ("priority", "7"),
        ("endpoint", "/v1/orders"),
    ];
    let known = known.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let more = (0..).map(|n| (format!("x-header-{n}"), format!("value {n}")));
    known.into_iter().chain(more).take(count).collect()
}

fn settings(key: &str) -> Option<String> {
    (key == "tier:acme").then(|| "gold".to_owned())
}

fn sandbox(source: &str) -> Sandbox {
    let script = Script::compile(source, Limits::default()).expect("a good script");
    Sandbox::new(&script, settings)
}

/// The same script without a sandbox.
struct Floor {
    lua: Lua,
    on_enqueue: Option<Function>,
    on_failure: Option<Function>,
}

impl Floor {
    fn new(source: &str) -> Self {
        let lua = Lua::new();
        let fila = lua.create_table().expect("memory");
        let get = lua
            .create_function(|_, key: String| Ok(settings(&key)))
            .expect("memory");
        fila.set("get", get).expect("memory");
        lua.globals().set("fila", fila).expect("memory");
        lua.load(source).exec().expect("a good script");
        Self {
            on_enqueue: lua.globals().get("on_enqueue").expect("a function or nil"),
            on_failure: lua.globals().get("on_failure").expect("a function or nil"),
            lua,
        }
    }

    fn message(&self, headers: &[(String, String)]) -> Table {
        let message = self.lua.create_table().expect("memory");
        let pairs = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let headers = self.lua.create_table_from(pairs).expect("memory");
        message.raw_set("headers", headers).expect("memory");
        message
    }

    fn on_enqueue(&self, input: &EnqueueInput<'_>) {
        let message = self.message(input.headers);
        message
            .raw_set("payload_size", input.payload_size)
            .expect("memory");
        message.raw_set("queue", input.queue).expect("memory");
        let hook = self.on_enqueue.as_ref().expect("the script has it");
        let answer: Table = hook.call(message).expect("an honest script");
        for field in ["fairness_key", "weight", "throttle_keys"] {
            black_box(answer.raw_get::<Value>(field).expect("a field"));
        }
    }

    fn on_failure(&self, input: &FailureInput<'_>) {
        let message = self.message(input.headers);
        message.raw_set("id", input.id).expect("memory");
        message.raw_set("attempts", input.attempts).expect("memory");
        message.raw_set("queue", input.queue).expect("memory");
        message.raw_set("error", input.error).expect("memory");
        let hook = self.on_failure.as_ref().expect("the script has it");
        let answer: Table = hook.call(message).expect("an honest script");
        for field in ["action", "delay_ms"] {
            black_box(answer.raw_get::<Value>(field).expect("a field"));
        }
    }
}
