//! A shell, and what is typed into it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::matching::Bindings;

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the shell says when a command has ended.
const PROMPT: &str = "--- the command has ended ---";

/// A command, and what it prints.
#[derive(Debug)]
pub(crate) struct Step {
    /// Where it is in the document, counted from 1.
    line: usize,
    command: String,
    shown: Vec<String>,
}

/// Returns the commands of all blocks that are marked as `console`.
pub(crate) fn steps(book: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_inside = false;
    for (line, text) in (1..).zip(book.lines()) {
        match (is_inside, text) {
            (false, "```console") => is_inside = true,
            (false, _) => {}
            (true, "```") => is_inside = false,
            (true, text) => match text.strip_prefix("$ ") {
                Some(command) => steps.push(Step {
                    line,
                    command: command.to_owned(),
                    shown: Vec::new(),
                }),
                None => {
                    let step = steps.last_mut();
                    let step = step.unwrap_or_else(|| panic!("line {line}: nobody prints this"));
                    step.shown.push(text.to_owned());
                }
            },
        }
    }
    steps
}

pub(crate) struct Shell {
    child: Child,
    typed: ChildStdin,
    printed: Receiver<String>,
    known: Bindings,
    port: String,
    _directory: TempDir,
}

impl Shell {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port().to_string()
        };
        let program = Path::new(env!("CARGO_BIN_EXE_fila"));
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", program.parent().unwrap().display());
        let mut child = Command::new("bash")
            .env_clear()
            .env("PATH", path)
            .env("FILA_ADDR", format!("127.0.0.1:{port}"))
            .env("FILA_SERVER__ADDRESS", format!("127.0.0.1:{port}"))
            .current_dir(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut typed = child.stdin.take().unwrap();
        // Jobs are known by their numbers, and everything comes out in one place, as on a terminal.
        writeln!(typed, "set -m; exec 2>&1").unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, printed) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            typed,
            printed,
            known: Bindings::default(),
            port,
            _directory: directory,
        }
    }

    /// Types a command and compares what comes back.
    pub(crate) fn play(&mut self, step: &Step) {
        let place = format!("docs/quickstart.md, line {}: `{}`", step.line, step.command);
        // What a command reads is its own, and not what is typed next.
        match step.command.strip_suffix('&') {
            Some(command) => {
                writeln!(self.typed, "{command} < /dev/null &").unwrap();
                let found = self.read(&place, Until::Lines(step.shown.len()));
                self.compare(step, &place, &found);
            }
            None => {
                let command = self.known.fill(&step.command);
                writeln!(self.typed, "{{ {command}\n}} < /dev/null; echo '{PROMPT}'").unwrap();
                let found = self.read(&place, Until::Prompt);
                self.compare(step, &place, &found);
            }
        }
    }

    fn compare(&mut self, step: &Step, place: &str, found: &[String]) {
        let port = format!("127.0.0.1:{}", self.port);
        let found = found.join("\n").replace(&port, "127.0.0.1:5555");
        let shown = step.shown.join("\n");
        assert!(
            self.known
                .matches_lines(&squeezed(&shown), &squeezed(&found)),
            "{place} has printed\n{found}\ninstead of\n{shown}"
        );
    }

    fn read(&self, place: &str, until: Until) -> Vec<String> {
        let ends = Instant::now() + PATIENCE;
        let mut lines = Vec::new();
        while until != Until::Lines(lines.len()) {
            let left = ends.saturating_duration_since(Instant::now());
            match self.printed.recv_timeout(left) {
                Ok(line) if line == PROMPT => break,
                // What the shell says of a job that has ended comes when it comes.
                Ok(line) if line.starts_with("bash: line ") => {}
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("{place}: nothing more than {lines:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("{place}: the shell has ended"),
            }
        }
        lines
    }
}

/// Columns are as wide as what is in them: how many spaces there are is not compared.
fn squeezed(text: &str) -> String {
    let lines = text.lines();
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Prompt,
    Lines(usize),
}

impl Drop for Shell {
    fn drop(&mut self) {
        // What still runs in the background goes with the shell.
        let _ = writeln!(self.typed, "kill -9 $(jobs -p)");
        let _ = writeln!(self.typed, "exit");
        let _ = self.child.wait();
    }
}
