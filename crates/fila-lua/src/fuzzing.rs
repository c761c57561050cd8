//! The entry point of the fuzzer and of the test that replays its corpus. It takes a script or the values that a hook has
//! returned, and panics if the result breaks a promise.
//!
//! Not part of the interface. It is in this crate because no other one sees the values before they are checked.

use std::collections::BTreeSet;
use std::time::Duration;

use mlua::{Lua, Value};

use crate::{
    EnqueueInput, FailureAction, FailureAnswer, FailureInput, Hook, HookError, Limits, Scheduling,
    Script,
};

/// The longest error about an answer or a script, in bytes.
const WRONG_BYTES_MAX: usize = 1_024;

/// The deepest nesting of tables.
const DEPTH_MAX: usize = 4;

/// Reads `input` as the answer of a hook or as a script, and checks the result.
///
/// `\0e` begins the fields that `on_enqueue` returned, `\0f` those of `on_failure`, as encoded values. Any other input is a
/// script, whose hooks are called.
///
/// # Panics
/// If an answer exceeds a limit, if the error of a rejected one is empty or too long, or if a hook gives two
/// different answers to the same message.
///
/// # Errors
/// If the script or an answer of its hooks is rejected: the text of the error.
pub fn hook_result(input: &[u8]) -> Result<(), String> {
    // Short, so that the fuzzer does not spend its time in endless loops.
    let limits = Limits {
        timeout: Duration::from_millis(2),
        memory_bytes: 256 << 10,
        ..Limits::default()
    };
    let tried = match input {
        [0, b'e', values @ ..] => with_values(values, |values| {
            let mut answer = Scheduling::parse(values, &limits);
            check_scheduling(&answer, &limits);
            answer.keep_groups(|path| path.len() % 2 == 0);
            check_scheduling(&answer, &limits);
            usable(&answer)
        }),
        [0, b'f', values @ ..] => with_values(values, |values| {
            let [a, b, ..] = values;
            let answer = FailureAnswer::parse([a, b], &limits);
            let answer = answer.map_err(|error| error.to_string())?;
            check_failure(&answer, &limits);
            Ok(())
        }),
        script => run(&String::from_utf8_lossy(script), &limits),
    };
    if let Err(wrong) = &tried {
        assert!(!wrong.is_empty(), "a refusal without a word");
        assert!(wrong.len() <= WRONG_BYTES_MAX, "{} bytes", wrong.len());
    }
    tried
}

fn check_scheduling(answer: &Scheduling, limits: &Limits) {
    assert!(answer.fairness_key.len() <= limits.fairness_key_bytes);
    assert!(std::str::from_utf8(&answer.fairness_key).is_ok());
    assert!((1..=limits.weight).contains(&answer.weight), "{answer:?}");
    assert!(answer.throttle_keys.len() <= limits.throttle_keys);
    let lengths = answer.throttle_keys.iter().map(String::len);
    assert!(lengths.min() != Some(0), "{answer:?}");
    let lengths = answer.throttle_keys.iter().map(String::len);
    assert!(lengths.max().unwrap_or(0) <= limits.throttle_key_bytes);
    let different: BTreeSet<&String> = answer.throttle_keys.iter().collect();
    assert_eq!(different.len(), answer.throttle_keys.len(), "{answer:?}");
    assert!(answer.weights.len() <= limits.weights, "{answer:?}");
    let (mut weights, mut paths) = (answer.weights.iter(), answer.weights.iter());
    assert!(weights.all(|it| (1..=limits.weight).contains(&it.weight)));
    assert!(paths.all(|it| (1..=limits.fairness_key_bytes).contains(&it.path.len())));
    assert!(
        answer
            .weights
            .is_sorted_by(|one, next| one.path < next.path)
    );
}

/// Returns the mistake in an answer that cannot be used as it is.
fn usable(answer: &Scheduling) -> Result<(), String> {
    match answer.mistake() {
        Some(mistake) => Err(mistake.to_string()),
        None => Ok(()),
    }
}

fn check_failure(answer: &FailureAnswer, limits: &Limits) {
    match answer.action {
        FailureAction::Retry { delay } => assert!(delay <= limits.delay, "{answer:?}"),
        FailureAction::DeadLetter => {}
    }
}

/// Compiles a script and calls each of its hooks twice.
fn run(source: &str, limits: &Limits) -> Result<(), String> {
    let script = Script::compile(source, limits.clone()).map_err(|error| error.to_string())?;
    let headers = [("tenant".to_owned(), "acme".to_owned())];
    let settings = |key: &str| (!key.is_empty()).then(|| key.to_owned());
    if script.defines(Hook::OnEnqueue) {
        let input = EnqueueInput {
            headers: &headers,
            payload_size: 7,
            queue: "orders",
        };
        let answer = twice(|| script.try_enqueue(&input, settings).result)?;
        check_scheduling(&answer, limits);
        usable(&answer)?;
    }
    if script.defines(Hook::OnFailure) {
        let input = FailureInput {
            headers: &headers,
            id: "an id",
            attempts: 3,
            queue: "orders",
            error: "boom",
        };
        let answer = twice(|| script.try_failure(&input, settings).result)?;
        check_failure(&answer, limits);
    }
    Ok(())
}

/// Calls a hook twice, in sandboxes of the same seed: both answers are equal unless one ran out of time or memory.
fn twice<T: PartialEq + std::fmt::Debug>(
    ask: impl Fn() -> Result<T, HookError>,
) -> Result<T, String> {
    let ran_out = |answer: &Result<T, HookError>| {
        let error = answer.as_ref().err();
        error.is_some_and(|error| {
            matches!(error, HookError::Timeout { .. } | HookError::Memory { .. })
        })
    };
    let (first, second) = (ask(), ask());
    if !ran_out(&first) && !ran_out(&second) {
        assert_eq!(first, second, "another answer to the same question");
    }
    first.map_err(|error| error.to_string())
}

/// Decodes four values from these bytes, and passes them to `check`.
fn with_values(
    bytes: &[u8],
    check: impl FnOnce([Value; 4]) -> Result<(), String>,
) -> Result<(), String> {
    thread_local! {
        static LUA: Lua = Lua::new();
    }
    LUA.with(|lua| {
        let mut rest = bytes;
        let made = std::array::from_fn(|_| value(lua, &mut rest, 0));
        check(made)
    })
}

/// Takes one value: a letter for its kind, then its content. Missing values are nil.
fn value(lua: &Lua, rest: &mut &[u8], depth: usize) -> Value {
    let made = match byte(rest) {
        b't' => Ok(Value::Boolean(true)),
        b'i' => Ok(Value::Integer(i64::from_be_bytes(eight(rest)))),
        b'd' => Ok(Value::Integer(decimal(rest))),
        b'n' => Ok(Value::Number(f64::from_be_bytes(eight(rest)))),
        // One byte gives the length; `S` repeats the text 256 times, to reach the limits.
        b's' => lua.create_string(text(rest)).map(Value::String),
        b'S' => {
            let text = text(rest).repeat(256);
            lua.create_string(text).map(Value::String)
        }
        b'{' if depth < DEPTH_MAX => table(lua, rest, depth + 1),
        b'f' => lua.create_function(|_, ()| Ok(())).map(Value::Function),
        _ => Ok(Value::Nil),
    };
    made.expect("there is memory for a few values")
}

/// Takes pairs up to a closing brace.
fn table(lua: &Lua, rest: &mut &[u8], depth: usize) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    while !rest.is_empty() {
        if rest[0] == b'}' {
            byte(rest);
            break;
        }
        let (key, value) = (value(lua, rest, depth), value(lua, rest, depth));
        // nil and NaN cannot be keys.
        let _ = table.raw_set(key, value);
    }
    Ok(Value::Table(table))
}

fn byte(rest: &mut &[u8]) -> u8 {
    let first = rest.split_off_first();
    first.copied().unwrap_or_default()
}

fn eight(rest: &mut &[u8]) -> [u8; 8] {
    std::array::from_fn(|_| byte(rest))
}

fn text<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let length = usize::from(byte(rest)).min(rest.len());
    rest.split_off(..length).unwrap_or_default()
}

/// Takes digits.
fn decimal(rest: &mut &[u8]) -> i64 {
    let mut number = 0_i64;
    while let Some(digit @ b'0'..=b'9') = rest.first() {
        number = number
            .saturating_mul(10)
            .saturating_add(i64::from(digit - b'0'));
        byte(rest);
    }
    number
}
