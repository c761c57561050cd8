//! Scripts that mean harm, or only happen to do it. Each ends within its limits, with the error that says why.

mod support;

use std::time::Duration;

use fila_lua::{HookError, ScriptError};
use support::{End, end_of};

/// Ten times the limit is when a pool would give up on a worker. On a busy machine threads wait for their turn, so the
/// tests allow for more; a script that really is not interrupted takes minutes or longer.
const END_MAX: Duration = Duration::from_secs(2);

/// Runs a body of `on_enqueue`.
fn end_of_body(body: &str) -> End {
    let (end, took) = end_of(&format!("function on_enqueue(msg)\n{body}\nend"));
    println!("{took:>10.1?} {}", body.trim().replace('\n', " "));
    assert!(took < END_MAX, "it took {took:?}");
    end
}

fn is_timeout(end: &End) -> bool {
    matches!(end, End::Called(Err(HookError::Timeout { .. })))
}

fn is_memory(end: &End) -> bool {
    matches!(end, End::Called(Err(HookError::Memory { .. })))
}

fn fault(end: &End) -> &str {
    match end {
        End::Called(Err(HookError::Failed(fault))) => &fault.message,
        other => panic!("the hook should fail, but: {other:?}"),
    }
}

/// Tests of bodies that run out of time, of memory, of either, or fail with a text.
macro_rules! attacks {
    ($($name:ident: $kind:ident $(($text:literal))? => $body:expr;)*) => {
        $(#[test] fn $name() {
            let end = end_of_body($body);
            attacks!(@$kind end $($text)?);
        })*
    };
    (@timeout $end:ident) => { assert!(is_timeout(&$end), "{:?}", $end) };
    (@memory $end:ident) => { assert!(is_memory(&$end), "{:?}", $end) };
    (@stopped $end:ident) => { assert!(is_timeout(&$end) || is_memory(&$end), "{:?}", $end) };
    (@fails $end:ident $text:literal) => {
        assert!(fault(&$end).contains($text), "{:?}", $end)
    };
    (@harmless $end:ident) => { assert!(matches!($end, End::Called(Ok(_))), "{:?}", $end) };
}

// Loops.
attacks! {
    endless_loop: timeout => "while true do end";
    endless_repeat: timeout => "repeat until false";
    goto_loop: timeout => "::again:: goto again";
    numeric_loop: timeout => "for i = 1, math.huge do end";
    loop_by_tail_calls: timeout => "local function f() return f() end return f()";
    mutual_recursion: timeout => "local a, b function a() return b() end function b() return a() end a()";
    endless_iterator: timeout => "for _ in function() return 1 end do end";
    loop_of_calls_into_c: timeout => "while true do math.abs(1) end";
    loop_over_changing_table: timeout => "local t = {1} for k in pairs(t) do t[k] = 1 while true do end end";
}

// Catching the error that ends the call.
attacks! {
    pcall_swallows_the_end: timeout => "while true do pcall(function() while true do end end) end";
    pcall_of_pcall: timeout => "while true do pcall(pcall, pcall, function() while true do end end) end";
    nested_pcall_tower: timeout => "local function f() while true do pcall(f) end end f()";
    pcall_in_metamethod: timeout =>
        "local t = setmetatable({}, {__index = function(t, k) while true do pcall(error) end end}) return t.x";
    pcall_of_memory_bomb: memory => "while true do pcall(string.rep, 'x', 1 << 30) end";
    pcall_of_growing_table: stopped => "while true do pcall(function() local t = {} while true do t[#t + 1] = {} end end) end";
    pcall_of_concatenation: stopped => "while true do pcall(function() local s = 'x' while true do s = s .. s end end) end";
    error_in_error: timeout =>
        "while true do pcall(error, setmetatable({}, {__tostring = function() error('again') end})) end";
    forged_memory_error: memory => "pcall(error, 'not enough memory')";
    pcall_then_go_on: timeout =>
        "pcall(function() while true do end end) return { fairness_key = 'got away' }";
}

// Finalizers, closing values, weak tables, lengths: refused, also behind our back.
attacks! {
    finalizer: fails("`__gc` is not available") => "setmetatable({}, {__gc = function() while true do end end})";
    finalizer_that_is_no_function: fails("`__gc` is not available") => "setmetatable({}, {__gc = true})";
    finalizer_set_later: harmless =>
        "local mt = {} for i = 1, 100 do setmetatable({}, mt) end mt.__gc = function() while true do end end
        for i = 1, 1000 do local t = {} end return {}";
    closing_value: fails("`__close` is not available") => "local x <close> = setmetatable({}, {__close = function() end})";
    closing_value_set_later: fails("non-closable value") =>
        "local mt = {} local t = setmetatable({}, mt) mt.__close = function() while true do end end
        local x <close> = t";
    closing_value_that_makes_closing_values: fails("non-closable value") =>
        "local mt = {}
        local function make() local x <close> = setmetatable({}, mt) while true do end end
        local held = setmetatable({}, mt)
        mt.__close = make
        local x <close> = held
        while true do end";
    weak_table: fails("`__mode` is not available") => "setmetatable({}, {__mode = 'k'})";
    weak_table_set_later: harmless =>
        "local mt = {} local t = setmetatable({}, mt) mt.__mode = 'k' t[{}] = 1
        for i = 1, 20000 do local x = {} end
        return { fairness_key = next(t) and 'kept' }";
    false_length: fails("`__len` is not available") => "setmetatable({}, {__len = function() return 1 << 40 end})";
    false_length_set_later: harmless =>
        "local mt = {} local t = setmetatable({}, mt) mt.__len = function() return 1 << 40 end
        table.insert(t, 1, 'x') return { weight = #t }";
    metatable_through_rawset: harmless =>
        "local mt = {} local t = setmetatable({}, mt) rawset(mt, '__len', function() return 1 << 40 end)
        return { weight = #t + 1 }";
    metatable_through_getmetatable: harmless =>
        "local t = setmetatable({}, {}) getmetatable(t).__len = function() return 1 << 40 end
        return { weight = #t + 1 }";
    ephemerons: stopped =>
        "local mt = {} local t = setmetatable({}, mt) mt.__mode = 'k'
        local keys = {} for i = 1, 100000 do keys[i] = {} t[keys[i]] = keys[i - 1] end";
}

// Loops inside C.
attacks! {
    rep_of_nothing: harmless => "local s = string.rep('', 1 << 40) return { fairness_key = s }";
    rep_of_nothing_by_nothing: harmless => "return { fairness_key = (''):rep(math.maxinteger, '') }";
    rep_of_separators: memory => "return { fairness_key = (''):rep(1 << 40, 'x') }";
    rep_of_a_billion: memory => "return { fairness_key = ('x'):rep(1e9) }";
    rep_that_overflows: memory => "return { fairness_key = ('xx'):rep(math.maxinteger) }";
    table_move: fails("attempt to call a nil value (field 'move')") => "table.move({}, 1, 1 << 40, 2)";
    insert_into_a_false_length: timeout =>
        // Sixty-two entries, and a border at 2^61: a C loop that shifts them all would take centuries.
        "local t = {} for i = 61, 0, -1 do t[1 << i] = i end table.insert(t, 1, 'x')";
    remove_from_a_false_length: timeout => "local t = {} for i = 61, 0, -1 do t[1 << i] = i end table.remove(t, 1)";
    sort_of_a_false_length: fails("attempt to compare") => "local t = {} for i = 61, 0, -1 do t[1 << i] = i end table.sort(t)";
    unpack_of_a_false_length: fails("too many results") => "local t = {} for i = 61, 0, -1 do t[1 << i] = i end table.unpack(t)";
    unpack_of_a_huge_range: fails("too many results") => "table.unpack({}, 1, 1 << 40)";
    unpack_up_to_the_memory: stopped => "while true do local n = select('#', table.unpack({}, 1, 30000)) end";
    concat_of_a_huge_range: fails("invalid value (a nil)") => "table.concat({}, '', 1, 1 << 40)";
    concat_by_metamethod: timeout =>
        "return table.concat(setmetatable({}, {__index = function() return '' end}), '', 1, 1 << 40)";
    concat_by_itself: timeout =>
        // Each missing element is the empty string that `table.concat` of the table gives: no instruction is executed.
        "return table.concat(setmetatable({}, {__index = table.concat}), '', 1, 1 << 40)";
    concat_by_tostring: stopped =>
        "return table.concat(setmetatable({}, {__index = tostring}), '', 1, 1 << 40)";
    unpack_by_c: harmless => "table.unpack(setmetatable({}, {__index = tostring}), 1, 500) return {}";
    unpack_by_concat: timeout =>
        "local t = {} for i = 1, 500 do t[i] = 'x' end setmetatable(t, {__index = table.concat})
        while true do table.unpack(t, 1000, 9000) end";
    sort_with_a_spinning_comparator: timeout => "table.sort({3, 2, 1}, function() while true do end end)";
    sort_with_an_invalid_comparator: harmless =>
        "local t = {} for i = 1, 100 do t[i] = i % 7 end table.sort(t, function() return true end) return {}";
    sort_of_long_strings: stopped =>
        // Comparing strings of zeros takes a step for each zero, and stock `table.sort` compares without a call.
        "local s = ('\\0'):rep(200000) local t = {} for i = 1, 1000 do t[i] = s .. '' end
        table.sort(t)";
    comparing_long_strings: timeout =>
        "local a, b = ('\\0'):rep(300000), ('\\0'):rep(300000) .. 'x' while true do local _ = a < b end";
    comparing_long_strings_after_a_quick_start: timeout =>
        "local a = ('\\0'):rep(300000) local b = a .. 'x' for i = 1, 5000 do end
        while true do local _ = a < b _ = a < b _ = a < b _ = a < b _ = a < b _ = a < b _ = a < b _ = a < b end";
    equality_of_long_strings: timeout =>
        "local a, b = ('x'):rep(200000), ('x'):rep(199999) .. 'x' while true do local _ = a == b end";
    numbers_in_long_strings: stopped => "local s = ('1'):rep(300000) while true do local _ = s + 1 end";
    tonumber_of_long_strings: stopped => "local s = ('1'):rep(300000) while true do tonumber(s, 36) end";
    spaces_around_numbers: stopped => "local s = (' '):rep(300000) while true do tonumber(s) end";
    utf8_of_long_strings: timeout => "local s = ('x'):rep(300000) while true do utf8.len(s) end";
    utf8_offsets: timeout => "local s = ('x'):rep(300000) while true do utf8.offset(s, 299999) end";
    utf8_codepoints: fails("string slice too long") => "return utf8.codepoint(('x'):rep(300000), 1, -1)";
    bytes_of_long_strings: fails("string slice too long") => "return string.byte(('x'):rep(300000), 1, -1)";
    upper_of_long_strings: stopped => "local s = ('x'):rep(200000) while true do s = s:upper():lower():reverse() end";
    select_from_the_end: stopped => "local t = {} while true do select(-1, table.unpack(t, 1, 20000)) end";
    next_in_an_emptied_table: timeout =>
        "local t = {} for i = 1, 10000 do t['k' .. i] = i end for k in pairs(t) do t[k] = nil end
        while true do next(t) end";
    rehashing_for_ever: timeout =>
        "local t = {} for i = 1, 4096 do t['k' .. i] = i end
        local i = 0 while true do i = i + 1 t['k' .. i] = nil t['k' .. (i + 4096)] = i end";
    random_of_a_huge_range: timeout => "while true do math.random(math.mininteger, math.maxinteger) end";
    random_seeds: fails("attempt to call a nil value (field 'randomseed')") => "math.randomseed(1)";
}

// Patterns.
attacks! {
    backtracking: timeout => "string.find(('a'):rep(2000), ('a*'):rep(6) .. 'b')";
    backtracking_by_method: timeout => "return (('a'):rep(2000)):match(('a-'):rep(6) .. 'b')";
    backtracking_in_gsub: timeout => "string.gsub(('x'):rep(200000), '.-b', '')";
    backtracking_in_gsub_with_a_function: timeout =>
        "string.gsub(('x'):rep(200000), '.-b', function() end)";
    backtracking_in_gmatch: timeout => "for _ in string.gmatch(('x'):rep(200000), '.-b') do end";
    balance: timeout => "string.find(('('):rep(200000), '%b()')";
    frontiers: timeout => "while true do string.find(('x'):rep(1000), '%f[^%w_]y') end";
    back_references: timeout => "string.find(('a'):rep(20000), '(.-)(.-)%1%2b')";
    plain_search: timeout =>
        "local a, b = ('a'):rep(200000), ('a'):rep(100000) .. 'b' while true do string.find(a, b, 1, true) end";
    search_without_specials: timeout =>
        "local a, b = ('a'):rep(200000), ('a'):rep(100000) .. 'b' return { weight = a:find(b) }";
    long_sets: timeout =>
        "local p = '[' .. ('b'):rep(100000) .. 'a]*c' string.find(('a'):rep(100000), p)";
    deep_patterns: fails("pattern too complex") => "string.find(('a'):rep(1000), ('a?'):rep(1000) .. 'b')";
    many_captures: fails("too many captures") => "string.find('a', ('()'):rep(33))";
    gsub_that_grows: memory => "string.gsub(('x'):rep(1000), '.', ('y'):rep(10000))";
    gsub_that_grows_by_captures: memory => "string.gsub(('x'):rep(100000), '.*', ('%0'):rep(1000))";
    gsub_by_a_function_that_grows: stopped => "string.gsub(('x'):rep(1000), '.', function() return ('y'):rep(10000) end)";
    gsub_by_a_spinning_function: timeout => "string.gsub('abc', '.', function() while true do end end)";
    gsub_by_a_spinning_table: timeout =>
        "string.gsub('abc', '.', setmetatable({}, {__index = function() while true do end end}))";
    gsub_within_gsub: stopped =>
        "local function f() return (string.gsub('abc', '.', f)) end f()";
    gmatch_for_ever: timeout => "while true do for _ in ('abc'):gmatch('') do end end";
    malformed_pattern: fails("malformed pattern (missing ']')") => "string.find('a', '[a')";
}

// Formats.
attacks! {
    wide_format: fails("invalid conversion") => "string.format('%99999d', 1)";
    precise_format: fails("invalid conversion") => "string.format('%.99999f', 1)";
    many_formats: stopped => "while true do string.format(('%99.99f'):rep(200), table.unpack(table.pack(('1'):rep(200):byte(1, -1)))) end";
    quoted_format: stopped => "local s = ('\\0'):rep(300000) return string.format('%q', s)";
    address: fails("'%p' is not available") => "return string.format('%5p', {})";
    format_by_a_spinning_tostring: timeout =>
        "string.format('%s', setmetatable({}, {__tostring = function() while true do end end}))";
}

// Metamethods.
attacks! {
    index_that_spins: timeout => "return setmetatable({}, {__index = function() while true do end end}).x";
    index_that_recurses: fails("stack overflow") => "return setmetatable({}, {__index = function(t, k) return t[k] .. '' end}).x";
    index_chain: fails("'__index' chain too long") =>
        "local t = {} local mt = {__index = t} setmetatable(t, mt) return t.x";
    concat_metamethod: timeout => "return {} .. setmetatable({}, {__concat = function() while true do end end})";
    eq_metamethod: timeout =>
        "local mt = {__eq = function() while true do end end} return setmetatable({}, mt) == setmetatable({}, mt)";
    lt_metamethod: timeout =>
        "local mt = {__lt = function() while true do end end} return setmetatable({}, mt) < setmetatable({}, mt)";
    call_metamethod: timeout => "return setmetatable({}, {__call = function() while true do end end})()";
    call_chain: fails("`__call` has to be a function") =>
        "local t = {} for i = 1, 250 do t = setmetatable({}, {__call = t}) end return t()";
    call_of_itself: fails("`__call` has to be a function") => "local mt, t = {}, {} mt.__call = t setmetatable(t, mt) return t()";
    newindex_chain: fails("'__newindex' chain too long") =>
        "local t = {} local mt = {__newindex = t} setmetatable(t, mt) t.x = 1";
    unary_metamethod: timeout => "return -setmetatable({}, {__unm = function() while true do end end})";
    pairs_metamethod: timeout => "for _ in pairs(setmetatable({}, {__pairs = function() while true do end end})) do end";
    tostring_that_spins: timeout => "tostring(setmetatable({}, {__tostring = function() while true do end end}))";
    tostring_with_a_long_name: stopped =>
        "local t = setmetatable({}, {__name = ('x'):rep(300000)}) while true do tostring(t) end";
    raising_what_spins_when_printed: fails("it raised a table") =>
        "error(setmetatable({}, {__tostring = function() while true do end end}))";
    raising_a_long_text: fails("xxxx") => "error(('x'):rep(300000), 0)";
    raising_nothing: fails("it raised a nil") => "error()";
    answer_that_spins_when_read: harmless =>
        "return setmetatable({}, {__index = function() while true do end end})";
}

// Memory and stacks.
attacks! {
    growing_table: stopped => "local t = {} while true do t[#t + 1] = {} end";
    growing_string: memory => "local s = 'x' while true do s = s .. s end";
    growing_closures: stopped => "local f = function() end while true do local g = f f = function() return g end end";
    deep_recursion: memory => "local function f() return 1 + f() end f()";
    recursion_with_arguments: stopped => "local function f(...) return f(1, ...) end f()";
    recursion_through_pcall: harmless =>
        "local function f() pcall(f) end f() return {}";
    recursion_through_sort: stopped =>
        "local function f() table.sort({1, 2}, function() return f() end) end f()";
    recursion_through_tostring: fails("overflow") =>
        "local mt = {} mt.__tostring = function(t) return tostring(t) .. '' end tostring(setmetatable({}, mt))";
    full_memory_and_garbage: stopped =>
        "local t = {} for i = 1, 17500 do t[i] = {} end while true do local x = {} end";
    recursion_through_concat: fails("overflow") =>
        "local mt = {} mt.__index = function(t) return table.concat(t, '', 1, 1) end table.concat(setmetatable({}, mt), '', 1, 1)";
    recursion_through_gsub_of_tables: fails("overflow") =>
        "local mt = {} mt.__index = function(t, k) return (k:gsub('.', t)) end
        local t = setmetatable({}, mt) return t.x";
    many_iterators: stopped => "local t = {} while true do t[#t + 1] = ('x'):gmatch('y') end";
    many_iterators_one_after_another: timeout => "while true do ('x'):gmatch('y') end";
    many_results_through_pcall: stopped =>
        "local t = {} for i = 1, 5000 do t[i] = {} end while true do pcall(table.unpack, t) end";
    many_arguments_for_everything: fails("bad argument") =>
        "local t = {} for i = 1, 5000 do t[i] = {} end
        for _, f in ipairs { string.find, string.match, table.concat, string.rep, fila.get, string.gmatch } do
            pcall(f, table.unpack(t))
        end
        fila.get(table.unpack(t))";
    collisions_of_numbers: stopped => "local t = {} for i = 1, 1 << 30 do t[i * 16383 + 0.0] = i end";
    varargs_copied: stopped =>
        "local function f(...) while true do local a = ... local b = select('#', ..., ...) end end f(table.unpack({}, 1, 20000))";
    answers_with_many_keys: harmless => "local t = {} for i = 1, 10000 do t[i] = i end return t";
}

// Ways out.
#[test]
fn nothing_dangerous_is_there() {
    for name in [
        "xpcall",
        "load",
        "loadstring",
        "loadfile",
        "dofile",
        "require",
        "collectgarbage",
        "print",
        "warn",
        "coroutine",
        "os",
        "io",
        "debug",
        "package",
        "string.dump",
        "string.pack",
        "string.unpack",
        "string.packsize",
        "table.move",
        "math.randomseed",
    ] {
        let body = format!("return {{ fairness_key = tostring({name}) }}");
        let End::Called(Ok(answer)) = end_of_body(&body) else {
            panic!("{name}");
        };
        assert_eq!(answer.fairness_key, b"nil", "{name}");
    }
}

#[test]
fn only_what_is_listed_is_there() {
    let body = "
        local names = {}
        for _, library in ipairs { string, table, math, utf8, fila, _G } do
            for name in pairs(library) do names[#names + 1] = name end
        end
        table.sort(names)
        return { fairness_key = table.concat(names, ' ') }";
    let End::Called(Ok(answer)) = end_of_body(body) else {
        panic!("it fails");
    };
    assert_eq!(
        String::from_utf8_lossy(&answer.fairness_key),
        "_G on_enqueue"
    );
}

attacks! {
    bytecode: fails("attempt to call a nil value (global 'load')") => "return load('\\27Lua')";
    metatable_of_strings: fails("attempt to index a boolean value") => "getmetatable('').__index = {}";
    metatable_of_libraries: fails("cannot change a protected metatable") => "setmetatable(string, {})";
    metatable_of_globals: fails("cannot change a protected metatable") => "setmetatable(_G, {})";
    change_of_a_library: fails("`string` cannot be changed") => "string.find = nil";
    change_of_a_library_by_rawset: fails("`math` cannot be changed") => "rawset(math, 'abs', nil)";
    change_of_a_library_by_insert: fails("`table` cannot be changed") => "table.insert(table, 1)";
    change_of_fila: fails("`fila` cannot be changed") => "fila.get = nil";
    environment_of_the_chunk: harmless => "local x = _ENV _ENV = {} x = nil return {}";
}

// Scripts as such.
#[test]
fn a_top_level_that_spins_is_refused() {
    let (end, took) = end_of("while true do pcall(function() while true do end end) end");
    assert!(
        matches!(end, End::Refused(ScriptError::Timeout { .. })),
        "{end:?}"
    );
    assert!(took < END_MAX, "{took:?}");
}

#[test]
fn a_top_level_that_takes_all_memory_is_refused() {
    let (end, _) = end_of("local t = ('x'):rep(1 << 30) function on_enqueue() end");
    assert!(
        matches!(end, End::Refused(ScriptError::Memory { .. })),
        "{end:?}"
    );
}

#[test]
fn bytecode_is_not_a_script() {
    let (end, _) = end_of("\x1bLuaT\0\x19\n\r");
    assert!(
        matches!(end, End::Refused(ScriptError::Syntax(_))),
        "{end:?}"
    );
}

#[test]
fn hard_sources_compile_in_time_or_not_at_all() {
    let chain = |piece: &str| piece.repeat((60 << 10) / piece.len());
    for source in [
        format!("local x = {}", "(".repeat(60 << 10)),
        format!("local x = {}1", chain("-")),
        format!("local x = 1 {}", chain("and 1 ")),
        format!("local a local x = a {}", chain("and a ")),
        format!("if a then {} end", chain("elseif a then ")),
        format!("local x = '' {}", chain(".. a")),
        format!("local x = {}", chain("{")),
        chain("do "),
        chain("goto a "),
        (0..6_000).map(|label| format!("::l{label}::")).collect(),
        (0..3_000)
            .map(|label| format!("goto l{label} ::l{label}::"))
            .collect(),
        format!(
            "{} {}",
            "goto z ".repeat(4_000),
            (0..3_000)
                .map(|label| format!("::l{label}::"))
                .collect::<String>()
        ),
        (0..8_000).map(|name| format!("x={name};")).collect(),
        chain("function f() "),
        format!("local x = \"{}\"", chain("\\z ")),
        format!("--[{}[", chain("=")),
    ] {
        let (end, took) = end_of(&source);
        println!("{took:>10.1?} {}", &source[..30]);
        assert!(took < END_MAX, "{took:?} for {}…", &source[..40]);
        assert!(matches!(end, End::Refused(_)), "{}", &source[..40]);
    }
}
