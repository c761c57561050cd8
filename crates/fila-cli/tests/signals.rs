#![cfg(test)] // helpers may unwrap, as tests do
//! `fila server` as a supervisor sees it: start and stop.

#[path = "common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use program::{Running, fila};

/// Starts a server in this directory.
fn server(directory: &Path) -> Running {
    Running::start(fila().current_dir(directory).args([
        "server",
        "--address",
        "127.0.0.1:0",
        "--log",
        "warn",
    ]))
}

impl Running {
    fn signal(&self, name: &str) {
        let process = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &process]).status();
        assert!(sent.unwrap().success());
    }

    fn readiness(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = "GET /readyz HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn a_server_says_where_it_listens_and_ends_in_order_when_it_is_told_to() {
    let directory = TempDir::new().unwrap();
    for signal in ["TERM", "INT"] {
        // The second one finds the directory free: the first has closed its store.
        let mut server = server(directory.path());
        assert!(server.readiness().ends_with("ready\n"));
        server.signal(signal);
        let ended = server.process.wait().unwrap();
        assert_eq!(ended.code(), Some(0), "{signal}");
        assert!(TcpStream::connect(&server.address).is_err());
    }
}

#[test]
fn a_second_server_on_the_same_directory_says_what_to_do() {
    let directory = TempDir::new().unwrap();
    let _first = server(directory.path());
    let second = fila()
        .current_dir(directory.path())
        .args(["server", "--address", "127.0.0.1:0", "--log", "error"])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("is in use; stop the other server"), "{said}");
}
