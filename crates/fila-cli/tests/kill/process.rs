//! The real server, in a process that can be killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    /// Starts it on a directory and waits until it listens.
    pub(crate) fn start(directory: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fila"))
            .env_clear()
            .args(["server", "--address", "127.0.0.1:0", "--log", "error"])
            // So little that the backlog is read back from the store.
            .args(["--memory-budget", "1 MiB", "--data"])
            .arg(directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("fila is listening on ");
        let address = address.unwrap_or_else(|| panic!("{line:?}"));
        Self {
            address: format!("http://{address}"),
            child,
        }
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
