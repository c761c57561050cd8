//! Honest scripts and their answers; answers that are none.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use fila_lua::{
    EnqueueInput, FailureAction, FailureInput, Hook, HookError, Limits, Sandbox, Scheduling,
    Script, ScriptError,
};

fn compile(source: &str) -> Script {
    // Answers matter here, and the machine may be busy.
    let mut limits = Limits::default();
    limits.timeout = Duration::from_secs(10);
    Script::compile(source, limits).expect("a good script")
}

fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = pairs
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()));
    owned.collect()
}

fn enqueue(source: &str, pairs: &[(&str, &str)]) -> Result<Scheduling, HookError> {
    let input = EnqueueInput {
        headers: &headers(pairs),
        payload_size: 1234,
        queue: "orders",
    };
    Sandbox::new(&compile(source), |_: &str| None).on_enqueue(&input)
}

fn failure(source: &str, attempts: u32) -> Result<FailureAction, HookError> {
    let input = FailureInput {
        headers: &headers(&[("tenant", "acme")]),
        id: "0190a5c2-0000-7000-8000-000000000001",
        attempts,
        queue: "orders",
        error: "connection refused",
    };
    Sandbox::new(&compile(source), |_: &str| None).on_failure(&input)
}

fn returning(answer: &str) -> String {
    format!("function on_enqueue(msg) return {answer} end")
}

fn text(scheduling: &Scheduling) -> &str {
    std::str::from_utf8(&scheduling.fairness_key).expect("text")
}

const SCHEDULE: &str = r#"
function on_enqueue(msg)
  -- msg.headers       — table of string key-value pairs
  -- msg.payload_size  — byte count of the payload
  -- msg.queue         — queue name

  return {
    fairness_key = msg.headers["tenant"] or "default",
    weight = tonumber(msg.headers["priority"]) or 1,
    throttle_keys = { msg.headers["endpoint"] }
  }
end
"#;

const RETRY: &str = r#"
function on_failure(msg)
  if msg.attempts >= 3 then
    return { action = "dlq" }
  end
  return { action = "retry", delay_ms = 1000 * msg.attempts }
end
"#;

#[test]
fn the_example_for_enqueueing_schedules_by_headers() {
    let all = enqueue(
        SCHEDULE,
        &[("tenant", "acme"), ("priority", "7"), ("endpoint", "api")],
    )
    .unwrap();
    assert_eq!(text(&all), "acme");
    assert_eq!(all.weight, 7);
    assert_eq!(all.throttle_keys, ["api"]);
}

#[test]
fn the_example_for_enqueueing_does_without_headers() {
    assert_eq!(enqueue(SCHEDULE, &[]).unwrap(), Scheduling::default());
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let default = Scheduling::default();
    assert_eq!(text(&default), "default");
    assert_eq!(default.weight, 1);
    assert!(default.throttle_keys.is_empty());
    for nothing in [
        "{}",
        "{ fairness_key = nil, weight = nil, throttle_keys = nil }",
        "{ throttle_keys = { nil } }",
    ] {
        assert_eq!(enqueue(&returning(nothing), &[]).unwrap(), default);
    }
}

#[test]
fn the_example_for_throttling_works() {
    let source = r#"
        function on_enqueue(msg)
          return {
            fairness_key = msg.headers["tenant"],
            throttle_keys = { msg.headers["api_endpoint"] }
          }
        end"#;
    let found = enqueue(source, &[("tenant", "acme"), ("api_endpoint", "/v1")]).unwrap();
    assert_eq!(
        (text(&found), found.throttle_keys.as_slice()),
        ("acme", &["/v1".to_owned()][..])
    );
}

#[test]
fn the_example_for_failures_retries_and_gives_up() {
    let delay = Duration::from_millis(1000);
    assert_eq!(failure(RETRY, 1).unwrap(), FailureAction::Retry { delay });
    assert_eq!(
        failure(RETRY, 2).unwrap(),
        FailureAction::Retry { delay: 2 * delay }
    );
    assert_eq!(failure(RETRY, 3).unwrap(), FailureAction::DeadLetter);
}

#[test]
fn a_hook_is_told_everything() {
    let source = returning(
        "{ fairness_key = msg.queue .. ' ' .. msg.payload_size .. ' ' .. math.type(msg.payload_size) }",
    );
    assert_eq!(text(&enqueue(&source, &[]).unwrap()), "orders 1234 integer");
    let source = "function on_failure(msg)
        assert(msg.headers.tenant == 'acme' and msg.id == '0190a5c2-0000-7000-8000-000000000001')
        assert(msg.queue == 'orders' and msg.error == 'connection refused' and msg.attempts == 4)
        return { action = 'retry' }
    end";
    assert_eq!(
        failure(source, 4).unwrap(),
        FailureAction::Retry {
            delay: Duration::ZERO
        }
    );
}

#[test]
fn settings_are_read_when_they_are_asked_for() {
    let script = compile(
        "local limit = fila.get('limit') or 'none'
        function on_enqueue(msg)
            assert(fila.get('missing') == nil and fila.get('\\255') == nil)
            return { fairness_key = limit .. '/' .. fila.get('rate_limit:tenant_a') }
        end",
    );
    let mut sandbox = Sandbox::new(&script, |key: &str| match key {
        "limit" => Some("5".to_owned()),
        "rate_limit:tenant_a" => Some("10".to_owned()),
        _ => None,
    });
    let input = EnqueueInput {
        headers: &[],
        payload_size: 0,
        queue: "orders",
    };
    assert_eq!(text(&sandbox.on_enqueue(&input).unwrap()), "5/10");
}

#[test]
fn a_call_leaves_nothing_behind() {
    let script = compile(
        "local upvalue, cache = 0, {}
        count = 0
        function on_enqueue(msg)
            upvalue, count = upvalue + 1, count + 1
            cache[#cache + 1] = 'x'
            leaked = (leaked or 0) + 1
            _G.other = (_G.other or 0) + 1
            local seen = table.concat({ upvalue, count, #cache, leaked, other }, ' ')
            on_enqueue = nil
            return { fairness_key = seen }
        end",
    );
    let mut sandbox = Sandbox::new(&script, |_: &str| None);
    let input = EnqueueInput {
        headers: &[],
        payload_size: 0,
        queue: "orders",
    };
    for _ in 0..3 {
        assert_eq!(text(&sandbox.on_enqueue(&input).unwrap()), "1 1 1 1 1");
    }
}

#[test]
fn scripts_know_nothing_of_each_other() {
    let input = EnqueueInput {
        headers: &[],
        payload_size: 0,
        queue: "orders",
    };
    let one = compile(&returning(
        "(function() shared = 'one' return { fairness_key = shared } end)()",
    ));
    let other = compile(&returning("{ fairness_key = shared }"));
    let mut one = Sandbox::new(&one, |_: &str| None);
    let mut other = Sandbox::new(&other, |_: &str| None);
    for _ in 0..2 {
        assert_eq!(text(&one.on_enqueue(&input).unwrap()), "one");
        assert_eq!(text(&other.on_enqueue(&input).unwrap()), "default");
    }
}

#[test]
fn a_script_can_be_shared_between_threads() {
    fn is_shared<T: Send + Sync + Clone>(_: &T) {}
    let script = compile(SCHEDULE);
    is_shared(&script);
    is_shared(&Sandbox::new(&script, |_: &str| None).watch());
}

#[test]
fn chance_is_the_same_for_the_same_seed() {
    let script = compile(&returning(
        "{ fairness_key = tostring(math.random(1 << 40)) }",
    ));
    let input = EnqueueInput {
        headers: &[],
        payload_size: 0,
        queue: "orders",
    };
    let numbers = |mut sandbox: Sandbox| -> Vec<Scheduling> {
        (0..3)
            .map(|_| sandbox.on_enqueue(&input).unwrap())
            .collect()
    };
    let first = numbers(Sandbox::with_seed(&script, |_: &str| None, 7));
    assert_eq!(
        numbers(Sandbox::with_seed(&script, |_: &str| None, 7)),
        first
    );
    assert_ne!(
        numbers(Sandbox::with_seed(&script, |_: &str| None, 8)),
        first
    );
    assert_ne!(first[0], first[1]);
}

#[test]
fn a_sandbox_goes_on_after_every_kind_of_failure() {
    let script = Script::compile(
        "function on_enqueue(msg)
            local how = msg.headers.how
            if how == 'spin' then while true do end end
            if how == 'grow' then return ('x'):rep(1 << 30) end
            if how == 'fill' then local t = {} for i = 1, 1 << 20 do t[i] = { i } end end
            if how == 'raise' then error('no') end
            return { fairness_key = how }
        end",
        Limits::default(),
    )
    .unwrap();
    let mut sandbox = Sandbox::new(&script, |_: &str| None);
    for how in [
        "ok", "spin", "ok", "grow", "ok", "fill", "ok", "raise", "ok", "grow", "spin", "raise",
        "ok",
    ] {
        let result = sandbox.on_enqueue(&EnqueueInput {
            headers: &headers(&[("how", how)]),
            payload_size: 0,
            queue: "orders",
        });
        match how {
            "ok" => assert_eq!(text(&result.unwrap()), "ok"),
            "spin" => assert!(
                matches!(result, Err(HookError::Timeout { .. })),
                "{result:?}"
            ),
            "grow" => assert!(
                matches!(result, Err(HookError::Memory { .. })),
                "{result:?}"
            ),
            "fill" => assert!(
                matches!(
                    result,
                    Err(HookError::Memory { .. } | HookError::Timeout { .. })
                ),
                "{result:?}"
            ),
            _ => assert!(matches!(result, Err(HookError::Failed(_))), "{result:?}"),
        }
    }
}

#[test]
fn errors_can_be_caught_with_their_values() {
    let source = returning(
        "(function()
            local ok, err = pcall(error, { code = 7 })
            local ok2, err2 = pcall(string.find, 'a', '[')
            local ok3, err3 = pcall(string.gsub, 'a', 'a', function() error({ code = 8 }) end)
            return { fairness_key = tostring(ok) .. err.code .. ' ' .. err2 .. ' ' .. err3.code }
        end)()",
    );
    assert_eq!(
        text(&enqueue(&source, &[]).unwrap()),
        "false7 script:3: malformed pattern (missing ']') 8"
    );
}

#[test]
fn the_library_works_as_in_stock_lua() {
    let source = r##"
    local Class = {} Class.__index = Class
    function Class.new(n) return setmetatable({ n = n }, Class) end
    function Class:twice() return self.n * 2 end
    Class.__eq = function(a, b) return a.n == b.n end
    Class.__tostring = function(a) return "Class(" .. a.n .. ")" end
    function on_enqueue(msg)
        local a = Class.new(21)
        assert(a:twice() == 42 and a == Class.new(21) and tostring(a) == "Class(21)" and getmetatable(a) == Class)
        assert(string.format("%s %5.1f %d %q", a, 1.25, 3, "x") == 'Class(21)   1.2 3 "x"')
        assert(tostring({}) == "table" and tostring(print) == "nil" and tostring(pcall) == "function")
        assert(getmetatable(setmetatable({}, { __metatable = "mine" })) == "mine")
        assert(not pcall(setmetatable, setmetatable({}, { __metatable = 1 }), {}))
        local t = { 3, 1, 2 }
        table.sort(t) assert(table.concat(t, ",") == "1,2,3")
        table.sort(t, function(x, y) return x > y end) assert(table.concat(t, ",") == "3,2,1")
        table.insert(t, 1, 9) table.insert(t, 0) assert(table.concat(t, ",") == "9,3,2,1,0")
        assert(table.remove(t, 1) == 9 and table.remove(t) == 0 and table.concat(t, ",") == "3,2,1")
        assert(table.remove({}) == nil and #table.pack(table.unpack({ 1, 2, 3 })) == 3)
        assert(not pcall(table.insert, t, 9, 1) and not pcall(table.insert, t) and not pcall(table.remove, t, 9))
        assert(table.concat({ 1, 2.5, "x" }, "-", 2, 3) == "2.5-x" and table.concat({}, "x") == "")
        assert(("x"):rep(3, ",") == "x,x,x" and ("x"):rep(0) == "" and ("x"):rep(-1) == "")
        assert(("Hello"):upper() == "HELLO" and ("%d"):format(7) == "7" and #"abc" == 3 and ("a"):byte() == 97)
        assert("10" + 5 == 15 and 10 .. "" == "10" and tonumber("0x10") == 16 and tonumber("z", 36) == 35)
        assert(utf8.len("äö") == 2 and math.floor(2.5) == 2 and select("#", nil, nil) == 2)
        assert(("a.b.c"):gsub("%.", "/") == "a/b/c" and ("abc"):gsub("%w", { a = 1, b = true and "B" }) == "1Bc")
        assert(("k=v, x=y"):gsub("(%w+)=(%w+)", "%2=%1") == "v=k, y=x")
        local parts = {} for word in ("one two"):gmatch("%a+") do parts[#parts + 1] = word end
        assert(#parts == 2 and parts[2] == "two")
        local ok, n = pcall(function(...) return select("#", ...) end, 1, nil, nil) assert(ok and n == 3)
        for k, v in pairs(setmetatable({}, { __pairs = function() return next, { x = 1 } end })) do assert(k == "x") end
        return {}
    end"##;
    assert_eq!(enqueue(source, &[]), Ok(Scheduling::default()));
}

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
    let input = EnqueueInput {
        headers: &[],
        payload_size: 0,
        queue: "orders",
    };
    assert_eq!(
        sandbox.on_enqueue(&input),
        Err(HookError::Missing(Hook::OnEnqueue))
    );
}

#[test]
fn a_trial_says_what_it_cost() {
    let script = compile(&returning(
        "(function() for i = 1, 10000 do end return {} end)()",
    ));
    let input = EnqueueInput {
        headers: &[],
        payload_size: 0,
        queue: "orders",
    };
    let trial = script.try_enqueue(&input, |_: &str| None);
    assert_eq!(trial.result, Ok(Scheduling::default()));
    assert!(
        (10_000..11_000).contains(&trial.cost.instructions),
        "{:?}",
        trial.cost
    );
    assert!(trial.cost.elapsed > Duration::ZERO);
}

#[test]
fn a_call_is_seen_from_outside() {
    let (sender, receiver) = channel();
    let mut limits = Limits::default();
    limits.timeout = Duration::from_secs(1);
    let script = Script::compile("function on_enqueue() while true do end end", limits).unwrap();
    let worker = thread::spawn(move || {
        let mut sandbox = Sandbox::new(&script, |_: &str| None);
        sender.send(sandbox.watch()).unwrap();
        let input = EnqueueInput {
            headers: &[],
            payload_size: 0,
            queue: "orders",
        };
        sandbox.on_enqueue(&input)
    });
    let watch = receiver.recv().unwrap();
    while watch
        .busy_for(Instant::now())
        .is_none_or(|busy| busy < Duration::from_millis(100))
    {
        thread::yield_now();
    }
    assert!(matches!(
        worker.join().unwrap(),
        Err(HookError::Timeout { .. })
    ));
    assert_eq!(watch.busy_for(Instant::now()), None);
}

/// Answers of `on_enqueue` and what is said about them.
#[test]
fn answers_that_are_none_are_explained() {
    for (answer, said) in [
        (
            "nil",
            "returned nil as its answer; a table is expected, as `{}`",
        ),
        (
            "'x'",
            "returned a string as its answer; a table is expected, as `{}`",
        ),
        (
            "{ fairness_key = 7 }",
            "returned 7 as `fairness_key`; a string is expected, or nil for \"default\"",
        ),
        (
            "{ fairness_key = {} }",
            "returned a table as `fairness_key`; a string is expected, or nil for \"default\"",
        ),
        (
            "{ fairness_key = ('x'):rep(257) }",
            "returned a string of 257 bytes as `fairness_key`; at most 256 bytes are allowed",
        ),
        (
            "{ fairness_key = ('ä'):sub(1, 1) }",
            "returned a string that is not UTF-8 as `fairness_key`; a string of UTF-8 is expected",
        ),
        (
            "{ weight = 0 }",
            "returned 0 as `weight`; a whole number from 1 to 65536 is expected, or nil for 1",
        ),
        (
            "{ weight = -1 }",
            "returned -1 as `weight`; a whole number from 1 to 65536 is expected, or nil for 1",
        ),
        (
            "{ weight = 65537 }",
            "returned 65537 as `weight`; a whole number from 1 to 65536 is expected, or nil for 1",
        ),
        (
            "{ weight = 1.5 }",
            "returned 1.5 as `weight`; a whole number from 1 to 65536 is expected, or nil for 1",
        ),
        (
            "{ weight = 0/0 }",
            "returned NaN as `weight`; a whole number from 1 to 65536 is expected, or nil for 1",
        ),
        (
            "{ weight = 1/0 }",
            "returned inf as `weight`; a whole number from 1 to 65536 is expected, or nil for 1",
        ),
        (
            "{ weight = '3' }",
            "returned \"3\" as `weight`; a whole number from 1 to 65536 is expected, or nil for 1",
        ),
        (
            "{ weight = math.maxinteger }",
            "returned 9223372036854775807 as `weight`; a whole number from 1 to 65536 is expected, or nil for 1",
        ),
        (
            "{ throttle_keys = 'a' }",
            "returned \"a\" as `throttle_keys`; a list of strings is expected, or nil for none",
        ),
        (
            "{ throttle_keys = { a = 'b' } }",
            "returned a table with \"a\" as a key as `throttle_keys`; a list of strings is expected, as in `{ \"a\", \"b\" }`",
        ),
        (
            "{ throttle_keys = { 'a', 7 } }",
            "returned 7 as `throttle_keys[2]`; a string of 1 to 256 bytes of UTF-8 is expected",
        ),
        (
            "{ throttle_keys = { '' } }",
            "returned a string of 0 bytes as `throttle_keys[1]`; a string of 1 to 256 bytes of UTF-8 is expected",
        ),
        (
            "{ throttle_keys = { '\\255' } }",
            "returned a string that is not UTF-8 as `throttle_keys[1]`; a string of 1 to 256 bytes of UTF-8 is expected",
        ),
        (
            "{ throttle_keys = { ('x'):rep(257) } }",
            "returned a string of 257 bytes as `throttle_keys[1]`; a string of 1 to 256 bytes of UTF-8 is expected",
        ),
        (
            "{ throttle_keys = table.pack(('abcdefghijklmnopq'):byte(1, -1)) }",
            "returned a table with \"n\" as a key as `throttle_keys`; a list of strings is expected, as in `{ \"a\", \"b\" }`",
        ),
        (
            "{ throttle_keys = {'1','2','3','4','5','6','7','8','9','10','11','12','13','14','15','16','17'} }",
            "returned more than 16 keys as `throttle_keys`; at most 16 are allowed",
        ),
    ] {
        let error = enqueue(&returning(answer), &[]).unwrap_err().to_string();
        if answer.contains("table.pack") {
            // Which of two mistakes comes first is up to the order of the table.
            assert!(error.contains("throttle_keys"), "{error}");
        } else {
            assert_eq!(error, format!("`on_enqueue` {said}"), "{answer}");
        }
    }
}

#[test]
fn answers_at_their_bounds_are_taken() {
    for (answer, weight) in [("1", 1), ("65536", 65_536), ("3.0", 3), ("65536.0", 65_536)] {
        let source = returning(&format!("{{ weight = {answer} }}"));
        assert_eq!(enqueue(&source, &[]).unwrap().weight, weight);
    }
    let longest = enqueue(&returning("{ fairness_key = ('x'):rep(256) }"), &[]).unwrap();
    assert_eq!(longest.fairness_key.len(), 256);
    let empty = enqueue(&returning("{ fairness_key = '' }"), &[]).unwrap();
    assert!(empty.fairness_key.is_empty());
    let odd = enqueue(&returning("{ fairness_key = '\\0ä' }"), &[]).unwrap();
    assert_eq!(odd.fairness_key, "\0ä".as_bytes());
}

#[test]
fn a_list_may_have_holes_and_repeat_itself() {
    let source = returning("{ throttle_keys = { nil, 'b', nil, 'a', 'b' } }");
    assert_eq!(enqueue(&source, &[]).unwrap().throttle_keys, ["b", "a"]);
}

#[test]
fn the_last_header_of_a_name_counts() {
    let found = enqueue(SCHEDULE, &[("tenant", "a"), ("tenant", "b")]).unwrap();
    assert_eq!(text(&found), "b");
}

#[test]
fn failures_have_one_of_two_ends() {
    let answer = |answer: &str| failure(&format!("function on_failure() return {answer} end"), 1);
    let retry = |delay| Ok(FailureAction::Retry { delay });
    assert_eq!(answer("{ action = 'retry' }"), retry(Duration::ZERO));
    assert_eq!(
        answer("{ action = 'retry', delay_ms = 1500 }"),
        retry(Duration::from_millis(1500))
    );
    assert_eq!(
        answer("{ action = 'retry', delay_ms = 1.5 }"),
        retry(Duration::from_micros(1500))
    );
    assert_eq!(
        answer("{ action = 'retry', delay_ms = 2^10 }"),
        retry(Duration::from_millis(1024))
    );
    assert_eq!(
        answer("{ action = 'dlq', delay_ms = 'ignored' }"),
        Ok(FailureAction::DeadLetter)
    );
    for (mistaken, said) in [
        (
            "nil",
            "returned nil as its answer; a table is expected, as `{}`",
        ),
        (
            "{}",
            "returned nil as `action`; \"retry\" or \"dlq\" is expected",
        ),
        (
            "{ action = 'drop' }",
            "returned \"drop\" as `action`; \"retry\" or \"dlq\" is expected",
        ),
        (
            "{ action = true }",
            "returned true as `action`; \"retry\" or \"dlq\" is expected",
        ),
    ] {
        assert_eq!(
            answer(mistaken).unwrap_err().to_string(),
            format!("`on_failure` {said}")
        );
    }
    for delay in [
        "-1",
        "-0.001",
        "0/0",
        "1/0",
        "-1/0",
        "'5'",
        "{}",
        "math.maxinteger",
        "1e300",
    ] {
        let error = answer(&format!("{{ action = 'retry', delay_ms = {delay} }}")).unwrap_err();
        let said = "as `delay_ms`; a number of milliseconds from 0 to 31536000000 is expected, or nil for 0";
        assert!(error.to_string().ends_with(said), "{delay}: {error}");
    }
}

#[test]
fn limits_can_be_set() {
    let mut limits = Limits::default();
    limits.throttle_keys = 1;
    limits.weight = 10;
    limits.memory_bytes = 64 << 10;
    let source = "function on_enqueue(msg) local x = ('x'):rep(msg.payload_size) return { weight = #x // 1000 } end";
    let script = Script::compile(source, limits).unwrap();
    let mut sandbox = Sandbox::new(&script, |_: &str| None);
    let mut call = |payload_size| {
        sandbox.on_enqueue(&EnqueueInput {
            headers: &[],
            payload_size,
            queue: "orders",
        })
    };
    assert_eq!(call(10_000).unwrap().weight, 10);
    assert!(matches!(call(20_000), Err(HookError::Answer { .. })));
    assert!(matches!(
        call(100_000),
        Err(HookError::Memory { limit: 65_536 })
    ));
    assert_eq!(call(10_000).unwrap().weight, 10);
}

#[test]
fn a_message_that_does_not_fit_is_a_matter_of_memory() {
    let mut limits = Limits::default();
    limits.memory_bytes = 16 << 10;
    let script = Script::compile("function on_enqueue(msg) return {} end", limits).unwrap();
    let mut sandbox = Sandbox::new(&script, |_: &str| None);
    let input = |headers| EnqueueInput {
        headers,
        payload_size: 0,
        queue: "orders",
    };
    let large = headers(&[("x", &"x".repeat(100_000))]);
    assert!(matches!(
        sandbox.on_enqueue(&input(&large)),
        Err(HookError::Memory { .. })
    ));
    assert!(sandbox.on_enqueue(&input(&[])).is_ok());
}
