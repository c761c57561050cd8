//! A configuration in the making: what is set so far, by whom, and what is wrong with it.

use super::error::{ConfigError, Place, Problem};
use super::given::Given;
use super::keys::{Key, Section};
use super::sections::Config;
use super::{texts, together};

/// A configuration in the making. Starts as the default.
#[derive(Debug)]
pub(super) struct Draft {
    config: Config,
    /// Who has set each key, in the order of the table.
    origins: Vec<Place>,
    problems: Vec<Problem>,
}

impl Draft {
    pub(super) fn new() -> Self {
        Self {
            config: Config::default(),
            origins: vec![Place::Default; Key::all().len()],
            problems: Vec::new(),
        }
    }

    /// Sets a key, or notes why it cannot be set.
    pub(super) fn set(&mut self, key: &'static Key, place: Place, given: &Given<'_>) {
        match key.set(&mut self.config, given) {
            Ok(()) => *self.origin_mut(key) = place,
            Err(message) => self.note(Problem::of_key(place, key.path(), message)),
        }
    }

    /// Notes that something is wrong.
    pub(super) fn note(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Returns the configuration if nothing is wrong with it.
    pub(super) fn finish(mut self) -> Result<Config, ConfigError> {
        for conflict in together::conflicts(&self.config) {
            // Whoever spoke last is told.
            let keys = conflict.keys.iter().filter_map(|path| Key::find(path));
            let blamed = keys.max_by_key(|key| self.origin_mut(key).clone());
            if let Some(key) = blamed {
                let place = self.origin_mut(key).clone();
                self.note(Problem::of_key(place, key.path(), conflict.message));
            }
        }
        match self.problems.is_empty() {
            true => Ok(self.config),
            false => Err(ConfigError::new(self.problems)),
        }
    }

    fn origin_mut(&mut self, key: &Key) -> &mut Place {
        let index = Key::all().iter().position(|other| std::ptr::eq(other, key));
        &mut self.origins[index.expect("there are no keys but those of the table")]
    }
}

/// Returns the message for a name that is no key of its section, with the one that was probably meant.
pub(super) fn unknown_key(section: Section, name: &str) -> String {
    let names: Vec<&str> = section.keys().map(Key::name).collect();
    let section = section.name();
    match closest(name, &names) {
        Some(meant) => format!("`{name}` is no key of [{section}]; did you mean `{meant}`?"),
        None => format!(
            "`{name}` is no key of [{section}]; choose {}",
            texts::one_of(&names)
        ),
    }
}

/// Returns the message for a name that is no section, with the one that was probably meant.
pub(super) fn unknown_section(name: &str) -> String {
    let names = Section::ALL.map(Section::name);
    match closest(name, &names) {
        Some(meant) => format!("`{name}` is no section; did you mean `{meant}`?"),
        None => format!("`{name}` is no section; choose {}", texts::one_of(&names)),
    }
}

/// Returns the name that is most like what was written, if one is like it.
fn closest<'a>(written: &str, names: &[&'a str]) -> Option<&'a str> {
    let likeness = |name: &str| strsim::jaro_winkler(written, name);
    let best = names
        .iter()
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) > 0.85).then_some(best)
}
