#![cfg(test)] // helpers may unwrap, as tests do
//! `fila server` whose standard error is a pipe that is not read: it serves all calls and ends when it is told to.

#[path = "common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use fila_sdk::{Client, Expected};
use tempfile::TempDir;

use program::{Running, fila};

/// Configuration changes that the server has to answer in any case: more than six times what once stopped it.
const CHANGES_MIN: u32 = 2_500;

/// Changes after which lines must have been dropped.
const CHANGES_MAX: u32 = 200_000;

/// Starts a server whose standard error is a pipe, which is not read.
fn server(directory: &TempDir) -> Running {
    Running::start(
        fila()
            .current_dir(directory.path())
            .args(["server", "--address", "127.0.0.1:0", "--log", "debug"])
            .args(["--set", "storage.engine=memory"])
            .stderr(Stdio::piped()),
    )
}

/// Changes the runtime configuration until log lines have been dropped. Returns how many were dropped then.
fn flood(server: &Running) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = Client::connect(&server.address).await.unwrap();
        let admin = client.admin();
        for number in 0..CHANGES_MAX {
            let value = number.to_string();
            let set = admin.set_config("flag", value, Expected::Any).await;
            set.unwrap();
            if number >= CHANGES_MIN && number % 250 == 0 && dropped(server) > 0 {
                return;
            }
        }
    });
    dropped(server)
}

/// Returns how many log lines the server has dropped, by its metrics.
fn dropped(server: &Running) -> u64 {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let mut lines = answer.lines();
    let line = lines.find_map(|line| line.strip_prefix("fila_log_lines_dropped_total "));
    line.unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
}

/// Tells the server to end, and returns its exit code.
fn terminate(server: &mut Running) -> Option<i32> {
    let process = server.process.id().to_string();
    let sent = Command::new("kill").args(["-s", "TERM", &process]).status();
    assert!(sent.unwrap().success());
    server.process.wait().unwrap().code()
}

#[test]
fn a_log_that_is_not_read_stops_neither_calls_nor_the_end() {
    let directory = TempDir::new().unwrap();
    let mut server = server(&directory);
    assert!(flood(&server) > 0, "the log takes everything");
    assert_eq!(terminate(&mut server), Some(0));
}

#[test]
fn a_reader_that_comes_back_is_told_how_many_lines_are_missing() {
    let directory = TempDir::new().unwrap();
    let mut server = server(&directory);
    let missing = flood(&server);
    assert!(missing > 0, "the log takes everything");

    let mut log = BufReader::new(server.process.stderr.take().unwrap()).lines();
    let text = "log lines were dropped here, because standard error was not read";
    let notice = log.find(|line| line.as_ref().unwrap().contains(text));
    let notice = notice.unwrap().unwrap();
    let (_, lines) = notice.split_once(" lines=").unwrap();
    let lines: u64 = lines.trim().parse().unwrap();
    assert!(lines > 0 && lines <= dropped(&server), "{notice}");

    // The log goes on, to its last line.
    let rest = std::thread::spawn(move || log.map(Result::unwrap).collect::<Vec<_>>());
    assert_eq!(terminate(&mut server), Some(0));
    let rest = rest.join().unwrap();
    assert!(
        rest.iter().any(|line| line.contains("shutting down")),
        "{rest:#?}"
    );
}
