//! The environment: `FILA_<SECTION>__<KEY>`.
//!
//! Two underscores separate the section from the key, since keys have single ones in their names. A variable that is
//! empty counts as not set: that is how shells and container files pass on what they do not have. Names that begin with
//! `FILA_` and with no section belong to others, such as the links that Kubernetes sets for a service of that name.

use std::ffi::{OsStr, OsString};

use super::draft::{Draft, unknown_key};
use super::error::{Place, Problem};
use super::given::Given;
use super::keys::{Key, Section};

/// The variable that names the file.
pub(super) const FILE_VARIABLE: &str = "FILA_CONFIG";

/// Sets what the variables say, in the order of their names.
pub(super) fn apply(draft: &mut Draft, variables: &[(OsString, OsString)]) {
    let mut named: Vec<(&str, &OsStr)> = variables
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .filter_map(|(name, value)| Some((name.to_str()?, value.as_os_str())))
        .collect();
    named.sort_unstable();
    for (name, value) in named {
        match meaning(name) {
            Meaning::Foreign => {}
            Meaning::Key(key) => set(draft, key, name, value),
            Meaning::Mistake(message) => {
                draft.note(Problem::new(Place::Variable(name.to_owned()), message));
            }
        }
    }
}

enum Meaning {
    Key(&'static Key),
    Mistake(String),
    Foreign,
}

fn meaning(name: &str) -> Meaning {
    for section in Section::ALL {
        if let Some(rest) = name.strip_prefix(&section.prefix()) {
            let mut keys = section.keys();
            return match keys.find(|key| key.name().to_ascii_uppercase() == rest) {
                Some(key) => Meaning::Key(key),
                None => Meaning::Mistake(unknown_key(section, &rest.to_ascii_lowercase())),
            };
        }
    }
    let single = |key: &&Key| key.variable().replacen("__", "_", 1) == name;
    match Key::all().iter().find(single) {
        Some(key) => Meaning::Mistake(format!(
            "a section is followed by two underscores; write `{}`",
            key.variable()
        )),
        None => Meaning::Foreign,
    }
}

fn set(draft: &mut Draft, key: &'static Key, name: &str, value: &OsStr) {
    let place = Place::Variable(name.to_owned());
    match value.to_str() {
        Some(text) => draft.set(key, place, &Given::Text(text)),
        None => draft.note(Problem::new(
            place,
            format!("expected {}, got bytes that are no UTF-8", key.allowed()),
        )),
    }
}
