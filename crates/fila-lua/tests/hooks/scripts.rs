//! A script before its first call: whether it is valid, its hooks, and trials.

use std::time::Duration;

use fila_lua::{Hook, HookError, Limits, Sandbox, Scheduling, Script, ScriptError};

use crate::{EMPTY, RETRY, SCHEDULE, compile, enqueue, failure, returning};

#[test]
fn mistakes_are_shown_with_their_line() {
    let mistake = Script::compile(
        "function on_enqueue(msg)\n  return {\nend",
        Limits::default(),
    )
    .unwrap_err();
    assert_eq!(
        mistake.to_string(),
        "the script is not valid Lua: line 3: unexpected symbol near 'end'"
    );
    let mistake = Script::compile("\n\nerror('no')", Limits::default()).unwrap_err();
    assert_eq!(
        mistake.to_string(),
        "the script failed while it was loaded: line 3: no"
    );
    let mistake =
        enqueue("function on_enqueue(msg)\n  return msg.nothing.x\nend", &[]).unwrap_err();
    assert_eq!(
        mistake.to_string(),
        "the hook failed: line 2: attempt to index a nil value (field 'nothing')"
    );
    let mistake = enqueue(
        "function on_enqueue(msg)\n\n  string.find('x', '[')\nend",
        &[],
    )
    .unwrap_err();
    assert_eq!(
        mistake.to_string(),
        "the hook failed: line 3: malformed pattern (missing ']')"
    );
}

#[test]
fn a_script_without_hooks_is_refused() {
    for source in ["", "local function on_enqueue() end", "on_enqueue = 1"] {
        let refusal = Script::compile(source, Limits::default()).unwrap_err();
        assert_eq!(refusal, ScriptError::NoHook);
        assert!(
            refusal
                .to_string()
                .contains("neither `on_enqueue` nor `on_failure`")
        );
    }
}

#[test]
fn a_script_that_is_too_long_is_refused() {
    let source = "-".repeat((64 << 10) + 1);
    let refusal = Script::compile(source, Limits::default()).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the script has 65537 bytes; at most 65536 are allowed"
    );
}

#[test]
fn a_script_knows_its_hooks() {
    let script = compile(SCHEDULE);
    assert!(script.defines(Hook::OnEnqueue));
    assert!(!script.defines(Hook::OnFailure));
    assert_eq!(
        failure(SCHEDULE, 1),
        Err(HookError::Missing(Hook::OnFailure))
    );
    assert!(compile(RETRY).defines(Hook::OnFailure));
}

#[test]
fn a_hook_that_is_defined_only_sometimes_is_missing() {
    let source = "if not fila.get('off') then function on_enqueue() return {} end end";
    let script = compile(source);
    let mut sandbox = Sandbox::new(&script, |_: &str| Some(String::new()));
    assert_eq!(
        sandbox.on_enqueue(&EMPTY),
        Err(HookError::Missing(Hook::OnEnqueue))
    );
}

#[test]
fn a_trial_says_what_it_cost() {
    let script = compile(&returning(
        "(function() for i = 1, 10000 do end return {} end)()",
    ));
    let trial = script.try_enqueue(&EMPTY, |_: &str| None);
    assert_eq!(trial.result, Ok(Scheduling::default()));
    assert!(
        (10_000..11_000).contains(&trial.cost.instructions),
        "{:?}",
        trial.cost
    );
    assert!(trial.cost.elapsed > Duration::ZERO);
}
