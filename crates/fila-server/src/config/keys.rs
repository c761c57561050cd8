//! What a key is: a name in a section, a field of the configuration, and a sentence.

use std::fmt;

use super::field::Field;
use super::given::Given;
use super::sections::Config;
use super::table::KEYS;

/// A part of the configuration: a table of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Section {
    /// `[server]`
    Server,
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
    pub const ALL: [Self; 6] = [
        Self::Server,
        Self::Scheduler,
        Self::Storage,
        Self::Lua,
        Self::Limits,
        Self::Telemetry,
    ];

    /// Returns the section's name, as it stands in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Scheduler => "scheduler",
            Self::Storage => "storage",
            Self::Lua => "lua",
            Self::Limits => "limits",
            Self::Telemetry => "telemetry",
        }
    }

    /// Returns what the section is about, as a sentence.
    #[must_use]
    pub const fn doc(self) -> &'static str {
        match self {
            Self::Server => "Where the server listens, and how it starts and stops.",
            Self::Scheduler => "Who decides whose turn it is, and in what grain.",
            Self::Storage => "Where messages are kept, and how safely.",
            Self::Lua => "What hooks may take, and when they are no longer asked.",
            Self::Limits => "What a client may at most ask for; beyond it the answer is a refusal.",
            Self::Telemetry => "What the server says of itself.",
        }
    }

    /// Returns what the names of the section's variables begin with, as `FILA_SERVER__`.
    pub(super) fn prefix(self) -> String {
        format!("FILA_{}__", self.name().to_ascii_uppercase())
    }

    pub(super) fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }

    /// Returns the section's keys.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        Key::all().iter().filter(move |key| key.section == self)
    }
}

/// A value that can be configured.
pub struct Key {
    pub(super) section: Section,
    pub(super) name: &'static str,
    pub(super) field: &'static dyn Field,
    pub(super) doc: &'static str,
}

impl Key {
    /// Returns all keys, those of one section together.
    #[must_use]
    pub fn all() -> &'static [Self] {
        &KEYS
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

    /// Returns what may be given, as in "expected …".
    #[must_use]
    pub fn allowed(&self) -> String {
        self.field.allowed()
    }

    /// Returns what the key is for, as a sentence.
    #[must_use]
    pub const fn doc(&self) -> &'static str {
        self.doc
    }

    /// Returns the key's default as TOML.
    #[must_use]
    pub fn default_toml(&self) -> String {
        self.toml(&Config::default())
    }

    /// Returns what a configuration says of the key, as TOML.
    #[must_use]
    pub fn toml(&self, config: &Config) -> String {
        self.field.toml(&mut config.clone())
    }

    pub(super) fn set(&self, config: &mut Config, given: &Given<'_>) -> Result<(), String> {
        self.field.set(config, given)
    }

    pub(super) fn find(path: &str) -> Option<&'static Self> {
        let (section, name) = path.split_once('.')?;
        let mut keys = Section::find(section)?.keys();
        keys.find(|key| key.name == name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.path()).finish()
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
            assert!(Key::find(path).is_none(), "{path}");
        }
    }

    #[test]
    fn every_sentence_of_the_table_is_one() {
        let docs = Key::all().iter().map(Key::doc);
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
            key.set(&mut config, &Given::Text(text)).unwrap();
            assert_eq!(config, Config::default(), "{key:?}");
        }
    }
}
