//! The real server, in a process that can be killed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::program::{Running, fila};

pub(crate) struct Server {
    running: Running,
    pub(crate) address: String,
}

impl Server {
    /// Starts it on a directory and waits until it listens.
    pub(crate) fn start(directory: &Path) -> Self {
        let running = Running::start(&mut command(directory));
        Self {
            address: format!("http://{}", running.address),
            running,
        }
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        self.running.kill();
    }
}

fn command(directory: &Path) -> Command {
    let mut command = fila();
    command
        .args(["server", "--address", "127.0.0.1:0", "--log", "error"])
        // So little that the backlog is read back from the store.
        .args(["--memory-budget", "1 MiB", "--data"])
        .arg(directory);
    command
}

/// Starts a server and kills it after this time, wherever it is then.
pub(crate) fn killed_early(directory: &Path, after: Duration) {
    let mut command = command(directory);
    let mut process = command.stdout(Stdio::null()).spawn().unwrap();
    // The moment is the point: there is nothing to wait for.
    std::thread::sleep(after);
    process.kill().unwrap();
    process.wait().unwrap();
}
