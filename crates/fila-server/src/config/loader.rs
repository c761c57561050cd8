//! The sources and their order: the file, the environment, the flags.
//!
//! A variable is called `FILA_<SECTION>__<KEY>`. Two underscores separate the section from the key, because names of keys
//! contain single ones. An empty variable counts as not set: shells and container files pass on absent values that way.
//! Names that begin with `FILA_` but with no section belong to other programs, such as the links that Kubernetes sets for
//! a service called `fila-server`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::draft::Draft;
use super::error::{ConfigError, Location};
use super::file;
use super::keys::{Key, Section};
use super::kinds::Given;
use super::table::Config;

/// The file's name if the user names no other.
const FILE_NAME: &str = "fila.toml";

/// The variable that names the file.
const FILE_VARIABLE: &str = "FILA_CONFIG";

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

#[derive(Clone, Debug)]
enum Flag {
    /// A flag that stands for one key.
    Key {
        flag: String,
        path: String,
        text: String,
    },
    /// The general flag `--set`, with its argument.
    Set(String),
}

impl Loader {
    /// Returns a loader with no source but the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads this file, which must exist. Stronger than the file that the variable `FILA_CONFIG` names.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Reads `fila.toml` in this directory, if it exists and no other file is named.
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.directory = Some(path.into());
        self
    }

    /// Reads these variables, such as those of [`std::env::vars_os`].
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
    /// If the sources contain mistakes; the error has all of them.
    pub fn load(self) -> Result<Config, ConfigError> {
        let mut draft = Draft::default();
        self.apply_file(&mut draft);
        self.finish(draft)
    }

    /// Puts the sources together, with this text as the contents of the file.
    pub(super) fn load_text(self, text: &str) -> Result<Config, ConfigError> {
        let mut draft = Draft::default();
        file::apply(&mut draft, Path::new(FILE_NAME), text);
        self.finish(draft)
    }

    fn finish(self, mut draft: Draft) -> Result<Config, ConfigError> {
        self.apply_variables(&mut draft);
        self.apply_flags(&mut draft);
        draft.finish()
    }

    fn apply_file(&self, draft: &mut Draft) {
        let mut variables = self.variables.iter();
        let variable = variables.find(|(name, path)| name == FILE_VARIABLE && !path.is_empty());
        // Only the default file need not exist.
        let (path, by, is_named) = match (&self.file, variable, &self.directory) {
            (Some(path), ..) => (path.clone(), "", true),
            (None, Some((_, path)), _) => (path.into(), ", which FILA_CONFIG names,", true),
            (None, None, Some(directory)) => (directory.join(FILE_NAME), "", false),
            (None, None, None) => return,
        };
        match file::read(&path) {
            Ok(text) => file::apply(draft, &path, &text),
            Err(error) if !is_named && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => draft.note(
                Location::File(path),
                format!("the file{by} cannot be read: {error}"),
            ),
        }
    }

    /// Sets what the variables say, in the order of their names.
    fn apply_variables(&self, draft: &mut Draft) {
        let mut named: Vec<(&str, &OsStr)> = self
            .variables
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .filter_map(|(name, value)| Some((name.to_str()?, value.as_os_str())))
            .collect();
        named.sort_unstable();
        for (name, value) in named {
            let location = Location::Variable(name.to_owned());
            match (key_of_variable(name), value.to_str()) {
                (None, _) => {}
                (Some(Ok(key)), Some(text)) => draft.set(key, location, &Given::Text(text)),
                (Some(Ok(key)), None) => {
                    let allowed = key.allowed();
                    let message = format!("expected {allowed}, got bytes that are not UTF-8");
                    draft.note(location, message);
                }
                (Some(Err(message)), _) => draft.note(location, message),
            }
        }
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
                        draft.note(Location::Flag("--set".to_owned()), message);
                        continue;
                    }
                },
            };
            let location = Location::Flag(name.clone());
            let key = match Key::find(path) {
                Ok(key) => key,
                Err(unknown) => {
                    draft.note(location, unknown);
                    continue;
                }
            };
            if let Some((_, first)) = seen.iter().find(|(other, _)| std::ptr::eq(*other, key)) {
                let message = format!("`{path}` is already set by `{first}`; give one of them");
                draft.note(location, message);
                continue;
            }
            seen.push((key, name));
            draft.set(key, location, &Given::Text(text));
        }
    }
}

/// Returns the key that a variable sets, or the message for a misspelt name; `None` if it belongs to another program.
fn key_of_variable(name: &str) -> Option<Result<&'static Key, String>> {
    for section in Section::ALL {
        if let Some(rest) = name.strip_prefix(&section.prefix()) {
            let mut keys = section.keys();
            let key = keys.find(|key| key.name().to_ascii_uppercase() == rest);
            return Some(key.ok_or_else(|| section.unknown_key(&rest.to_ascii_lowercase())));
        }
    }
    let misspelt = |key: &&Key| key.variable().replacen("__", "_", 1) == name;
    let variable = Key::all().find(misspelt)?.variable();
    Some(Err(format!(
        "a section is followed by two underscores; write `{variable}`"
    )))
}
