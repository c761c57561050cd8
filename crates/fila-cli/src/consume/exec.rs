//! Running a command for every message.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use fila_cli::message_json::millis;
use fila_sdk::{Delivery, Error, Received};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::feed::{Ending, Feed, Work};
use crate::failure::Failure;
use crate::output::{self, Format, Output, count};

/// How many bytes of a last line become the reason of a failure.
const REASON_BYTES_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Exec {
    pub(super) queue: String,
    pub(super) command: String,
    pub(super) concurrency: usize,
    pub(super) retry_delay: Option<Duration>,
    pub(super) commands: RunningCommands,
}

/// The process groups of the commands that run.
#[derive(Clone, Debug, Default)]
pub(super) struct RunningCommands(Arc<Mutex<Vec<Pid>>>);

impl RunningCommands {
    /// Tells all commands to end, with the processes that they have started.
    pub(super) fn terminate(&self) {
        for group in self.lock().iter() {
            // It may have ended by itself.
            let _ = kill_process_group(*group, Signal::TERM);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pid>> {
        // A list is consistent at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counts of a run.
#[derive(Debug, Default, Serialize)]
struct ExecTally {
    acked: u64,
    nacked: u64,
    lost: u64,
    /// The reason of the last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
}

/// The end of one message.
#[derive(Debug)]
struct Ended {
    /// The reason, if the command has failed.
    reason: Option<String>,
    stored: Result<(), Error>,
}

impl Exec {
    /// Runs the command for every message.
    pub(super) async fn run(&self, feed: &mut Feed, output: Output) -> Result<(), Failure> {
        let mut tally = ExecTally::default();
        let mut running: JoinSet<Result<Ended, Failure>> = JoinSet::new();
        let mut failed = None;
        let mut is_open = true;
        while is_open || !running.is_empty() {
            let work = match running.len() {
                0 => Work::None,
                some if some < self.concurrency => Work::UnderWay,
                _ => Work::Full,
            };
            tokio::select! {
                biased;
                Some(ended) = running.join_next() => {
                    let ended = ended.context("a command's task has ended");
                    match ended.map_err(Failure::from).flatten() {
                        Ok(ended) => tally.add(ended),
                        Err(failure) => {
                            failed = Some(failure);
                            is_open = false;
                        }
                    }
                }
                next = feed.next(work), if is_open => match next {
                    Ok(Some(delivery)) => self.begin(&mut running, delivery),
                    Ok(None) => {
                        is_open = false;
                        if feed.ending() == Ending::Interrupted {
                            say_waiting(running.len());
                        }
                    }
                    Err(failure) => {
                        failed = Some(failure);
                        is_open = false;
                    }
                },
            }
        }
        match failed {
            Some(failure) => Err(failure),
            None => tally.into_result(output),
        }
    }

    fn begin(&self, running: &mut JoinSet<Result<Ended, Failure>>, delivery: Delivery) {
        let child = self.spawn(&delivery);
        let group = child.as_ref().ok().and_then(process_group);
        self.commands.lock().extend(group);
        let retry_delay = self.retry_delay;
        let commands = self.commands.clone();
        running.spawn(async move {
            let child = match child.context("cannot start `sh`") {
                Ok(child) => child,
                Err(error) => {
                    // The command has not seen the message.
                    let _ = delivery.release().await;
                    return Err(error.into());
                }
            };
            // While the command runs, the delivery lives and the client extends its lease.
            let reason = finish(child, &delivery).await;
            commands.lock().retain(|it| Some(*it) != group);
            let stored = match (&reason, retry_delay) {
                (None, _) => delivery.ack().await,
                (Some(reason), Some(delay)) => delivery.nack_after(reason, delay).await,
                (Some(reason), None) => delivery.nack(reason).await,
            };
            Ok(Ended { reason, stored })
        });
    }

    fn spawn(&self, message: &Received) -> std::io::Result<Child> {
        Command::new("sh")
            .arg("-c")
            .arg(&self.command)
            .envs(environment(&self.queue, message))
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C reaches `fila` only, and commands that run finish.
            .process_group(0)
            .spawn()
    }
}

impl ExecTally {
    fn add(&mut self, ended: Ended) {
        match (ended.stored, ended.reason) {
            (Ok(()), None) => self.acked += 1,
            (Ok(()), Some(reason)) => {
                self.nacked += 1;
                self.last_error = Some(reason);
            }
            (Err(_), _) => self.lost += 1,
        }
    }

    fn into_result(self, output: Output) -> Result<(), Failure> {
        let all = self.acked + self.nacked + self.lost;
        match output.format {
            Format::Json => output::write(output::json_line(&self)?.as_bytes())?,
            Format::Human => {}
        }
        if self.nacked > 0 {
            return Err(Failure::Other(anyhow::anyhow!(
                "the command has failed for {} of {} messages, and the broker delivers them again; the last time: {}",
                count(self.nacked),
                count(all),
                self.last_error.unwrap_or_default()
            )));
        }
        if self.lost > 0 {
            return Err(Failure::Other(anyhow::anyhow!(
                "the leases of {} of {} messages ended before their results were stored; the broker delivers them again",
                count(self.lost),
                count(all)
            )));
        }
        Ok(())
    }
}

/// Explains why the first Ctrl-C has not ended the run yet.
fn say_waiting(commands: usize) {
    match commands {
        0 => {}
        1 => output::note("waiting for 1 running command; a second Ctrl-C ends it"),
        more => {
            let more = count(more as u64);
            output::note(format!(
                "waiting for {more} running commands; a second Ctrl-C ends them"
            ));
        }
    }
}

/// Returns the process group of a command, which has the number of its first process.
fn process_group(command: &Child) -> Option<Pid> {
    Pid::from_raw(command.id()?.try_into().ok()?)
}

/// Gives the payload to a command, waits for its end, and returns the reason if it has failed.
async fn finish(mut child: Child, message: &Received) -> Option<String> {
    let stdin = child.stdin.take();
    let stderr = child.stderr.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A command may exit without reading its input.
            let _ = stdin.write_all(&message.payload).await;
        }
    };
    let listen = async {
        match stderr {
            Some(stderr) => pass_on(stderr).await,
            None => LastLine::default(),
        }
    };
    let ((), last_line, status) = tokio::join!(feed, listen, child.wait());
    match status {
        Ok(status) if status.success() => None,
        Ok(status) => Some(last_line.into_text().unwrap_or_else(|| describe(status))),
        Err(error) => Some(format!("cannot wait for the command: {error}")),
    }
}

fn describe(status: ExitStatus) -> String {
    // As `exit status: 3` or `signal: 9 (SIGKILL)`.
    format!("the command ended with {status}")
}

/// Copies the standard error of a command to ours, and returns its last line.
async fn pass_on(mut stderr: impl AsyncReadExt + Unpin) -> LastLine {
    let mut last_line = LastLine::default();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
        let said = &buffer[..length];
        // The reader of our standard error may have closed it.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), said);
        last_line.add(said);
    }
    last_line
}

/// The last line that is not empty.
#[derive(Debug, Default, PartialEq, Eq)]
struct LastLine {
    last: Vec<u8>,
    current: Vec<u8>,
}

impl LastLine {
    fn add(&mut self, said: &[u8]) {
        for &byte in said {
            if byte == b'\n' {
                self.end();
            } else if self.current.len() < REASON_BYTES_MAX {
                self.current.push(byte);
            }
        }
    }

    fn end(&mut self) {
        if !self.current.trim_ascii().is_empty() {
            self.last = std::mem::take(&mut self.current);
        }
        self.current.clear();
    }

    fn into_text(mut self) -> Option<String> {
        self.end();
        let line = self.last.trim_ascii();
        (!line.is_empty()).then(|| String::from_utf8_lossy(line).into_owned())
    }
}

/// Returns the environment variables that describe a message.
fn environment(queue: &str, message: &Received) -> Vec<(String, OsString)> {
    let mut variables: Vec<(String, OsString)> = vec![
        ("FILA_QUEUE".to_owned(), queue.into()),
        ("FILA_MESSAGE_ID".to_owned(), message.id.as_str().into()),
        ("FILA_KEY".to_owned(), message.key.as_str().into()),
        (
            "FILA_ATTEMPT".to_owned(),
            message.attempt.to_string().into(),
        ),
        (
            "FILA_ENQUEUED_AT_MS".to_owned(),
            millis(message.enqueued_at).to_string().into(),
        ),
    ];
    let headers = message.headers.iter();
    variables.extend(headers.map(|(name, value)| (variable(name), value.into())));
    // A variable cannot hold a zero byte, and such a message must not make the command fail.
    variables.retain(|(_, value)| !value.as_encoded_bytes().contains(&0));
    variables
}

/// Returns the name of a header as a variable: `trace-id` is `FILA_HEADER_TRACE_ID`.
fn variable(header: &str) -> String {
    let name = header.chars().map(|character| match character {
        'a'..='z' => character.to_ascii_uppercase(),
        'A'..='Z' | '0'..='9' => character,
        _ => '_',
    });
    format!("FILA_HEADER_{}", name.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_line(said: &[&[u8]]) -> Option<String> {
        let mut line = LastLine::default();
        for said in said {
            line.add(said);
        }
        line.into_text()
    }

    #[test]
    fn the_last_line_is_the_reason_wherever_it_is_cut() {
        assert_eq!(last_line(&[b"one\ntwo\n"]).as_deref(), Some("two"));
        assert_eq!(last_line(&[b"one\ntw", b"o"]).as_deref(), Some("two"));
        assert_eq!(last_line(&[b"one\n", b"\n  \n"]).as_deref(), Some("one"));
        assert_eq!(last_line(&[b""]), None);
        let long = vec![b'x'; 1 << 20];
        assert_eq!(last_line(&[&long]).unwrap().len(), REASON_BYTES_MAX);
    }

    #[test]
    fn a_header_is_a_variable_of_its_name() {
        assert_eq!(variable("trace-id"), "FILA_HEADER_TRACE_ID");
        assert_eq!(variable("größe"), "FILA_HEADER_GR__E");
    }
}
