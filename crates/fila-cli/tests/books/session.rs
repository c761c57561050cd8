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

/// The text that the shell prints before the exit code of a command.
const PROMPT: &str = "--- the command has ended with ";

/// Something that a book does.
#[derive(Debug)]
pub(crate) enum Step {
    /// Writes a file.
    File { name: String, text: String },
    /// Types a command.
    Command {
        /// Where it is in the document, counted from 1.
        line: usize,
        command: String,
        /// The expected output.
        shown: Vec<String>,
    },
}

/// Where in a document a line is.
enum Place {
    Text,
    Console,
    File,
}

/// Returns the commands of all blocks that are marked as `console`, and the files.
pub(crate) fn steps(book: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut place = Place::Text;
    for (line, text) in (1..).zip(book.lines()) {
        match (&place, text) {
            (Place::Text, "```console") => place = Place::Console,
            (Place::Text, text) => {
                let name = text.strip_prefix("```").and_then(|it| it.split_once(' '));
                if let Some((_, name)) = name {
                    place = Place::File;
                    steps.push(Step::File {
                        name: name.to_owned(),
                        text: String::new(),
                    });
                }
            }
            (_, "```") => place = Place::Text,
            (Place::File, text) => {
                if let Some(Step::File { text: file, .. }) = steps.last_mut() {
                    file.push_str(text);
                    file.push('\n');
                }
            }
            (Place::Console, text) => match (text.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step::Command {
                    line,
                    command: command.to_owned(),
                    shown: Vec::new(),
                }),
                (None, Some(Step::Command { shown, .. })) => shown.push(text.to_owned()),
                (None, _) => panic!("line {line}: no command prints this"),
            },
        }
    }
    steps
}

/// The output of a command, and its exit code.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) lines: Vec<String>,
    /// Its exit code; 0 for one that goes on.
    pub(crate) code: i32,
}

pub(crate) struct Shell {
    child: Child,
    typed: ChildStdin,
    printed: Receiver<String>,
    known: Bindings,
    port: String,
    book: &'static str,
    directory: TempDir,
}

impl Shell {
    pub(crate) fn start(book: &'static str) -> Self {
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
            .env("HOME", directory.path())
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
            book,
            directory,
        }
    }

    /// Does a step, and compares what comes back.
    pub(crate) fn play(&mut self, step: &Step) {
        let (line, command, shown) = match step {
            Step::File { name, text } => {
                return std::fs::write(self.directory.path().join(name), text).unwrap();
            }
            Step::Command {
                line,
                command,
                shown,
            } => (line, command, shown),
        };
        let place = format!("docs/{}, line {line}: `{command}`", self.book);
        let ended = match command.strip_suffix('&') {
            Some(command) => self.begin(&place, command, Until::Lines(shown.len())),
            None => {
                let command = self.known.fill(command);
                self.run(&place, &command)
            }
        };
        self.compare(shown, &place, &ended.lines);
    }

    /// Types a command, and waits for its end. The command does not read the lines that are typed next.
    pub(crate) fn run(&mut self, place: &str, command: &str) -> Ended {
        writeln!(
            self.typed,
            "{{ {command}\n}} < /dev/null; echo \"{PROMPT}$?\""
        )
        .unwrap();
        self.read(place, Until::Prompt)
    }

    /// Types a command that goes on in the background, and waits for what it prints first.
    pub(crate) fn begin(&mut self, place: &str, command: &str, until: Until<'_>) -> Ended {
        writeln!(self.typed, "{command} < /dev/null &").unwrap();
        self.read(place, until)
    }

    /// Returns where the server listens that is started in here.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn compare(&mut self, shown: &[String], place: &str, found: &[String]) {
        let found = found.join("\n").replace(&self.address(), "127.0.0.1:5555");
        let shown = shown.join("\n");
        assert!(
            self.known
                .matches_lines(&squeezed(&shown), &squeezed(&found)),
            "{place} has printed\n{found}\ninstead of\n{shown}"
        );
    }

    fn read(&self, place: &str, until: Until<'_>) -> Ended {
        let ends = Instant::now() + PATIENCE;
        let mut lines: Vec<String> = Vec::new();
        while !until.is_met(&lines) {
            let left = ends.saturating_duration_since(Instant::now());
            match self.printed.recv_timeout(left) {
                Ok(line) if line.starts_with(PROMPT) => {
                    let code = line[PROMPT.len()..].parse().unwrap();
                    return Ended { lines, code };
                }
                // The shell reports the end of a job at any time.
                Ok(line) if line.starts_with("bash: line ") => {}
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("{place}: nothing more than {lines:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("{place}: the shell has ended"),
            }
        }
        Ended { lines, code: 0 }
    }
}

/// Columns are as wide as what is in them: how many spaces there are is not compared.
pub(crate) fn squeezed(text: &str) -> String {
    let lines = text.lines();
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

/// How far to read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until<'a> {
    Prompt,
    Lines(usize),
    /// Up to a line that has this in it.
    Seen(&'a str),
}

impl Until<'_> {
    fn is_met(self, lines: &[String]) -> bool {
        match self {
            Self::Prompt => false,
            Self::Lines(count) => lines.len() == count,
            Self::Seen(text) => lines.last().is_some_and(|line| line.contains(text)),
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // What still runs in the background goes with the shell.
        let _ = writeln!(self.typed, "kill -9 $(jobs -p)");
        let _ = writeln!(self.typed, "exit");
        let _ = self.child.wait();
    }
}
