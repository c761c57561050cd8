//! A real server, the real command, and what it says without what differs from run to run.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::program::{self, Running};

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server in a process of its own, with nothing in it.
pub(crate) struct Server {
    running: Running,
}

/// The output of a command, and its exit code.
pub(crate) struct Said {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

/// Returns the command in an empty environment, but for the way to programs.
pub(crate) fn fila() -> Command {
    let mut command = program::fila();
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with these settings.
    pub(crate) fn start_with(settings: &[&str]) -> Self {
        let mut command = fila();
        command
            .args(["server", "--address", "127.0.0.1:0", "--log", "error"])
            .args(["--set", "storage.engine=memory"]);
        for setting in settings {
            command.args(["--set", setting]);
        }
        let running = Running::start(&mut command);
        Self { running }
    }

    /// Starts one with its data in a directory, whose store [`Self::break_store`] can break.
    pub(crate) fn start_on(directory: &Path) -> Self {
        let mut command = Command::new("sh");
        // Without the trap, the signal of a file that is too large would end the server.
        let script = "trap '' XFSZ; exec \"$0\" server --address 127.0.0.1:0 --log off";
        command.args(["-c", script, env!("CARGO_BIN_EXE_fila")]);
        let running = Running::start(command.current_dir(directory));
        Self { running }
    }

    /// Lets every write to a file fail, which the server's store notices with the next change.
    pub(crate) fn break_store(&self) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let server = Pid::from_child(&self.running.process);
        prlimit(Some(server), Resource::Fsize, none).unwrap();
        let refused = self.run(&["config", "set", "key", "value"]);
        assert_ne!(refused.code, Some(0), "the store still works");
    }

    pub(crate) fn address(&self) -> &str {
        &self.running.address
    }

    /// Starts one with a queue `orders`.
    pub(crate) fn with_orders() -> Self {
        let server = Self::start();
        server.ok(&["queue", "create", "orders"]);
        server
    }

    /// Returns the command with this server's address.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fila();
        command.env("FILA_ADDR", self.address()).args(arguments);
        command
    }

    /// Runs a command.
    pub(crate) fn run(&self, arguments: &[&str]) -> Said {
        run(&mut self.command(arguments), b"")
    }

    /// Runs a command with this on its standard input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &[u8]) -> Said {
        run(&mut self.command(arguments), input)
    }

    /// Runs a command that must succeed without a word on the standard error, and returns what it printed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
        assert_eq!(said.stderr, "", "{arguments:?}");
        said.stdout
    }

    /// Runs a command that must fail, and returns how it ended, and the one line that it said.
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        self.run(arguments).failure()
    }

    /// Returns what a queue's statistics say.
    pub(crate) fn stat(&self, queue: &str, name: &str) -> u64 {
        let text = self.ok(&["queue", "inspect", queue, "--json"]);
        let queue: serde_json::Value = serde_json::from_str(&text).unwrap();
        queue["stats"][name].as_u64().unwrap()
    }
}

impl Said {
    /// Returns how it ended, and the one line that it said.
    pub(crate) fn failure(&self) -> String {
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        format!("{}: {}", self.code.unwrap(), self.stderr.trim_end())
    }
}

/// Runs a command to its end, within patience.
pub(crate) fn run(command: &mut Command, input: &[u8]) -> Said {
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    let input = input.to_vec();
    // It may end without reading.
    let feed = thread::spawn(move || drop(stdin.write_all(&input)));
    let watch = process.id().to_string();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        if is_done.recv_timeout(PATIENCE).is_err() {
            let _ = Command::new("kill").args(["-9", &watch]).status();
        }
    });
    let output = process.wait_with_output().unwrap();
    let _ = done.send(());
    feed.join().unwrap();
    watchdog.join().unwrap();
    Said {
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code(),
    }
}

/// Looks again and again until something is so.
pub(crate) fn eventually(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it happens within patience");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns text with `[id]` for ids.
pub(crate) fn without_ids(text: &str) -> String {
    let is_id = |word: &str| {
        let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
        word.chars().all(is_part) && word.matches('-').count() == 4
    };
    let mut normal = String::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        match rest.get(..36) {
            Some(word) if is_id(word) => {
                normal += "[id]";
                rest = &rest[36..];
            }
            _ => {
                normal.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    normal
}

/// Returns a table with `[time]` for times and `[rate]` for rates, and two spaces between columns: theirs differ.
pub(crate) fn without_times(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let cells = line
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty());
        let cells = cells.map(|cell| match cell.split_once(' ') {
            Some((number, "µs" | "ms" | "s" | "min")) if number.parse::<f64>().is_ok() => "[time]",
            _ if cell.ends_with("/s") => "[rate]",
            _ => cell,
        });
        cells.collect::<Vec<_>>().join("  ")
    });
    lines.collect::<Vec<_>>().join("\n")
}
