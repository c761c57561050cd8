//! The answers of hooks: valid ones, and the errors of the others.

use std::time::Duration;

use fila_lua::FailureAction;

use crate::{SCHEDULE, enqueue, failure, returning, text};

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
