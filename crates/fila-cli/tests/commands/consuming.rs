//! `fila consume`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use insta::assert_snapshot;

use crate::rig::{Server, eventually, without_ids};

#[test]
fn what_is_only_looked_at_is_there_as_if_nothing_had_happened() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "a", "b", "c"]);
    assert_eq!(
        server.ok(&["consume", "orders", "--idle", "200ms"]),
        "a\nb\nc\n"
    );
    assert_eq!(server.ok(&["consume", "orders", "--limit", "2"]), "a\nb\n");
    assert_eq!(server.stat("orders", "ready"), 3);
    let again = server.ok(&["consume", "orders", "--limit", "1", "--json"]);
    assert!(again.contains("\"attempt\":1,"), "{again}");
}

#[test]
fn what_is_acknowledged_is_gone() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "a", "b", "c"]);
    assert_eq!(
        server.ok(&["consume", "orders", "--ack", "--limit", "2", "--raw"]),
        "ab"
    );
    assert_eq!(
        server.ok(&["consume", "orders", "--ack", "--idle", "200ms"]),
        "c\n"
    );
    assert_eq!(server.stat("orders", "depth"), 0);
    assert_eq!(server.stat("orders", "acked_total"), 3);
    let said = server.run(&["consume", "orders", "--ack", "--idle", "50ms"]);
    assert_eq!(said.stderr, "note: the queue has no message to deliver\n");
    assert_eq!((said.stdout.as_str(), said.code), ("", Some(0)));
    let idle = ["consume", "orders", "--ack", "--idle", "50ms", "--json"];
    assert_eq!(server.ok(&idle), "");
}

#[test]
fn a_message_is_a_line_of_json() {
    let server = Server::with_orders();
    server.ok(&[
        "enqueue",
        "orders",
        "text",
        "--key",
        "acme",
        "--weight",
        "3",
        "--header",
        "tenant=acme",
    ]);
    server.run_with(
        &["enqueue", "orders", "--file", "-", "--key", "bytes"],
        b"\xff\x00",
    );
    let json = server.ok(&["consume", "orders", "--ack", "--limit", "2", "--json"]);
    let lines = json.lines().map(|line| {
        let (before, after) = line.split_once("\"enqueued_at_ms\":").unwrap();
        let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
        format!("{before}\"enqueued_at_ms\":[time]{after}")
    });
    let lines = lines.collect::<Vec<_>>().join("\n");
    assert_snapshot!("consume_json", without_ids(&lines));
}

#[test]
fn what_was_not_written_is_not_acknowledged() {
    let server = Server::with_orders();
    let many: String = (0..20_000)
        .map(|number| format!("message number {number}\n"))
        .collect();
    server.run_with(&["enqueue", "orders", "--lines"], many.as_bytes());
    let script = format!(
        "'{}' consume orders --ack --addr {} | head -c 10 > /dev/null",
        env!("CARGO_BIN_EXE_fila"),
        server.address()
    );
    let said = crate::rig::run(Command::new("sh").args(["-c", &script]), b"");
    assert_eq!(said.stderr, "");
    // A pipe holds 64 KiB: what did not fit into it is still there, and nothing of it counts as tried.
    let (acked, depth) = (
        server.stat("orders", "acked_total"),
        server.stat("orders", "depth"),
    );
    assert_eq!(acked + depth, 20_000);
    assert!(acked < 10_000, "{acked}");
    assert_eq!(server.stat("orders", "nacked_total"), 0);
}

#[test]
fn a_command_gets_the_message_and_decides() {
    let server = Server::with_orders();
    server.ok(&[
        "enqueue",
        "orders",
        "seven",
        "--key",
        "acme",
        "--header",
        "trace-id=t1",
    ]);
    let script = "cat; echo \" $FILA_QUEUE $FILA_KEY $FILA_ATTEMPT $FILA_HEADER_TRACE_ID\"; test -n \"$FILA_MESSAGE_ID\"";
    let said = server.run(&["consume", "orders", "--exec", script, "--limit", "1"]);
    assert_eq!((said.stderr.as_str(), said.code), ("", Some(0)));
    assert_eq!(said.stdout, "seven orders acme 1 t1\n");
    assert_eq!(server.stat("orders", "acked_total"), 1);
}

#[test]
fn a_command_that_fails_gives_the_message_back_with_its_last_words() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "good", "bad", "good"]);
    let script =
        "read line; echo looking >&2; test $line = good || { echo $line is not good >&2; exit 3; }";
    let exec = [
        "consume",
        "orders",
        "--exec",
        script,
        "--idle",
        "200ms",
        "--retry-delay",
        "1h",
    ];
    let said = server.run(&exec);
    assert_eq!((said.stdout.as_str(), said.code), ("", Some(1)));
    let last = said.stderr.lines().last().unwrap();
    assert_snapshot!("consume_exec_failed", last);
    assert_eq!(server.stat("orders", "acked_total"), 2);
    assert_eq!(server.stat("orders", "nacked_total"), 1);
    assert_eq!(server.stat("orders", "delayed"), 1);
}

#[test]
fn a_silent_command_fails_with_its_exit_code() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "x"]);
    let exec = [
        "consume", "orders", "--exec", "exit 7", "--limit", "1", "--json",
    ];
    let said = server.run(&exec);
    assert_snapshot!(
        "consume_exec_silent",
        format!("{}{}", said.stdout, said.stderr)
    );
}

#[test]
fn as_many_commands_run_at_once_as_may() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "x", "--count", "4"]);
    let directory = tempfile::TempDir::new().unwrap();
    // Each waits until all four have begun.
    let script = "touch began-$FILA_MESSAGE_ID; n=0; while [ $(ls began-* | wc -l) -lt 4 ] && [ $n -lt 2000 ]; do sleep 0.01; n=$((n+1)); done; [ $n -lt 2000 ]";
    let mut command = server.command(&[
        "consume",
        "orders",
        "--exec",
        script,
        "--concurrency",
        "4",
        "--limit",
        "4",
    ]);
    let said = crate::rig::run(command.current_dir(directory.path()), b"");
    assert_eq!((said.stderr.as_str(), said.code), ("", Some(0)));
    assert_eq!(server.stat("orders", "acked_total"), 4);
}

#[test]
fn a_following_consumer_ends_in_order_when_told_to() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "first"]);
    let mut following = server
        .command(&["consume", "orders", "--ack", "--follow"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "first");
    server.ok(&["enqueue", "orders", "second"]);
    assert_eq!(lines.next().unwrap().unwrap(), "second");
    interrupt(&following);
    assert_eq!(following.wait().unwrap().code(), Some(0));
    eventually(|| server.stat("orders", "consumers") == 0);
    assert_eq!(server.stat("orders", "acked_total"), 2);
}

#[test]
fn a_command_that_runs_is_not_interrupted_with_us() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "x", "y"]);
    let directory = tempfile::TempDir::new().unwrap();
    let go = directory.path().join("go");
    let script = "echo began; n=0; while [ ! -e go ] && [ $n -lt 2000 ]; do sleep 0.01; n=$((n+1)); done; [ -e go ]";
    let mut working = server
        .command(&["consume", "orders", "--follow", "--exec", script])
        .current_dir(directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(working.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "began");
    interrupt(&working);
    std::fs::write(go, "").unwrap();
    assert_eq!(working.wait().unwrap().code(), Some(0));
    assert_eq!(server.stat("orders", "nacked_total"), 0);
    let acked = server.stat("orders", "acked_total");
    // The signal may come after the first, but it does come.
    assert!((1..=2).contains(&acked), "{acked}");
    eventually(|| server.stat("orders", "ready") == 2 - acked);
}

#[test]
fn a_server_that_has_gone_is_not_the_end_of_a_queue() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "first"]);
    let mut consuming = server
        .command(&["consume", "orders", "--ack", "--idle", "2s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(consuming.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "first");
    drop(server);
    let output = consuming.wait_with_output().unwrap();
    // Perhaps before it had taken our word for the first one.
    assert!(matches!(output.status.code(), Some(1 | 3)), "{output:?}");
    assert_eq!(
        output.stderr.iter().filter(|byte| **byte == b'\n').count(),
        1
    );
}

#[test]
fn a_following_consumer_reports_that_the_server_has_gone() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "first"]);
    let mut following = server
        .command(&["consume", "orders", "--ack", "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "first");
    eventually(|| server.stat("orders", "acked_total") == 1);
    drop(server);
    let mut warnings = BufReader::new(following.stderr.take().unwrap()).lines();
    let warning = warnings.next().unwrap().unwrap();
    assert!(warning.contains("subscribing again"), "{warning}");
    interrupt(&following);
    drop(warnings);
    assert_eq!(following.wait().unwrap().code(), Some(0));
}

fn interrupt(process: &Child) {
    let process = process.id().to_string();
    let sent = Command::new("kill").args(["-s", "INT", &process]).status();
    assert!(sent.unwrap().success());
}
