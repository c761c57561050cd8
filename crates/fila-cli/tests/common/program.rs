//! `fila server` in a process of its own, for all tests that start one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A server that runs. Dropping it kills it.
pub(crate) struct Running {
    pub(crate) process: Child,
    /// Where it listens.
    pub(crate) address: String,
}

/// Returns the command `fila`, in an empty environment. Servers use the engine of `FILA_TEST_ENGINE`, if it is set, unless
/// their arguments name another.
pub(crate) fn fila() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fila"));
    command.env_clear();
    if let Ok(engine) = std::env::var("FILA_TEST_ENGINE") {
        command.env("FILA_STORAGE__ENGINE", engine);
    }
    command
}

impl Running {
    /// Starts a server by this command, and waits for the line that says where it listens.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("fila is listening on ");
        Self {
            address: address.unwrap_or_else(|| panic!("{line:?}")).to_owned(),
            process,
        }
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
