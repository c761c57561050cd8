//! Keys and sections, as the sources, the printed file and the documentation read them.

use std::fmt::{self, Write};

use super::kinds::{Given, one_of};
use super::table::{Config, GROUPS};

/// A part of the configuration: a table of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// `[server]`
    Server,
    /// `[tls]`
    Tls,
    /// `[scheduler]`
    Scheduler,
    /// `[storage]`
    Storage,
    /// `[lua]`
    Lua,
    /// `[limits]`
    Limits,
    /// `[telemetry]`
    Telemetry,
}

impl Section {
    /// All sections, in the order in which they are printed.
    pub const ALL: [Self; 7] = [
        Self::Server,
        Self::Tls,
        Self::Scheduler,
        Self::Storage,
        Self::Lua,
        Self::Limits,
        Self::Telemetry,
    ];

    /// Returns the section's name and the sentence that describes it.
    const fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Server => (
                "server",
                "Where the server listens, and how it starts and stops.",
            ),
            Self::Tls => ("tls", "How connections are encrypted."),
            Self::Scheduler => (
                "scheduler",
                "How scheduling is spread over threads, and how finely fairness keys alternate.",
            ),
            Self::Storage => ("storage", "Where messages are stored, and how safely."),
            Self::Lua => (
                "lua",
                "How much time and memory hooks may use, and when the broker stops calling a failing hook.",
            ),
            Self::Limits => (
                "limits",
                "The most that clients may ask for; the server rejects a request beyond a limit.",
            ),
            Self::Telemetry => ("telemetry", "Logs and traces of the server."),
        }
    }

    /// Returns the section's name, as it stands in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.describe().0
    }

    /// Returns what the section is about, as a sentence.
    #[must_use]
    pub const fn doc(self) -> &'static str {
        self.describe().1
    }

    /// Returns the section's keys.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        Key::all().filter(move |key| key.section == self)
    }

    /// Returns the start of the names of the section's variables, as `FILA_SERVER__`.
    pub(super) fn prefix(self) -> String {
        format!("FILA_{}__", self.name().to_ascii_uppercase())
    }

    /// Finds a section by its name.
    ///
    /// # Errors
    /// The message for a name that is not a section.
    pub(super) fn find(name: &str) -> Result<Self, String> {
        let section = Self::ALL.into_iter().find(|it| it.name() == name);
        section.ok_or_else(|| {
            let hint = hint(name, &Self::ALL.map(Self::name));
            format!("`{name}` is no section; {hint}")
        })
    }

    /// Finds a key of the section by its name.
    ///
    /// # Errors
    /// The message for a name that is not a key of the section.
    pub(super) fn find_key(self, name: &str) -> Result<&'static Key, String> {
        let key = self.keys().find(|key| key.name == name);
        key.ok_or_else(|| self.unknown_key(name))
    }

    pub(super) fn unknown_key(self, name: &str) -> String {
        let names: Vec<&str> = self.keys().map(Key::name).collect();
        let hint = hint(name, &names);
        format!("`{name}` is no key of [{}]; {hint}", self.name())
    }
}

/// A value that can be configured: a row of the table.
pub struct Key {
    pub(super) section: Section,
    pub(super) name: &'static str,
    pub(super) doc: &'static str,
    pub(super) allowed: fn() -> String,
    pub(super) set: fn(&mut Config, &Given<'_>) -> Result<(), String>,
    /// Takes the configuration as `set` does, and changes nothing.
    pub(super) toml: fn(&mut Config) -> String,
}

impl Key {
    /// Returns all keys in the order in which they are printed, the keys of one section together.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        GROUPS.iter().copied().flatten()
    }

    /// Returns the section that the key is in.
    #[must_use]
    pub const fn section(&self) -> Section {
        self.section
    }

    /// Returns the key's name within its section, as it stands in the file.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the key's name with its section, as `server.address`.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}.{}", self.section.name(), self.name)
    }

    /// Returns the variable that sets the key, as `FILA_SERVER__ADDRESS`.
    #[must_use]
    pub fn variable(&self) -> String {
        self.section.prefix() + &self.name.to_ascii_uppercase()
    }

    /// Returns what the key takes, as in "expected …".
    #[must_use]
    pub fn allowed(&self) -> String {
        (self.allowed)()
    }

    /// Returns what the key is for, as a sentence.
    #[must_use]
    pub fn doc(&self) -> &'static str {
        self.doc.trim_start() // a doc comment begins with a space
    }

    /// Returns the key's default as TOML.
    #[must_use]
    pub fn default_toml(&self) -> String {
        (self.toml)(&mut Config::default())
    }

    /// Returns the key's value in a configuration, as TOML.
    #[must_use]
    pub fn toml(&self, config: &Config) -> String {
        (self.toml)(&mut config.clone())
    }

    /// Finds a key by its path.
    ///
    /// # Errors
    /// The message for a path that names no key.
    pub(super) fn find(path: &str) -> Result<&'static Self, String> {
        let (section, name) = path
            .split_once('.')
            .ok_or_else(|| format!("`{path}` names no section; write `--set section.key=value`"))?;
        Section::find(section)?.find_key(name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.path()).finish()
    }
}

impl Config {
    /// Returns the configuration as a commented TOML file. It has every key with its sentence, what it takes and its
    /// default. Reading it again gives the same configuration.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        self.write_toml(&mut text)
            .expect("writing to a string cannot fail");
        text
    }

    fn write_toml(&self, text: &mut String) -> fmt::Result {
        for section in Section::ALL {
            if !text.is_empty() {
                writeln!(text)?;
            }
            writeln!(text, "# {}\n[{}]", section.doc(), section.name())?;
            for key in section.keys() {
                let (allowed, default) = (key.allowed(), key.default_toml());
                writeln!(text, "\n# {}", key.doc())?;
                writeln!(text, "# Takes {allowed}; {default} by default.")?;
                writeln!(text, "{} = {}", key.name, key.toml(self))?;
            }
        }
        Ok(())
    }
}

/// Returns the rest of the message for an unknown name: the name that was probably meant, or else all names.
fn hint(written: &str, names: &[&str]) -> String {
    let likeness = |name: &str| strsim::jaro_winkler(written, name);
    let best = names
        .iter()
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match best.filter(|name| likeness(name) > 0.85) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("choose {}", one_of(names)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_by_its_path_and_by_nothing_else() {
        for key in Key::all() {
            assert!(std::ptr::eq(Key::find(&key.path()).unwrap(), key));
        }
        for path in ["", "server", "server.", "server.adress", "storage.address"] {
            assert!(Key::find(path).is_err(), "{path}");
        }
    }

    #[test]
    fn every_sentence_of_the_table_is_one() {
        let docs = Key::all().map(Key::doc);
        for doc in docs.chain(Section::ALL.map(Section::doc)) {
            assert!(doc.starts_with(char::is_uppercase), "{doc}");
            assert!(doc.ends_with('.') && !doc.contains('\n'), "{doc}");
        }
    }

    #[test]
    fn every_default_is_allowed() {
        for key in Key::all() {
            let mut config = Config::default();
            let text = key.default_toml();
            let text = text.trim_matches('"');
            (key.set)(&mut config, &Given::Text(text)).unwrap();
            assert_eq!(config, Config::default(), "{key:?}");
        }
    }
}
