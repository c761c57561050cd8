//! The processes: servers and consumers.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::Seen;
use crate::consumer::ADDRESS;
use crate::program::{Running, fila};

/// Returns a port that is free now, to be used by one server after another.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Starts a server, and returns when it listens.
pub(crate) fn server(directory: &Path, port: u16) -> Running {
    Running::start(
        fila()
            .args(["server", "--log", "error"])
            .arg("--address")
            .arg(format!("127.0.0.1:{port}"))
            .arg("--data")
            .arg(directory),
    )
}

pub(crate) struct Consumer {
    child: Child,
    reading: Option<JoinHandle<()>>,
}

impl Consumer {
    /// Starts a consumer in a process of its own: this very test program, asked for that part of it.
    pub(crate) fn start(port: u16, seen: &Arc<Mutex<Seen>>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "consumer::consume", "--nocapture"])
            .env(ADDRESS, format!("127.0.0.1:{port}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let seen = seen.clone();
        let reading = std::thread::spawn(move || {
            // The words of the test runner are no numbers.
            let lines = output.lines().map_while(Result::ok);
            for line in lines.filter(|line| line.starts_with(|c: char| c.is_ascii_digit())) {
                seen.lock().unwrap().note(&line);
            }
        });
        Self {
            child,
            reading: Some(reading),
        }
    }

    /// Kills it, and reads what it has printed to the end.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reading) = self.reading.take() {
            reading.join().unwrap();
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.end();
    }
}
