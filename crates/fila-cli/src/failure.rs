//! The failures of commands, and their exit codes.

use std::process::ExitCode;

use fila_sdk::{Error, ErrorCode, SettingsError};
use fila_server::config::ConfigError;

use crate::output::{self, printable};

/// The exit code that shells give a process after SIGINT: 128 plus the signal's number.
pub(crate) const ENDED_BY_SIGNAL: u8 = 130;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The configuration is wrong. The command has started nothing.
    Config(ConfigError),
    /// The arguments contradict each other, or one is missing. The command has done nothing.
    Usage(String),
    /// The server has refused the request, or did not answer.
    Client(Error),
    /// The named item does not exist. The text gives a remedy.
    NotFound(String),
    /// The reader of our output has closed it. The user knows, so the command prints nothing.
    OutputClosed,
    /// The server has failed, and has printed the reason itself.
    Reported,
    /// The user has pressed Ctrl-C. The user knows, so the command prints nothing.
    Interrupted,
    /// Something else went wrong.
    Other(anyhow::Error),
}

impl Failure {
    /// Prints the failure to the standard error, one line for each problem.
    pub(crate) fn print(&self) {
        match self {
            Self::Config(error) => error.problems().iter().for_each(output::error),
            Self::Usage(text) | Self::NotFound(text) => output::error(printable(text)),
            Self::Client(error) => output::error(explain(error)),
            Self::OutputClosed | Self::Reported | Self::Interrupted => {}
            // With its causes, on one line.
            Self::Other(error) => output::error(format!("{error:#}")),
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::Usage(_) => ExitCode::from(2),
            Self::Client(error) => match error {
                Error::InvalidAddress { .. } | Error::InvalidTls { .. } | Error::Settings(_) => {
                    ExitCode::from(2)
                }
                Error::Unreachable { .. } | Error::NoAnswer { .. } | Error::Tls { .. } => {
                    ExitCode::from(3)
                }
                Error::Refused(refusal) => match refusal.code {
                    ErrorCode::QueueNotFound | ErrorCode::ConfigNotFound => ExitCode::from(4),
                    _ => ExitCode::FAILURE,
                },
                _ => ExitCode::FAILURE,
            },
            Self::NotFound(_) => ExitCode::from(4),
            Self::OutputClosed => ExitCode::SUCCESS,
            Self::Interrupted => ExitCode::from(ENDED_BY_SIGNAL),
            Self::Reported | Self::Other(_) => ExitCode::FAILURE,
        }
    }
}

/// Returns the client's error in the terms of the command line.
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
    // Foreign text may contain newlines; an error is one line.
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

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self::Client(error.into())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}
