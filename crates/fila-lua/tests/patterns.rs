//! Compares our matcher with that of stock Lua, on random patterns and texts.

use std::fmt::Write as _;
use std::time::Duration;

use fila_lua::{EnqueueInput, Limits, Sandbox, Script};
use mlua::Lua;
use proptest::prelude::*;

/// Calls on a text and a pattern; they see `s`, `p`, `init` and `r`.
const ACTIONS: &[&str] = &[
    "describe(pcall(string.find, s, p, init))",
    "describe(pcall(string.find, s, p, init, true))",
    "describe(pcall(string.match, s, p, init))",
    "describe(pcall(string.gsub, s, p, r))",
    "describe(pcall(string.gsub, s, p, r, init))",
    "describe(pcall(string.gsub, s, p, function(...) return describe(true, ...) end))",
    "describe(pcall(string.gsub, s, p, { a = 'x', b = false, ab = 7 }, init))",
    "describe(pcall(function()
        local all, n = {}, 0
        for a, b, c in string.gmatch(s, p, init) do
            n = n + 1
            if n > 50 then break end
            all[n] = describe(true, a, b, c)
        end
        return table.concat(all, '|')
    end))",
    "describe(pcall(function() return s:find(p), s:match(p), (s:gsub(p, '')) end))",
];

const DESCRIBE: &str = "
    local function describe(ok, ...)
        if not ok then return 'error' end
        local all = { n = select('#', ...), ... }
        for i = 1, all.n do all[i] = math.type(all[i]) and all[i] or '<' .. tostring(all[i]) .. '>' end
        return table.concat(all, ',', 1, all.n)
    end";

/// Writes bytes as a literal of Lua.
fn literal(bytes: &[u8]) -> String {
    let mut literal = String::from("\"");
    for byte in bytes {
        write!(literal, "\\{byte:03}").expect("a string takes everything");
    }
    literal.push('"');
    literal
}

fn body(subject: &[u8], pattern: &[u8], replacement: &[u8], init: i64) -> String {
    let (s, p, r) = (literal(subject), literal(pattern), literal(replacement));
    let mut body =
        format!("{DESCRIBE}\nlocal s, p, r, init = {s}, {p}, {r}, {init}\nlocal all = {{}}\n");
    for action in ACTIONS {
        writeln!(body, "all[#all + 1] = {action}").expect("a string takes everything");
    }
    body.push_str("return table.concat(all, '\\n')");
    body
}

fn ours(body: &str) -> String {
    let mut limits = Limits::default();
    limits.timeout = Duration::from_secs(60);
    limits.fairness_key_bytes = 1 << 20;
    // In hexadecimal: a fairness key is text, and a match may be any bytes.
    let source = format!(
        "local function all() {body} end
        local function hex(text)
            local digits = {{}}
            for i = 1, #text do digits[i] = string.format('%02x', text:byte(i)) end
            return table.concat(digits)
        end
        function on_enqueue() return {{ fairness_key = hex(all()) }} end"
    );
    let script = Script::compile(source, limits).expect("a good script");
    let input = EnqueueInput {
        headers: &[],
        payload_size: 0,
        queue: "q",
    };
    let answer = Sandbox::new(&script, |_: &str| None)
        .on_enqueue(&input)
        .expect("an answer");
    let digits = std::str::from_utf8(&answer.fairness_key).expect("a fairness key is text");
    let bytes: Vec<u8> = (0..digits.len())
        .step_by(2)
        .map(|place| u8::from_str_radix(&digits[place..place + 2], 16).expect("two digits"))
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn stock(body: &str) -> String {
    let lua = Lua::new();
    let text: mlua::LuaString = lua.load(body).eval().expect("a good script");
    text.to_string_lossy()
}

/// Pieces of patterns, valid and invalid.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let single = prop_oneof![
        Just("a"),
        Just("b"),
        Just("."),
        Just("%a"),
        Just("%A"),
        Just("%d"),
        Just("%s"),
        Just("%S"),
        Just("%w"),
        Just("%p"),
        Just("%l"),
        Just("%u"),
        Just("%x"),
        Just("%c"),
        Just("%g"),
        Just("%z"),
        Just("%%"),
        Just("%."),
        Just("[ab]"),
        Just("[^ab]"),
        Just("[a-c]"),
        Just("[%a_]"),
        Just("[]a]"),
        Just("[^]]"),
        Just("[a-]"),
        Just("[%-x]"),
        Just("[a-%z]"),
        Just("[%w-z]"),
        Just("-"),
        Just("é"),
    ]
    .prop_map(|class| class.as_bytes().to_vec());
    let repeated = (
        single.clone(),
        prop_oneof![Just("*"), Just("+"), Just("-"), Just("?")],
    )
        .prop_map(|(class, count)| [class.as_slice(), count.as_bytes()].concat());
    prop_oneof![
        4 => single,
        4 => repeated,
        3 => prop_oneof![Just("("), Just(")"), Just("()"), Just("(a)"), Just("(.-)"), Just("(a*(.)%w)")]
            .prop_map(|capture| capture.as_bytes().to_vec()),
        2 => prop_oneof![
            Just("%1"), Just("%2"), Just("%0"), Just("%bab"), Just("%b()"), Just("%b"), Just("%f[%w]"), Just("%f[^a]"),
            Just("%f"), Just("^"), Just("$"), Just("%"), Just("["), Just("[^"), Just("]"), Just("[%"), Just("[a-"), Just("*"),
        ]
        .prop_map(|special| special.as_bytes().to_vec()),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ]
}

fn pattern() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::collection::vec(piece(), 0..7).prop_map(|pieces| pieces.concat());
    (any::<bool>(), pieces, any::<bool>()).prop_map(|(start, pattern, end)| {
        [
            if start { &b"^"[..] } else { b"" },
            &pattern,
            if end { b"$" } else { b"" },
        ]
        .concat()
    })
}

fn subject() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        6 => prop_oneof![Just(b'a'), Just(b'b')],
        4 => prop_oneof![
            Just(b'c'), Just(b'A'), Just(b'1'), Just(b' '), Just(b'_'), Just(b'('), Just(b')'), Just(b'.'), Just(b'-'),
            Just(b'^'), Just(b'$'), Just(b']'), Just(b'%'), Just(0), Just(0x0b), Just(0x7f), Just(0xe9),
        ],
        1 => any::<u8>(),
    ];
    prop::collection::vec(byte, 0..16)
}

fn replacement() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(
        prop_oneof![
            Just("x"),
            Just("%0"),
            Just("%1"),
            Just("%2"),
            Just("%%"),
            Just("%a"),
            Just("%"),
            Just("")
        ],
        0..4,
    )
    .prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2_000)
    ))]

    #[test]
    fn patterns_mean_what_they_mean_in_stock_lua(
        subject in subject(), pattern in pattern(), replacement in replacement(), init in -20_i64..20,
    ) {
        let body = body(&subject, &pattern, &replacement, init);
        prop_assert_eq!(ours(&body), stock(&body));
    }
}

#[test]
fn patterns_of_every_byte_mean_what_they_mean_in_stock_lua() {
    let all: Vec<u8> = (0..=255).collect();
    for class in b"acdglpsuwxzACDGLPSUWXZ" {
        let body = format!(
            "local s, n = {}, {{}} for place in s:gmatch('()%{}') do n[#n + 1] = place end return table.concat(n, ' ')",
            literal(&all),
            char::from(*class)
        );
        assert_eq!(ours(&body), stock(&body), "%{}", char::from(*class));
    }
}

#[test]
fn limits_of_the_matcher_are_those_of_stock_lua() {
    for action in [
        "string.find(('a'):rep(300), ('a?'):rep(199))",
        "string.find(('a'):rep(300), ('a?'):rep(200))",
        "string.find('', ('()'):rep(32))",
        "string.find('', ('()'):rep(33))",
        "string.find(('a'):rep(1000), '.-b')",
        "string.gsub('abc', '', '-')",
        "string.gsub('abc', 'b*', '-')",
        "string.gsub('', '', 'x')",
        "string.gsub('abc', '%w', '%0%0', 2)",
        "string.gsub('abc', '^%w', 'x')",
        "string.gsub('hello world', 'o', 0)",
        "string.gsub('abc', 'b', true)",
        "string.gsub('abc', 'b', function() return {} end)",
        "string.gsub('abc', 'b', 'x', '1')",
        "string.gsub('abc', 'b', print or 'x', 1.5)",
        "string.gsub(123, 2, 'x')",
        "string.find('abc', 'b', -1)",
        "string.find('abc', '', 4)",
        "string.find('abc', '', 5)",
        "string.find('abc', '', -100)",
        "string.find('a.b', '.', 2, true)",
        "string.find(nil, 'x')",
        "string.match('key=value', '(%w+)=(%w+)')",
        "string.match('2024-01-02', '^(%d+)-(%d+)-(%d+)$')",
        "string.rep('ab', 3, '-')",
    ] {
        let body = format!(
            "{DESCRIBE} local print return describe(pcall(function() return {action} end))"
        );
        assert_eq!(ours(&body), stock(&body), "{action}");
    }
}

/// Compares our functions on tables with the stock ones.
fn list_action() -> impl Strategy<Value = String> {
    prop_oneof![
        (-2..12_i64).prop_map(|place| format!("table.insert(t, {place}, 'n')")),
        Just("table.insert(t, 'end')".to_owned()),
        (-2..12_i64).prop_map(|place| format!("table.remove(t, {place})")),
        Just("table.remove(t)".to_owned()),
        (-2..12_i64, -2..12_i64)
            .prop_map(|(from, to)| format!("table.concat(t, '+', {from}, {to})")),
        Just("table.sort(t)".to_owned()),
        Just("table.sort(t, function(a, b) return a > b end)".to_owned()),
        Just("table.concat(t)".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn lists_change_as_in_stock_lua(
        values in prop::collection::vec(0..100_u32, 0..10), actions in prop::collection::vec(list_action(), 1..8),
    ) {
        let mut body = format!("{DESCRIBE}\nlocal t, all = {{}}, {{}}\n");
        for value in values {
            writeln!(body, "t[#t + 1] = '{value}'").unwrap();
        }
        for action in actions {
            writeln!(body, "all[#all + 1] = describe(pcall(function() return {action} end))").unwrap();
            writeln!(body, "all[#all + 1] = table.concat(t, ' ')").unwrap();
        }
        body.push_str("return table.concat(all, '\\n')");
        prop_assert_eq!(ours(&body), stock(&body));
    }
}
