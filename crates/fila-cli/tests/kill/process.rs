//! The real server, in a process that can be killed.

use std::path::Path;

use crate::program::{Running, fila};

pub(crate) struct Server {
    running: Running,
    pub(crate) address: String,
}

impl Server {
    /// Starts it on a directory and waits until it listens.
    pub(crate) fn start(directory: &Path) -> Self {
        let running = Running::start(
            fila()
                .args(["server", "--address", "127.0.0.1:0", "--log", "error"])
                // So little that the backlog is read back from the store.
                .args(["--memory-budget", "1 MiB", "--data"])
                .arg(directory),
        );
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
