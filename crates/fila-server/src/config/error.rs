//! The mistakes in a configuration, and where they are.

use std::fmt::{self, Write};
use std::path::PathBuf;

/// Where a value or a mistake is. A later variant is stronger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// Nowhere: the value is the default.
    Default,
    /// A whole file, which cannot be read.
    File(PathBuf),
    /// A position in a file. Lines and columns count from 1, columns in characters.
    Position {
        /// The file, as the user named it.
        file: PathBuf,
        /// The line.
        line: usize,
        /// The column.
        column: usize,
    },
    /// An environment variable of this name.
    Variable(String),
    /// A command-line flag, as the user wrote it.
    Flag(String),
}

impl fmt::Display for Location {
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

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub(super) location: Location,
    pub(super) key: Option<String>,
    pub(super) message: String,
}

impl Problem {
    /// Returns where the mistake is.
    #[must_use]
    pub const fn location(&self) -> &Location {
        &self.location
    }
}

/// Prints on one line: the location, the key where the location does not name it, and the mistake.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = format!("{}: ", self.location);
        match (&self.location, &self.key) {
            (Location::Variable(_) | Location::Flag(_), _) | (_, None) => {}
            (Location::Default | Location::File(_) | Location::Position { .. }, Some(key)) => {
                write!(line, "{key}: ")?;
            }
        }
        line += &self.message;
        // The message quotes the value. A control character in it must not break the line or move the cursor.
        for character in line.chars() {
            if character.is_control() {
                character.escape_default().fmt(f)?;
            } else {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

/// All mistakes in a configuration, in the order of the sources. Prints one line for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

impl ConfigError {
    pub(super) const fn new(problems: Vec<Problem>) -> Self {
        Self { problems }
    }

    /// Returns the mistakes; there is at least one.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.problems.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ConfigError {}
