//! Fairness keys and groups in the requests of operators: their paths, the changes of their settings, and the part of the
//! tree that a list is about.

use fila_core::{KeyCursor, KeySeparator};
use fila_proto::v1::{self, ErrorCode};
use fila_store::FairnessKey;

use super::message::fairness_key;
use super::page_token;
use super::refusal::Refusal;
use super::settings::KeyChange;
use crate::runtime::{Handle, QueueEntry};

/// The most changes of one request. They are made while no other queue can be changed.
const CHANGES_MAX: usize = 1_000;

/// The rules for keys and groups of a queue.
#[derive(Debug)]
pub(super) struct KeyRules<'a> {
    queue: &'a QueueEntry,
    separator: Option<KeySeparator>,
    bytes_max: usize,
}

impl<'a> KeyRules<'a> {
    pub(super) fn of(handle: &Handle, queue: &'a QueueEntry) -> Self {
        Self {
            queue,
            separator: handle.key_separator(queue),
            bytes_max: handle.limits().message.fairness_key_bytes.as_usize(),
        }
    }

    /// Parses the change of a key or group.
    ///
    /// # Errors
    /// If no message can have such a key, or the weight is out of range. A key that has settings may be no path: they can
    /// be taken back after the separator has changed.
    pub(super) fn change(
        &self,
        change: v1::KeyChange,
    ) -> Result<(FairnessKey, KeyChange), Refusal> {
        let v1::KeyChange {
            fairness_key: name,
            paused,
            weight,
            concurrency,
            depth_max,
        } = change;
        check_length(&name, self.bytes_max)?;
        let (found, max) = (weight.unwrap_or(0), drr::Weight::MAX.value());
        if found > max {
            let text = format!("weight {found} is out of range; 1 to {max} are allowed");
            return Err(Refusal::new(ErrorCode::InvalidWeight, text));
        }
        let key = fairness_key(name)?;
        if !self.queue.definition.keys.contains_key(&key) {
            check_path(self.separator, &key)?;
        }
        let change = KeyChange {
            paused,
            weight,
            concurrency,
            depth_max,
        };
        Ok((key, change))
    }

    /// Parses the changes of one request.
    ///
    /// # Errors
    /// If there are too many, or one of them is refused: the text says which.
    pub(super) fn changes(
        &self,
        changes: Vec<v1::KeyChange>,
    ) -> Result<Vec<(FairnessKey, KeyChange)>, Refusal> {
        let found = changes.len();
        if found > CHANGES_MAX {
            let text = format!("{found} changes, {CHANGES_MAX} are allowed; split them");
            return Err(Refusal::invalid(text));
        }
        let parsed = changes.into_iter().zip(1..).map(|(change, number)| {
            let parsed = self.change(change);
            parsed.map_err(|refusal| refusal.about(&format!("change {number}")))
        });
        parsed.collect()
    }

    /// Parses the path that a list is about. An empty one selects everything.
    ///
    /// # Errors
    /// If no key or group can have this path.
    pub(super) fn within(&self, path: String) -> Result<Within, Refusal> {
        let separator = self.separator;
        if path.is_empty() {
            return Ok(Within {
                path: None,
                separator,
            });
        }
        check_length(&path, self.bytes_max)?;
        let path = fairness_key(path)?;
        check_path(separator, &path)?;
        Ok(Within {
            path: Some(path),
            separator,
        })
    }
}

/// A part of the tree of keys and groups.
#[derive(Debug)]
pub(super) struct Within {
    /// The path at its top; all of the tree if there is none.
    path: Option<FairnessKey>,
    separator: Option<KeySeparator>,
}

impl Within {
    /// Tells whether a key or group is at the top of this part, or below.
    pub(super) fn contains(&self, name: &FairnessKey) -> bool {
        let Some(path) = &self.path else {
            return true;
        };
        let name = name.as_bytes();
        let groups = self.separator.map(|separator| separator.groups(name));
        let mut groups = groups.into_iter().flatten();
        name == path.as_bytes() || groups.any(|group| group == path.as_bytes())
    }
}

/// Refuses a fairness key that is too long for a message.
pub(super) fn check_length(key: &str, max: usize) -> Result<(), Refusal> {
    let found = key.len();
    if found > max {
        let text = format!("the fairness key has {found} bytes, {max} are allowed");
        return Err(Refusal::new(ErrorCode::FairnessKeyTooLong, text));
    }
    Ok(())
}

/// Refuses a fairness key that no message can have under this separator.
fn check_path(separator: Option<KeySeparator>, key: &FairnessKey) -> Result<(), Refusal> {
    let checked = separator.map_or(Ok(()), |separator| separator.check(key.as_bytes()));
    checked.map_err(|error| Refusal::new(ErrorCode::InvalidFairnessKey, error.to_string()))
}

/// Returns the place where a page of keys or groups begins.
pub(super) fn cursor(page_token: &str) -> Result<KeyCursor, Refusal> {
    match page_token {
        "" => Ok(KeyCursor::start()),
        text => {
            let number = text.parse().map_err(|_| page_token::invalid())?;
            Ok(KeyCursor::from_number(number))
        }
    }
}

/// Returns the token of the next page; empty if there is none.
pub(super) fn next_page(next: Option<KeyCursor>) -> String {
    next.map_or_else(String::new, |next| next.get().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_tree_has_its_top_and_what_is_below_on_every_level() {
        let key = |name: &str| FairnessKey::new(name.to_owned()).unwrap();
        let within = |separator: Option<char>| Within {
            path: Some(key("a/b")),
            separator: separator.map(|it| KeySeparator::new(it).unwrap()),
        };
        let slash = within(Some('/'));
        for name in ["a/b", "a/b/c", "a/b/c/d"] {
            assert!(slash.contains(&key(name)), "{name}");
        }
        // The last two are no paths, so each is one name.
        for name in ["a", "b", "a/bc", "a/c/b", "a/b//c", "a/b/c/d/e"] {
            assert!(!slash.contains(&key(name)), "{name}");
        }
        for separator in [None, Some(':')] {
            let flat = within(separator);
            assert!(flat.contains(&key("a/b")) && !flat.contains(&key("a/b/c")));
        }
    }
}
