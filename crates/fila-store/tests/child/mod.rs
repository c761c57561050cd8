//! Another process that runs one ignored test of the same binary, and tells what it does line by line.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

const DIRECTORY: &str = "FILA_STORE_TEST_DIRECTORY";

/// Marks what the child says among what the test runner prints.
const MARK: &str = "@ ";

pub(crate) struct Process {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

/// Starts the test `name` in a process of its own; no file of it may grow beyond `file_bytes`.
pub(crate) fn run(name: &str, directory: &Path, file_bytes: Option<u64>) -> Process {
    let binary = std::env::current_exe().unwrap();
    let mut command = match file_bytes {
        None => Command::new(&binary),
        Some(bytes) => {
            // Ignoring the signal makes writes fail instead. The shell counts in blocks of 512 bytes.
            let script = format!(
                "trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"",
                bytes / 512
            );
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(script).arg(&binary);
            shell
        }
    };
    let mut child = command
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap()).lines();
    Process { child, output }
}

impl Process {
    /// Returns what the child says, until it ends.
    pub(crate) fn lines(&mut self) -> impl Iterator<Item = String> {
        let lines = self.output.by_ref().map_while(Result::ok);
        lines.filter_map(|line| line.strip_prefix(MARK).map(str::to_owned))
    }

    /// Ends it the way a power switch would, as far as it can tell.
    #[allow(dead_code, reason = "not every test binary kills")]
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    #[allow(dead_code, reason = "not every test binary waits for the end")]
    pub(crate) fn succeeded(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

/// In the child: where to work.
pub(crate) fn directory() -> PathBuf {
    let directory = std::env::var_os(DIRECTORY);
    directory.expect("started by another test").into()
}

/// In the child: sends a word to the parent. Ends the process if the parent does not listen.
pub(crate) fn say(word: impl std::fmt::Display) {
    // In one write, so that a kill does not tear it; the runner may have left its own line unfinished.
    let line = format!("\n{MARK}{word}\n");
    let mut output = std::io::stdout().lock();
    output.write_all(line.as_bytes()).unwrap();
    output.flush().unwrap();
}
