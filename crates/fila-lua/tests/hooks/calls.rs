//! A call of a hook: its input, its library, the state that it leaves, and its limits.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use fila_lua::{EnqueueInput, FailureAction, HookError, Limits, Sandbox, Scheduling, Script};

use crate::{EMPTY, SCHEDULE, compile, enqueue, failure, headers, returning, text};

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
        failure(source, 4).unwrap().action,
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
    assert_eq!(text(&sandbox.on_enqueue(&EMPTY).unwrap()), "5/10");
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
    for _ in 0..3 {
        assert_eq!(text(&sandbox.on_enqueue(&EMPTY).unwrap()), "1 1 1 1 1");
    }
}

#[test]
fn scripts_know_nothing_of_each_other() {
    let one = compile(&returning(
        "(function() shared = 'one' return { fairness_key = shared } end)()",
    ));
    let other = compile(&returning("{ fairness_key = shared }"));
    let mut one = Sandbox::new(&one, |_: &str| None);
    let mut other = Sandbox::new(&other, |_: &str| None);
    for _ in 0..2 {
        assert_eq!(text(&one.on_enqueue(&EMPTY).unwrap()), "one");
        assert_eq!(text(&other.on_enqueue(&EMPTY).unwrap()), "default");
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
    let numbers = |mut sandbox: Sandbox| -> Vec<Scheduling> {
        (0..3)
            .map(|_| sandbox.on_enqueue(&EMPTY).unwrap())
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
fn a_call_is_seen_from_outside() {
    let (sender, receiver) = channel();
    let mut limits = Limits::default();
    limits.timeout = Duration::from_secs(1);
    let script = Script::compile("function on_enqueue() while true do end end", limits).unwrap();
    let worker = thread::spawn(move || {
        let mut sandbox = Sandbox::new(&script, |_: &str| None);
        sender.send(sandbox.watch()).unwrap();
        sandbox.on_enqueue(&EMPTY)
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
    let brought_into_range = call(20_000).unwrap();
    assert_eq!(brought_into_range.weight, 10);
    assert!(brought_into_range.adjusted.is_some());
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
