//! Putting the sources together.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::draft::{Draft, unknown_key, unknown_section};
use super::environment::{self, FILE_VARIABLE};
use super::error::{ConfigError, Place, Problem};
use super::file;
use super::given::Given;
use super::keys::{Key, Section};
use super::sections::Config;

/// What the file is called if nobody names another.
const FILE_NAME: &str = "fila.toml";

/// Makes a [`Config`] from the sources that it is given.
///
/// ```
/// use fila_server::config::Loader;
///
/// let config = Loader::new()
///     .variables([("FILA_SERVER__ADDRESS", "[::1]:7000"), ("HOME", "/")])
///     .flag("--durability", "storage.durability", "os")
///     .load()?;
/// assert_eq!(config.server.address.port(), 7000);
///
/// let error = Loader::new().set("limits.queues=many").load().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "--set limits.queues: expected a whole number from 1 to 1000000, got `many`"
/// );
/// # Ok::<(), fila_server::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Loader {
    file: Option<PathBuf>,
    directory: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    flags: Vec<Flag>,
}

/// Who says which file is read.
enum Naming {
    Caller,
    Variable,
    /// Nobody: it need not exist.
    Default,
}

#[derive(Clone, Debug)]
enum Flag {
    /// One that stands for a key.
    Key {
        flag: String,
        path: String,
        text: String,
    },
    /// The general one, with what follows it.
    Set(String),
}

impl Loader {
    /// Returns a loader with no source but the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads this file, which must exist. Stronger than what the variable `FILA_CONFIG` names.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Reads `fila.toml` in this directory, if it exists and no other file is named.
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.directory = Some(path.into());
        self
    }

    /// Reads these variables, as from [`std::env::vars_os`].
    pub fn variables<N, T>(mut self, variables: impl IntoIterator<Item = (N, T)>) -> Self
    where
        N: Into<OsString>,
        T: Into<OsString>,
    {
        let variables = variables.into_iter();
        self.variables
            .extend(variables.map(|(name, text)| (name.into(), text.into())));
        self
    }

    /// Sets a key, given with its section as `server.address`, by a flag of its own.
    pub fn flag(mut self, flag: &str, key: &str, text: impl Into<String>) -> Self {
        self.flags.push(Flag::Key {
            flag: flag.to_owned(),
            path: key.to_owned(),
            text: text.into(),
        });
        self
    }

    /// Sets a key by the general flag `--set`, given as `section.key=value`.
    pub fn set(mut self, assignment: impl Into<String>) -> Self {
        self.flags.push(Flag::Set(assignment.into()));
        self
    }

    /// Puts the sources together.
    ///
    /// # Errors
    /// If anything in them is wrong; the error tells everything that is.
    pub fn load(self) -> Result<Config, ConfigError> {
        let mut draft = Draft::new();
        self.apply_file(&mut draft);
        self.finish(draft)
    }

    /// Puts the sources together, with this text as the contents of the file, whoever names one.
    pub(super) fn load_text(self, text: &str) -> Result<Config, ConfigError> {
        let mut draft = Draft::new();
        file::apply(&mut draft, Path::new(FILE_NAME), text);
        self.finish(draft)
    }

    fn finish(self, mut draft: Draft) -> Result<Config, ConfigError> {
        environment::apply(&mut draft, &self.variables);
        self.apply_flags(&mut draft);
        draft.finish()
    }

    fn apply_file(&self, draft: &mut Draft) {
        let Some((path, naming)) = self.file_and_naming() else {
            return;
        };
        match file::read(&path) {
            Ok(text) => file::apply(draft, &path, &text),
            Err(error) => {
                let by = match naming {
                    Naming::Default if error.kind() == io::ErrorKind::NotFound => return,
                    Naming::Default | Naming::Caller => "",
                    Naming::Variable => ", which FILA_CONFIG names,",
                };
                let message = format!("the file{by} cannot be read: {error}");
                draft.note(Problem::new(Place::File(path), message));
            }
        }
    }

    fn file_and_naming(&self) -> Option<(PathBuf, Naming)> {
        let by_caller = || Some((self.file.clone()?, Naming::Caller));
        let by_variable = || {
            let mut variables = self.variables.iter();
            let (_, path) = variables.find(|(name, _)| name == FILE_VARIABLE)?;
            (!path.is_empty()).then(|| (PathBuf::from(path), Naming::Variable))
        };
        let by_default = || Some((self.directory.as_ref()?.join(FILE_NAME), Naming::Default));
        by_caller().or_else(by_variable).or_else(by_default)
    }

    fn apply_flags(&self, draft: &mut Draft) {
        let mut seen: Vec<(&'static Key, String)> = Vec::new();
        for flag in &self.flags {
            let (name, path, text) = match flag {
                Flag::Key { flag, path, text } => (flag.clone(), path.as_str(), text.as_str()),
                Flag::Set(assignment) => match assignment.split_once('=') {
                    Some((path, text)) => (format!("--set {path}"), path, text),
                    None => {
                        let message =
                            format!("`{assignment}` sets nothing; write `--set section.key=value`");
                        draft.note(Problem::new(Place::Flag("--set".to_owned()), message));
                        continue;
                    }
                },
            };
            let place = Place::Flag(name.clone());
            let Some(key) = Key::find(path) else {
                draft.note(Problem::new(place, unknown_path(path)));
                continue;
            };
            if let Some((_, first)) = seen.iter().find(|(other, _)| std::ptr::eq(*other, key)) {
                let message = format!("`{path}` is already set by `{first}`; give one of them");
                draft.note(Problem::new(place, message));
                continue;
            }
            seen.push((key, name));
            draft.set(key, place, &Given::Text(text));
        }
    }
}

/// Returns the message for a path that names no key.
fn unknown_path(path: &str) -> String {
    match path.split_once('.') {
        Some((section, name)) => match Section::find(section) {
            Some(section) => unknown_key(section, name),
            None => unknown_section(section),
        },
        None => format!("`{path}` names no section; write `--set section.key=value`"),
    }
}
