//! What went wrong, in one line that says what to try.

use insta::assert_snapshot;

use crate::rig::{Server, fila, run};

#[test]
fn a_server_that_is_not_there() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let mut failures = Vec::new();
    for arguments in [
        &["queue", "list"][..],
        &["key", "list", "orders"],
        &["config", "list"],
        &["enqueue", "orders", "x"],
        &["consume", "orders"],
        &["peek", "orders"],
        &["explain", "orders", "acme"],
        &["bench"],
    ] {
        let said = run(fila().args(arguments).args(["--addr", &address]), b"");
        let failure = said.failure().replace(&address, "[address]");
        // What systems call it differs.
        let (before, cause) = failure.split_once(" (").unwrap();
        let (_, after) = cause.split_once("); ").unwrap();
        failures.push(format!("{before} ([cause]); {after}"));
    }
    failures.dedup();
    assert_snapshot!("error_server_down", failures.join("\n"));
}

#[test]
fn a_server_that_has_all_its_connections() {
    use std::io::Write;

    let server = Server::start_with(&["limits.connections=1"]);
    let mut held = std::net::TcpStream::connect(server.address()).unwrap();
    // The preface of HTTP/2 and empty settings: an idle connection that the server keeps.
    held.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut failures = Vec::new();
    for arguments in [
        &["queue", "list"][..],
        &["enqueue", "orders", "x"],
        &["consume", "orders"],
        &["peek", "orders"],
    ] {
        failures.push(server.fails(arguments));
    }
    failures.dedup();
    let expected = "1: error: the server has all its 1 connections (limits.connections); close some, or raise the limit";
    assert_eq!(failures, [expected]);
}

#[test]
fn an_address_that_is_none() {
    let mut failures = Vec::new();
    for address in ["not an address", "ftp://host:1", "http://"] {
        let said = run(fila().args(["queue", "list", "--addr", address]), b"");
        failures.push(said.failure());
    }
    assert_snapshot!("error_wrong_address", failures.join("\n"));
}

#[test]
fn a_queue_that_is_not_there() {
    let server = Server::with_orders();
    let mut failures = Vec::new();
    for arguments in [
        &["queue", "inspect", "oders"][..],
        &["queue", "inspect", "mails"],
        &["queue", "update", "mails", "--depth-max", "1"],
        &["queue", "pause", "mails"],
        &["queue", "resume", "mails"],
        &["queue", "purge", "mails", "--yes"],
        &["queue", "delete", "mails", "--yes"],
        &["key", "list", "mails"],
        &["key", "pause", "mails", "acme"],
        &["enqueue", "mails", "x"],
        &["consume", "mails"],
        &["peek", "mails"],
        &["explain", "mails", "acme"],
    ] {
        failures.push(server.fails(arguments));
    }
    failures.dedup();
    assert_snapshot!("error_missing_queue", failures.join("\n"));
}

#[test]
fn what_the_server_refuses() {
    let server = Server::with_orders();
    let failures = [
        server.fails(&["queue", "create", "orders"]),
        server.fails(&["queue", "create", "no spaces"]),
        server.fails(&["queue", "create", "mails", "--visibility-timeout", "0"]),
        server.fails(&["enqueue", "orders", "x", "--weight", "0"]),
    ];
    assert_snapshot!("error_refused", failures.join("\n"));
}

#[test]
fn a_command_that_is_wrong() {
    let mut said = String::new();
    for arguments in [
        &["queue", "lst"][..],
        &["enque", "orders", "x"],
        &["queue", "create", "orders", "--visibility-timeot", "5"],
        &["queue", "create", "orders", "--visibility-timeout", "soon"],
        &["queue", "create", "orders", "--ordering", "fifo"],
        &["queue", "update", "orders"],
        &["enqueue", "orders", "x", "--header", "tenant"],
        &["consume", "orders", "--ack", "--exec", "true"],
        &["consume", "orders", "--concurrency", "2"],
        &["consume", "orders", "--raw", "--json"],
        &["server", "--addr", "127.0.0.1:1"],
        &["server", "--json"],
    ] {
        let wrong = run(fila().args(arguments), b"");
        assert_eq!(wrong.code, Some(2), "{arguments:?}");
        assert_eq!(wrong.stdout, "");
        said += &format!("$ fila {}\n{}\n", arguments.join(" "), wrong.stderr);
    }
    assert_snapshot!("error_usage", said);
}

#[test]
fn a_time_without_a_unit_below_zero_or_too_long_is_refused_in_plain_words() {
    let server = Server::with_orders();
    let said = |time: &str| server.run(&["enqueue", "orders", "x", "--delay", time]);
    for (time, expected) in [
        (
            "5",
            "error: invalid value '5' for '--delay <TIME>': the unit is missing; write `5s` or `5ms`",
        ),
        (
            "-5s",
            "error: invalid value '-5s' for '--delay <TIME>': a time cannot be negative; write `30s`",
        ),
        (
            "soon",
            "error: invalid value 'soon' for '--delay <TIME>': this is not a time; write `30s`, `5m`, `2h` or `7d`",
        ),
    ] {
        let refused = said(time);
        assert_eq!(refused.code, Some(2), "{time}");
        assert_eq!(refused.stderr.lines().next(), Some(expected));
        assert!(!refused.stderr.contains("tip:"), "{}", refused.stderr);
    }
    assert!(
        said("400d")
            .stderr
            .starts_with("error: 400d is too long a delay")
    );
    // The command of the concepts: milliseconds.
    let create = ["queue", "create", "mails", "--visibility-timeout"];
    server.ok(&[&create[..], &["30000", "--json"]].concat());
    let inspected = server.ok(&["queue", "inspect", "mails"]);
    assert!(
        inspected.contains("visibility timeout    30 s"),
        "{inspected}"
    );
}

#[test]
fn an_address_from_the_environment_is_not_part_of_the_usage() {
    let usage = |address: Option<&str>| {
        let mut command = fila();
        command.args(["queue", "create"]);
        if let Some(address) = address {
            command.env("FILA_ADDR", address);
        }
        run(&mut command, b"").stderr
    };
    assert!(
        usage(None).contains("Usage: fila queue create <QUEUE>\n"),
        "{}",
        usage(None)
    );
    assert_eq!(usage(Some("http://127.0.0.1:7777")), usage(None));
    // A variable that is empty is as good as none.
    let mut help = fila();
    let help = run(
        help.env("FILA_ADDR", "http://127.0.0.1:7777").arg("queue"),
        b"",
    );
    assert!(help.stderr.contains("Usage: fila queue"), "{}", help.stderr);
    assert_eq!(help.code, Some(2));
}
