//! `fila hook test`, scripts of queues, and every script of `docs/hooks.md`.

use std::io::Write;
use std::path::Path;

use insta::assert_snapshot;
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};

use crate::rig::{Said, Server, fila, run, without_times};

const BOOK: &str = include_str!("../../../../docs/hooks.md");

const BOTH: &str = "function on_enqueue(msg)
  return {
    fairness_key = msg.headers['tenant'],
    weight = tonumber(fila.get('weight')) or 1,
    throttle_keys = { 'api', msg.queue, tostring(msg.payload_size) },
  }
end

function on_failure(msg)
  if msg.attempts > 3 then return { action = 'dlq' } end
  return { action = 'retry', delay_ms = 1500 }
end
";

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Tries a script on a message. Names of files are the same for every run.
fn try_with(script: &str, message: Option<&str>, flags: &[&str]) -> Said {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("hooks.lua"), script).unwrap();
    let mut command = fila();
    command.current_dir(directory.path());
    command.args(["hook", "test", "hooks.lua"]).args(flags);
    if let Some(message) = message {
        std::fs::write(directory.path().join("msg.json"), message).unwrap();
        command.args(["--message", "msg.json"]);
    }
    run(&mut command, b"")
}

/// Returns what was printed, without what differs from machine to machine.
fn answers(said: &Said) -> Vec<Value> {
    assert_eq!((said.stderr.as_str(), said.code), ("", Some(0)));
    let lines = said.stdout.lines().map(|line| {
        let mut answer: Value = serde_json::from_str(line).unwrap();
        let fields = answer.as_object_mut().unwrap();
        assert!(fields.remove("mean_us").unwrap().as_f64().unwrap() > 0.0);
        assert!(fields.remove("instructions").unwrap().is_u64());
        assert!(fields.remove("memory_bytes").unwrap().as_u64().unwrap() > 0);
        fields.remove("hook").unwrap();
        answer
    });
    lines.collect()
}

#[test]
fn hooks_are_tried_without_a_server() {
    let message = r#"{"headers": {"tenant": "acme"}, "payload": {"order": 7}, "queue": "mails"}"#;
    let said = try_with(BOTH, Some(message), &["--config", "weight=5"]);
    assert_eq!((said.stderr.as_str(), said.code), ("", Some(0)));
    let lines = without_times(&said.stdout);
    let lines = lines.lines().map(|line| match line.split_once("  ") {
        Some((name @ ("instructions" | "memory"), _)) => format!("{name}  [number]"),
        _ => line.to_owned(),
    });
    assert_snapshot!("hook_test", lines.collect::<Vec<_>>().join("\n"));
}

#[test]
fn one_hook_can_be_tried_and_programs_get_json() {
    let message = r#"{"attempts": 4, "error": "timeout"}"#;
    let said = try_with(BOTH, Some(message), &["--hook", "on_failure", "--json"]);
    assert_eq!(answers(&said), [serde_json::json!({"action": "dlq"})]);
    let said = try_with(BOTH, None, &["--hook", "on_enqueue", "--json"]);
    let expected = serde_json::json!({
        "fairness_key": "default", "weight": 1, "throttle_keys": ["api", "orders", "0"],
    });
    assert_eq!(answers(&said), [expected]);
}

#[test]
fn weights_of_groups_are_shown_and_checked_by_the_separator() {
    let script = "function on_enqueue(msg)
      return { fairness_key = msg.headers['tenant'], weights = { acme = 3, ['acme/batch'] = 70000 } }
    end";
    let message = r#"{"headers": {"tenant": "acme/batch/7"}}"#;
    let said = try_with(script, Some(message), &["--json"]);
    let expected = serde_json::json!({
        "fairness_key": "acme/batch/7", "weight": 1, "throttle_keys": [],
        "weights": {"acme": 3, "acme/batch": 65536},
        "adjusted": "70000 as `weights[\"acme/batch\"]`; a whole number from 1 to 65536 is expected",
    });
    assert_eq!(answers(&said), [expected]);
    let said = try_with(script, Some(message), &[]);
    let line = "  group weights   acme 3, acme/batch 65,536\n";
    assert!(said.stdout.contains(line), "{}", said.stdout);
    for (separator, says) in [
        (
            "",
            "`on_enqueue` returned 3 as `weights[\"acme\"]`; the path of a group",
        ),
        (
            ":",
            "`on_enqueue` returned 3 as `weights[\"acme\"]`; the path of a group",
        ),
        ("x", "a separator is one ASCII character"),
    ] {
        let said = try_with(script, Some(message), &["--key-separator", separator]);
        assert_ne!(said.code, Some(0), "{separator}");
        assert!(said.stderr.contains(says), "{separator}: {}", said.stderr);
    }
    let no_path = r#"{"headers": {"tenant": "acme//7"}}"#;
    let said = try_with(script, Some(no_path), &[]);
    let says = "returned \"acme//7\" as `fairness_key`; part 2 of the fairness key is empty";
    assert!(said.stderr.contains(says), "{}", said.stderr);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let failures = [
        (
            "a script that is no Lua",
            "function on_enqueue(msg)\n  return {",
            None,
        ),
        ("a script without hooks", "local x = 1", None),
        (
            "a hook that fails",
            "function on_enqueue(msg)\n  return msg.body.x\nend",
            None,
        ),
        (
            "a hook that spins",
            "function on_enqueue(msg) while true do end end",
            None,
        ),
        (
            "an answer that is none",
            "function on_enqueue(msg) return { weight = 'x' } end",
            None,
        ),
        ("a message that is no JSON", BOTH, Some("{\"headers\": ")),
        (
            "a message with a mistyped field",
            BOTH,
            Some("{\"header\": {}}"),
        ),
        (
            "a header that is no text",
            BOTH,
            Some("{\"headers\": {\"a\": 1}}"),
        ),
        (
            "a message with two payloads",
            BOTH,
            Some("{\"payload\": \"a\", \"payload_size\": 1}"),
        ),
    ];
    let lines = failures.map(|(name, script, message)| {
        let said = try_with(script, message, &[]);
        format!("{name}\n  {}", said.failure())
    });
    assert_snapshot!("hook_test_failures", lines.join("\n"));
    let said = try_with(
        BOTH,
        None,
        &["--hook", "on_failure", "--message", "missing.json"],
    );
    assert!(
        said.failure()
            .starts_with("1: error: cannot read `missing.json`: ")
    );
    let said = run(fila().args(["hook", "test", "-", "--message", "-"]), b"");
    assert_eq!(said.code, Some(2));
}

#[test]
fn what_peek_prints_is_a_message() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "hello", "--header", "tenant=acme"]);
    let peeked = server.ok(&["peek", "orders", "--json"]);
    let script = file(BOTH);
    let path = script.path().to_str().unwrap();
    let arguments = [
        "hook",
        "test",
        path,
        "--message",
        "-",
        "--json",
        "--hook",
        "on_enqueue",
    ];
    let said = server.run_with(&arguments, peeked.as_bytes());
    let expected = serde_json::json!({
        "fairness_key": "acme", "weight": 1, "throttle_keys": ["api", "orders", "5"],
    });
    assert_eq!(answers(&said), [expected]);
    let script = file(
        "function on_failure(msg)
           return { action = msg.error == 'odd' and 'retry' or 'dlq', delay_ms = msg.attempts }
         end",
    );
    let path = script.path().to_str().unwrap();
    let failed = r#"{"attempts": 7, "history": {"last_error": "odd"}}"#;
    let arguments = ["hook", "test", path, "--message", "-", "--json"];
    let said = server.run_with(&arguments, failed.as_bytes());
    let expected = serde_json::json!({"action": "retry", "delay_ms": 7});
    assert_eq!(answers(&said), [expected]);
}

#[test]
fn a_queue_gets_its_script_from_a_file_and_shows_how_it_fares() {
    let server = Server::start();
    let path = |file: &NamedTempFile| file.path().to_str().unwrap().to_owned();
    let script = file(BOTH);
    let created = ["queue", "create", "orders", "--script", &path(&script)];
    assert_eq!(server.ok(&created), "created queue `orders`\n");
    server.ok(&["enqueue", "orders", "hello", "--header", "tenant=acme"]);
    let keys = server.ok(&["key", "list", "orders", "--json"]);
    assert!(keys.contains("\"key\":\"acme\""), "{keys}");

    let moody = file("function on_enqueue(msg)\n  error('as planned')\nend");
    let fallback = "--hook-fallback=refuse";
    server.ok(&[
        "queue",
        "update",
        "orders",
        "--script",
        &path(&moody),
        fallback,
    ]);
    assert_snapshot!(
        "hook_failed",
        server.fails(&["enqueue", "orders", "hello", "--header", "tenant=acme"])
    );
    let shown = server.ok(&["queue", "inspect", "orders"]);
    let (_, hooks) = shown.split_once("\nhooks\n").unwrap();
    let hooks = hooks.split("\n\n").next().unwrap();
    assert_snapshot!("queue_inspect_hooks", without_times(hooks));
    let shown = server.ok(&["queue", "inspect", "orders", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["settings"]["hook_fallback"], "refuse");
    assert_eq!(shown["hooks"][0]["state"], "closed");
    assert_eq!(shown["hooks"][0]["failures_in_a_row"], 1);

    let broken = file("function on_enqueue(msg)\n  return {");
    assert_snapshot!(
        "queue_update_script_refused",
        server.fails(&["queue", "update", "orders", "--script", &path(&broken)])
    );
    let empty = file("\n");
    let refused = server.fails(&["queue", "update", "orders", "--script", &path(&empty)]);
    assert!(
        refused.starts_with("2: error: ") && refused.ends_with("use --no-script"),
        "{refused}"
    );
    server.ok(&["queue", "update", "orders", "--no-script"]);
    let shown = server.ok(&["queue", "inspect", "orders", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (&shown["settings"]["script"], &shown["hooks"]),
        (&Value::Null, &Value::Null)
    );
}

/// A script of the document with the text below it: the settings, a message, and the answer.
struct Example {
    script: &'static str,
    cases: Vec<(Vec<&'static str>, &'static str, &'static str)>,
}

fn examples() -> Vec<Example> {
    let mut blocks = BOOK.split("\n```lua\n").skip(1);
    let mut examples = Vec::new();
    for block in &mut blocks {
        let (script, rest) = block.split_once("\n```\n").unwrap();
        let rest = rest.strip_prefix("\n```text\n");
        let rest = rest.unwrap_or_else(|| panic!("nothing is said of what this answers: {script}"));
        let (cases, _) = rest.split_once("\n```").unwrap();
        let cases = cases.lines().map(|line| {
            let (question, answer) = line.split_once(" → ").unwrap();
            let (settings, message) = question.split_at(question.find('{').unwrap());
            (settings.split_whitespace().collect(), message, answer)
        });
        examples.push(Example {
            script,
            cases: cases.collect(),
        });
    }
    examples
}

#[test]
fn every_script_of_the_book_answers_as_the_book_says() {
    let examples = examples();
    assert!(examples.len() >= 9, "{}", examples.len());
    for Example { script, cases } in examples {
        for (settings, message, answer) in cases {
            let mut flags = vec!["--json"];
            for setting in settings {
                flags.extend(["--config", setting]);
            }
            let said = try_with(script, Some(message), &flags);
            let expected: Value = serde_json::from_str(answer).unwrap();
            assert_eq!(answers(&said), [expected], "{script}\n{message}");
        }
    }
}

#[test]
fn the_commands_of_the_book_work() {
    assert_eq!(BOOK.matches("\n```sh\n").count(), 1);
    let (_, rest) = BOOK.split_once("```sh\n").unwrap();
    let (commands, _) = rest.split_once("```").unwrap();
    let directory = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(Path::new(directory.path()).join(name), text).unwrap();
    };
    write("hooks.lua", BOTH);
    write("better.lua", BOTH);
    write("msg.json", r#"{"headers": {"tenant": "acme"}}"#);
    let server = Server::start();
    for line in commands.lines() {
        let line = line.split('#').next().unwrap();
        let arguments: Vec<&str> = line.split_whitespace().skip(1).collect();
        let said = run(
            server.command(&arguments).current_dir(directory.path()),
            b"",
        );
        assert_eq!((said.stderr.as_str(), said.code), ("", Some(0)), "{line}");
    }
}
