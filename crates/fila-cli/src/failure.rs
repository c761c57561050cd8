//! Why a command failed, and how the shell is told.

use std::process::ExitCode;

use fila_sdk::{Error, ErrorCode};
use fila_server::config::ConfigError;

/// What a shell makes of a process that a signal has ended: 128, and the number of SIGINT.
pub(crate) const ENDED_BY_SIGNAL: u8 = 130;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The configuration is wrong: nothing was started.
    Config(ConfigError),
    /// The command contradicts itself, or lacks something: nothing was done.
    Usage(String),
    /// The server has refused, or could not be asked.
    Client(Error),
    /// There is no such thing; the text says what to do about it.
    NotFound(String),
    /// Whoever read our output does not read on. They know, so nothing is said.
    OutputClosed,
    /// Somebody has pressed Ctrl-C. They know, so nothing is said.
    Interrupted,
    /// Something else went wrong.
    Other(anyhow::Error),
}

impl Failure {
    /// Prints what is wrong to the standard error, one line for each thing.
    pub(crate) fn print(&self) {
        match self {
            Self::Config(error) => {
                for problem in error.problems() {
                    eprintln!("error: {problem}");
                }
            }
            Self::Usage(text) | Self::NotFound(text) => eprintln!("error: {text}"),
            Self::Client(error) => eprintln!("error: {}", explain(error)),
            Self::OutputClosed | Self::Interrupted => {}
            // With its causes, on one line.
            Self::Other(error) => eprintln!("error: {error:#}"),
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::Usage(_) => ExitCode::from(2),
            Self::Client(error) => match error {
                Error::InvalidAddress { .. } => ExitCode::from(2),
                Error::Unreachable { .. } | Error::NoAnswer { .. } => ExitCode::from(3),
                Error::Refused(refusal) => match refusal.code {
                    ErrorCode::QueueNotFound | ErrorCode::ConfigNotFound => ExitCode::from(4),
                    _ => ExitCode::FAILURE,
                },
                _ => ExitCode::FAILURE,
            },
            Self::NotFound(_) => ExitCode::from(4),
            Self::OutputClosed => ExitCode::SUCCESS,
            Self::Interrupted => ExitCode::from(ENDED_BY_SIGNAL),
            Self::Other(_) => ExitCode::FAILURE,
        }
    }
}

/// Says what the client said in the words of the command line.
fn explain(error: &Error) -> String {
    let text = match error {
        Error::Unreachable { address, cause } => format!(
            "no Fila server answers at {address} ({cause}); start one with `fila server`, or name another with --addr or \
             FILA_ADDR"
        ),
        Error::InvalidAddress { address, cause } => format!(
            "`{address}` is not the address of a server ({cause}); write it as --addr 127.0.0.1:5555"
        ),
        other => other.to_string(),
    };
    // Whatever others have put into their texts, it is one line here.
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}
