//! The answers of hooks: valid ones, and the errors of the others.

use std::time::Duration;

use fila_lua::{AnswerPart, FailureAction, FailureAnswer};

use crate::{SCHEDULE, answer, enqueue, failure, returning, text};

/// Answers of `on_enqueue` and their errors.
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
            "{ weight = 0/0 }",
            "returned NaN as `weight`; a whole number from 1 to 65536 is expected, or nil for 1",
        ),
        (
            "{ weight = '3' }",
            "returned \"3\" as `weight`; a whole number from 1 to 65536 is expected, or nil for 1",
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
        (
            "{ weights = 3 }",
            "returned 3 as `weights`; a table from the paths of groups to numbers is expected, or nil for none",
        ),
        (
            "{ weights = { 3 } }",
            "returned a table with 1 as a key as `weights`; the path of a group is a string of 1 to 256 bytes of UTF-8",
        ),
        (
            "{ weights = { ['\\255'] = 3 } }",
            "returned a table with \"\u{fffd}\" as a key as `weights`; the path of a group is a string of 1 to 256 bytes of UTF-8",
        ),
        (
            "{ weights = { acme = '3' } }",
            "returned \"3\" as `weights[\"acme\"]`; a whole number from 1 to 65536 is expected",
        ),
        (
            "{ weights = { b = 0/0, a = {} } }",
            "returned a table as `weights[\"a\"]`; a whole number from 1 to 65536 is expected",
        ),
        (
            "(function() local w = {} for i = 1, 17 do w['g' .. i] = i end return { weights = w } end)()",
            "returned more than 16 entries as `weights`; at most 16 are allowed",
        ),
    ] {
        let error = enqueue(&returning(answer), &[]).unwrap_err().to_string();
        if answer.contains("table.pack") {
            // The order of the table decides which of two mistakes comes first.
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

/// Numbers out of range, and the numbers that are taken instead.
#[test]
fn weights_are_brought_into_range() {
    for (weight, nearest, found) in [
        ("0", 1, "0"),
        ("-1", 1, "-1"),
        ("0.2", 1, "0.2"),
        ("-0.0", 1, "-0"),
        ("1.4", 1, "1.4"),
        ("1.5", 2, "1.5"),
        ("65536.4", 65_536, "65536.4"),
        ("65537", 65_536, "65537"),
        ("70000", 65_536, "70000"),
        ("1e300", 65_536, "1"),
        ("1/0", 65_536, "inf"),
        ("-1/0", 1, "-inf"),
        ("math.maxinteger", 65_536, "9223372036854775807"),
        ("math.mininteger", 1, "-9223372036854775808"),
    ] {
        let answer = format!("{{ fairness_key = 'k', weight = {weight} }}");
        let taken = enqueue(&returning(&answer), &[]).unwrap();
        assert_eq!((taken.weight, text(&taken)), (nearest, "k"), "{weight}");
        let adjusted = taken.adjusted.unwrap().to_string();
        assert!(adjusted.starts_with(found), "{weight}: {adjusted}");
        let said = " as `weight`; a whole number from 1 to 65536 is expected, or nil for 1";
        assert!(adjusted.ends_with(said), "{weight}: {adjusted}");
    }
    for weight in ["1", "7.0", "65536"] {
        let taken = enqueue(&returning(&format!("{{ weight = {weight} }}")), &[]).unwrap();
        assert_eq!(taken.adjusted, None, "{weight}");
    }
}

#[test]
fn weights_of_groups_come_sorted_and_in_range() {
    let source = "{ weights = { ['acme/batch'] = 70000, acme = 2.5, zoo = 7 }, weight = 3 }";
    let taken = enqueue(&returning(source), &[]).unwrap();
    let weights = taken.weights.iter();
    let found: Vec<_> = weights.map(|it| (&*it.path, it.weight)).collect();
    assert_eq!(found, [("acme", 3), ("acme/batch", 65_536), ("zoo", 7)]);
    assert_eq!((taken.weight, &taken.adjusted), (3, &None));
    let said = "2.5 as `weights[\"acme\"]`; a whole number from 1 to 65536 is expected";
    assert_eq!(taken.adjustment().unwrap().to_string(), said);
    let of_weight = enqueue(&returning("{ weights = { a = 0 }, weight = 0 }"), &[]).unwrap();
    assert_eq!(of_weight.adjustment(), of_weight.adjusted.as_ref());
}

#[test]
fn a_path_that_is_no_group_of_the_key_is_left_out_and_named() {
    let long = "x".repeat(200);
    let source = format!("{{ weights = {{ acme = 0, ['{long}'] = 2, zoo = 7 }} }}");
    let mut taken = enqueue(&returning(&source), &[]).unwrap();
    taken.keep_groups(|path| path == "zoo");
    assert_eq!(taken.weights.len(), 1);
    assert_eq!(taken.weights[0].weight, 7);
    assert_eq!(taken.adjustment(), None, "it went with its entry");
    let parts: Vec<AnswerPart> = taken.unusable.iter().map(|it| it.part).collect();
    assert_eq!(parts, [AnswerPart::GroupWeight], "one of each");
    assert_eq!(
        taken.mistake().unwrap().to_string(),
        "`on_enqueue` returned 0 as `weights[\"acme\"]`; the path of a group that the fairness key is in is expected, as \
         \"acme\" for \"acme/alice\""
    );
}

#[test]
fn a_key_that_the_caller_rejects_is_shown_by_its_beginning() {
    let source = returning("{ fairness_key = 'a//' .. ('x'):rep(200), weight = 3 }");
    let mut taken = enqueue(&source, &[]).unwrap();
    taken.reject_key("no part may be empty");
    assert_eq!((text(&taken), taken.weight), ("default", 3));
    let said = taken.mistake().unwrap().to_string();
    assert!(said.starts_with("`on_enqueue` returned \"a//xxx"), "{said}");
    assert!(
        said.ends_with("…\" as `fairness_key`; no part may be empty"),
        "{said}"
    );
}

/// A part that cannot be used costs the answer that part alone.
#[test]
fn the_other_parts_of_an_answer_hold() {
    use AnswerPart::{
        FairnessKey, GroupTable, GroupWeight, ThrottleCount, ThrottleKey, ThrottleList, Weight,
    };
    let many = "{'1','2','3','4','5','6','7','8','9','10','11','12','13','14','15','16','17'}";
    for (change, part, expected) in [
        (
            "fairness_key = ('x'):rep(257)",
            FairnessKey,
            ("default", 3, &["a"][..]),
        ),
        ("fairness_key = {}", FairnessKey, ("default", 3, &["a"])),
        ("weight = 0/0", Weight, ("k", 1, &["a"])),
        ("weight = '3'", Weight, ("k", 1, &["a"])),
        ("throttle_keys = 'a'", ThrottleList, ("k", 3, &[])),
        (
            &format!("throttle_keys = {many}"),
            ThrottleCount,
            ("k", 3, &[]),
        ),
        ("throttle_keys = { '', 'b' }", ThrottleKey, ("k", 3, &["b"])),
        (
            "throttle_keys = { ('x'):rep(257), 'b' }",
            ThrottleKey,
            ("k", 3, &["b"]),
        ),
        (
            "throttle_keys = { 7, 'b', false, n = 2 }",
            ThrottleKey,
            ("k", 3, &["b"]),
        ),
        ("weights = 7", GroupTable, ("k", 3, &["a"])),
        (
            "weights = { g = true, h = 2, [7] = 1 }",
            GroupWeight,
            ("k", 3, &["a"]),
        ),
    ] {
        let source = format!(
            "function on_enqueue(msg)
               local answer = {{ fairness_key = 'k', weight = 3, throttle_keys = {{ 'a' }}, weights = {{ h = 2 }} }}
               answer.{change}
               return answer
             end"
        );
        let found = answer(&source, &[]).unwrap();
        let keys: Vec<&str> = found.throttle_keys.iter().map(String::as_str).collect();
        assert_eq!(
            (text(&found), found.weight, &keys[..]),
            expected,
            "{change}"
        );
        let parts: Vec<AnswerPart> = found.unusable.iter().map(|it| it.part).collect();
        assert_eq!((parts, found.adjusted), (vec![part], None), "{change}");
        let weights: Vec<u32> = found.weights.iter().map(|it| it.weight).collect();
        let expected = if part == GroupTable { &[][..] } else { &[2] };
        assert_eq!(weights, expected, "{change}");
    }
}

/// Headers that make the answer of the documentation's script invalid.
#[test]
fn no_header_makes_the_example_for_enqueueing_fail() {
    let long = "x".repeat(257);
    for priority in [
        "0", "1.5", "70000", "-1", "nan", "inf", "", "1e999", "-1e999", "0x10", "x", &long,
    ] {
        for (tenant, endpoint) in [("acme", ""), (&*long, "api"), ("", &*long)] {
            let headers = [
                ("tenant", tenant),
                ("priority", priority),
                ("endpoint", endpoint),
            ];
            let found = answer(SCHEDULE, &headers).unwrap();
            assert!((1..=65_536).contains(&found.weight), "{headers:?}");
            assert_ne!(found.unusable, [], "{headers:?}");
        }
    }
}

#[test]
fn failures_have_one_of_two_ends() {
    let answer = |answer: &str| failure(&format!("function on_failure() return {answer} end"), 1);
    let plain = |action| {
        let adjusted = None;
        Ok(FailureAnswer { action, adjusted })
    };
    let retry = |delay| plain(FailureAction::Retry { delay });
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
        plain(FailureAction::DeadLetter)
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
    let said =
        "as `delay_ms`; a number of milliseconds from 0 to 31536000000 is expected, or nil for 0";
    for delay in ["0/0", "'5'", "{}"] {
        let error = answer(&format!("{{ action = 'retry', delay_ms = {delay} }}")).unwrap_err();
        assert!(error.to_string().ends_with(said), "{delay}: {error}");
        assert!(!error.is_failure(), "{delay}");
    }
    let max = Duration::from_secs(365 * 24 * 3600);
    for (delay, nearest) in [
        ("-1", Duration::ZERO),
        ("-0.001", Duration::ZERO),
        ("-1/0", Duration::ZERO),
        ("math.mininteger", Duration::ZERO),
        ("1/0", max),
        ("math.maxinteger", max),
        ("1e300", max),
    ] {
        let taken = answer(&format!("{{ action = 'retry', delay_ms = {delay} }}")).unwrap();
        let expected = FailureAction::Retry { delay: nearest };
        assert_eq!(taken.action, expected, "{delay}");
        let adjusted = taken.adjusted.unwrap().to_string();
        assert!(adjusted.ends_with(said), "{delay}: {adjusted}");
    }
    let zero = answer("{ action = 'retry', delay_ms = -0.0 }");
    assert_eq!(zero, retry(Duration::ZERO));
}
