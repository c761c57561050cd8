//! What is wrong with a configuration, and where.

use std::fmt::{self, Write};
use std::path::PathBuf;

/// Where a value, or a mistake, stands. What comes later in this order is stronger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Place {
    /// Nowhere: it is the default.
    Default,
    /// In a file as a whole, which cannot be read.
    File(PathBuf),
    /// At a position in a file. Lines and columns are counted from 1, columns in characters.
    Position {
        /// The file, as it was named.
        file: PathBuf,
        /// The line.
        line: usize,
        /// The column.
        column: usize,
    },
    /// In a variable of the environment, of this name.
    Variable(String),
    /// In a flag of the command line, as it is written there.
    Flag(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(file) => file.display().fmt(f),
            Self::Position { file, line, column } => {
                write!(f, "{}:{line}:{column}", file.display())
            }
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    place: Place,
    key: Option<String>,
    message: String,
}

impl Problem {
    pub(super) fn new(place: Place, message: impl Into<String>) -> Self {
        Self {
            place,
            key: None,
            message: message.into(),
        }
    }

    pub(super) fn of_key(place: Place, key: String, message: impl Into<String>) -> Self {
        Self {
            place,
            key: Some(key),
            message: message.into(),
        }
    }

    /// Returns where it stands.
    #[must_use]
    pub const fn place(&self) -> &Place {
        &self.place
    }
}

/// Prints on one line: the place, the key where the place does not name it, and what is wrong.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match (&self.place, &self.key) {
            (Place::Default | Place::File(_) | Place::Position { .. }, Some(key)) => {
                format!("{}: {key}: {}", self.place, self.message)
            }
            (Place::Variable(_) | Place::Flag(_), _) | (_, None) => {
                format!("{}: {}", self.place, self.message)
            }
        };
        // What was given is quoted as it is, and must neither break the line nor move the terminal's cursor.
        for character in line.chars() {
            match character.is_control() {
                true => character.escape_default().fmt(f)?,
                false => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Everything that is wrong with a configuration, in the order of the sources. Prints one line for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

impl ConfigError {
    pub(super) const fn new(problems: Vec<Problem>) -> Self {
        Self { problems }
    }

    /// Returns what is wrong; there is at least one thing.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.problems.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
