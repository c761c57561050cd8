//! Text from other programs never steers the terminal, whatever command prints it.

use std::process::Command;

use crate::rig::{Said, Server, fila, run};

/// Sets a title, clears the screen, turns the letters around, goes back to overwrite: all that is not to happen.
const HOSTILE: &str = "e\u{1b}]0;v\u{7}\u{1b}[2Ji\u{9b}2J\u{202e}\u{2066}\r\u{8}\u{7f}l";

/// Runs a command as on a terminal with colours, and checks that its words are only words.
fn said(command: &mut Command, input: &[u8]) -> Said {
    let said = run(command.args(["--color", "always"]), input);
    for text in [&said.stdout, &said.stderr] {
        // Titles are bold.
        let text = text.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        let is_obeyed = |c: char| {
            (c.is_control() && c != '\n')
                || ('\u{202a}'..='\u{202e}').contains(&c)
                || c == '\u{2066}'
        };
        assert!(!text.contains(is_obeyed), "{command:?} prints {text:?}");
    }
    said
}

/// Runs a command for people and for programs, and returns both.
fn both(server: &Server, arguments: &[&str]) -> [Said; 2] {
    let human = said(&mut server.command(arguments), b"");
    let json = said(server.command(arguments).arg("--json"), b"");
    [human, json]
}

/// Runs a command that shows the hostile text to people, escaped.
fn shows(server: &Server, arguments: &[&str]) {
    let [human, _] = both(server, arguments);
    let text = human.stdout + &human.stderr;
    assert!(text.contains("\\u{"), "{arguments:?} shows {text:?}");
}

#[test]
fn names_that_are_typed_are_quoted_without_effect() {
    let server = Server::with_orders();
    for arguments in [
        &["queue", "create", HOSTILE][..],
        &["queue", "inspect", HOSTILE],
        &["queue", "update", HOSTILE, "--depth-max", "1"],
        &["queue", "pause", HOSTILE],
        &["queue", "purge", HOSTILE, "--yes"],
        &["queue", "delete", HOSTILE, "--yes"],
        &["key", "list", HOSTILE],
        &["key", "weight", HOSTILE, "acme", "2"],
        &["enqueue", HOSTILE, "x"],
        &["enqueue", HOSTILE, "x", "--count", "2"],
        &["enqueue", "orders", "x", "--delay", HOSTILE],
        &["enqueue", "orders", "x", "--header", HOSTILE],
        &["enqueue", "orders", "--file", HOSTILE],
        &["consume", HOSTILE, "--idle", "50ms"],
        &["consume", HOSTILE, "--exec", "true", "--idle", "50ms"],
        &["peek", HOSTILE],
        &["explain", HOSTILE, "acme"],
        &["redrive", HOSTILE, "--all"],
        &["top", "--queue", HOSTILE, "--interval", "100ms"],
        &["config", "get", HOSTILE],
        &["config", "delete", HOSTILE],
        &["hook", "test", HOSTILE],
        &["queue", "list", "--addr", HOSTILE],
        &[HOSTILE],
    ] {
        shows(&server, arguments);
    }
}

#[test]
fn a_group_that_holds_a_key_up_is_shown_without_effect() {
    let server = Server::with_orders();
    let key = format!("{HOSTILE}/x");
    server.ok(&["enqueue", "orders", "x", "--key", &key]);
    both(&server, &["key", "pause", "orders", HOSTILE]);
    let [human, json] = both(&server, &["explain", "orders", &key]);
    assert!(
        human.stdout.contains("waits because group `e\\u{1b}"),
        "{}",
        human.stdout
    );
    assert!(json.stdout.contains("key_paused"), "{}", json.stdout);
    server.ok(&["key", "concurrency", "orders", HOSTILE, "1"]);
    both(&server, &["key", "resume", "orders", HOSTILE]);
    both(&server, &["explain", "orders", HOSTILE]);
}

#[test]
fn keys_headers_values_and_payloads_are_shown_without_effect() {
    let server = Server::with_orders();
    let header = format!("{HOSTILE}={HOSTILE}");
    let send = [
        "enqueue", "orders", HOSTILE, "--key", HOSTILE, "--header", &header,
    ];
    both(&server, &send);
    said(
        &mut server.command(&[&send[..], &["--throttle-key", HOSTILE]].concat()),
        b"",
    );
    shows(&server, &["peek", "orders"]);
    shows(&server, &["peek", "orders", "--key", HOSTILE]);
    shows(&server, &["key", "list", "orders"]);
    shows(&server, &["key", "list", "orders", "--tree"]);
    shows(&server, &["key", "list", "orders", "--within", "\u{1b}[2J"]);
    shows(&server, &["key", "depth-max", "orders", HOSTILE, "2"]);
    shows(&server, &["key", "weight", "orders", HOSTILE, "2"]);
    shows(&server, &["key", "concurrency", "orders", HOSTILE, "2"]);
    shows(&server, &["key", "pause", "orders", HOSTILE]);
    shows(&server, &["explain", "orders", HOSTILE]);
    shows(&server, &["queue", "inspect", "orders"]);
    shows(
        &server,
        &["top", "--queue", "orders", "--interval", "100ms"],
    );
    shows(&server, &["key", "resume", "orders", HOSTILE]);
    let json = server.ok(&["consume", "orders", "--limit", "1", "--json"]);
    let message: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(message["key"], HOSTILE);
    assert_eq!(message["headers"][HOSTILE], HOSTILE);
    assert_eq!(message["payload"], HOSTILE);
    both(&server, &["consume", "orders", "--limit", "1", "--json"]);
    both(&server, &["config", "set", "feature:x", HOSTILE]);
    shows(&server, &["config", "list"]);
    let line = format!("{{{}:1}}", serde_json::to_string(HOSTILE).unwrap());
    said(
        &mut server.command(&["enqueue", "orders", "--json-lines"]),
        line.as_bytes(),
    );
}

#[test]
fn the_last_words_of_a_command_are_shown_without_effect() {
    let server = Server::start();
    server.ok(&["queue", "create", "orders", "--retry-attempts-max", "1"]);
    let key = ["enqueue", "orders", HOSTILE, "--key", HOSTILE];
    server.ok(&key);
    // The command's own words pass through as they are; the summary of the run quotes them.
    let exec = "cat >&2; exit 1";
    let failing = ["consume", "orders", "--exec", exec, "--limit", "1"];
    let failed = server.run(&failing);
    let last = failed.stderr.rsplit("error: ").next().unwrap();
    assert!(
        last.contains("\\u{9b}2J") && !last.contains('\u{1b}'),
        "{last:?}"
    );
    shows(&server, &["peek", "orders.dlq"]);
    both(
        &server,
        &["redrive", "orders.dlq", "--all", "--key", HOSTILE],
    );
}

#[test]
fn the_errors_of_a_hook_are_shown_without_effect() {
    let server = Server::start();
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("hooks.lua");
    let script = path.to_str().unwrap();
    let raise = |kind: &str| format!("{kind}(\"{}\")", HOSTILE.replace('\r', "\\r"));
    std::fs::write(
        &path,
        format!("function on_enqueue(m) {} end", raise("error")),
    )
    .unwrap();
    shows(&server, &["hook", "test", script]);
    server.ok(&[
        "queue",
        "create",
        "orders",
        "--script",
        script,
        "--hook-fallback",
        "refuse",
    ]);
    shows(&server, &["enqueue", "orders", "x"]);
    shows(&server, &["enqueue", "orders", "x", "--count", "2"]);
    shows(&server, &["queue", "inspect", "orders"]);
    std::fs::write(&path, raise("error")).unwrap();
    shows(&server, &["queue", "update", "orders", "--script", script]);
    shows(&server, &["queue", "create", "mails", "--script", script]);
    let answer = HOSTILE.replace('\r', "\\r");
    std::fs::write(
        &path,
        format!("function on_enqueue(m) return {{fairness_key = \"{answer}\", throttle_keys = {{\"{answer}\"}}}} end"),
    )
    .unwrap();
    shows(&server, &["hook", "test", script]);
}

#[test]
fn a_configuration_file_is_quoted_without_effect() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("fila.toml");
    std::fs::write(
        &path,
        format!(
            "[server]\naddress = {}\n",
            serde_json::to_string(HOSTILE).unwrap()
        ),
    )
    .unwrap();
    let mut server = fila();
    server.args(["server", "--config"]).arg(&path);
    let ended = said(&mut server, b"");
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
}
