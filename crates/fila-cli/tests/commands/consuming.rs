//! `fila consume`.

use std::io::{BufRead, BufReader, Read};
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

/// The capacity of a pipe on Linux, and at least that of one elsewhere.
const PIPE_BYTES: usize = 1 << 16;

/// Consumes into a pipe whose reader takes the first bytes and closes it, and returns how many messages are gone.
fn acked_by(server: &Server, taken: usize) -> u64 {
    let mut consuming = server
        .command(&["consume", "orders", "--ack"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = consuming.stdout.take().unwrap();
    reader.read_exact(&mut vec![0; taken]).unwrap();
    drop(reader);
    let ended = consuming.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert_eq!(ended.status.code(), Some(0));
    server.stat("orders", "acked_total")
}

#[test]
fn what_was_written_is_acknowledged_and_the_rest_is_given_back_when_the_reader_closes_the_pipe() {
    let server = Server::with_orders();
    let payload = vec![b'x'; 16 << 10];
    let line = payload.len() + 1;
    let send = ["enqueue", "orders", "--file", "-", "--count", "300"];
    server.run_with(&send, &payload);
    // In the middle of the eleventh message, so ten were read. What the reader has not read fits into the pipe.
    let acked = acked_by(&server, 10 * line + 1);
    let unread = PIPE_BYTES / line + 1;
    assert!((10..=10 + unread as u64).contains(&acked), "{acked}");
    eventually(|| server.stat("orders", "ready") == 300 - acked);
    assert_eq!(server.stat("orders", "nacked_total"), 0);
    let next = server.ok(&["consume", "orders", "--limit", "1", "--json"]);
    assert!(next.contains("\"attempt\":1,"), "an attempt was charged");
}

#[test]
fn a_reader_of_one_short_line_costs_less_than_the_pipe_holds() {
    let server = Server::with_orders();
    let line = "message\n";
    let many = line.repeat(20_000);
    server.run_with(&["enqueue", "orders", "--lines"], many.as_bytes());
    let acked = acked_by(&server, line.len());
    assert!(
        (1..=1 + PIPE_BYTES / line.len()).contains(&(acked as usize)),
        "{acked}"
    );
    eventually(|| server.stat("orders", "ready") == 20_000 - acked);
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
fn a_second_interrupt_ends_a_busy_run_with_its_commands() {
    let server = Server::with_orders();
    server.ok(&["enqueue", "orders", "x", "--count", "6"]);
    // Ends by a signal only.
    let script = "echo began; tail -f /dev/null";
    let mut working = server
        .command(&[
            "consume",
            "orders",
            "--follow",
            "--exec",
            script,
            "--concurrency",
            "2",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(working.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "began");
    assert_eq!(lines.next().unwrap().unwrap(), "began");
    interrupt(&working);
    let mut notes = BufReader::new(working.stderr.take().unwrap()).lines();
    assert_eq!(
        notes.next().unwrap().unwrap(),
        "note: waiting for 2 running commands; a second Ctrl-C ends them"
    );
    // Messages that waited behind the commands are for other consumers now.
    eventually(|| server.stat("orders", "ready") == 4);
    assert_eq!(server.stat("orders", "leased"), 2);
    interrupt(&working);
    assert_eq!(working.wait().unwrap().code(), Some(130));
    // The output is closed once the last process that has it has ended.
    assert!(lines.next().is_none());
    assert_eq!(server.stat("orders", "acked_total"), 0);
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

#[test]
fn a_consumer_ends_with_the_reason_if_the_server_cannot_deliver_any_more() {
    let directory = tempfile::TempDir::new().unwrap();
    let server = Server::start_on(directory.path());
    server.ok(&["queue", "create", "orders"]);
    server.ok(&["enqueue", "orders", "first"]);
    server.break_store();
    let reason = "error: the server delivers nothing, because its store takes no more writes; look at the server's log and restart it";
    for mode in [
        &["--follow"][..],
        &["--idle", "50ms"],
        &["--follow", "--exec", "cat"],
    ] {
        let consume = [&["consume", "orders"][..], mode].concat();
        let ended = server.run(&consume);
        assert_eq!(ended.code, Some(1), "{mode:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().last(), Some(reason), "{mode:?}");
    }
}

fn interrupt(process: &Child) {
    let process = process.id().to_string();
    let sent = Command::new("kill").args(["-s", "INT", &process]).status();
    assert!(sent.unwrap().success());
}
