//! Why a command failed, and how the shell is told.

use std::process::ExitCode;

use fila_server::config::ConfigError;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The configuration is wrong: nothing was started.
    Config(ConfigError),
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
            // With its causes, on one line.
            Self::Other(error) => eprintln!("error: {error:#}"),
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => ExitCode::from(2),
            Self::Other(_) => ExitCode::FAILURE,
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}
