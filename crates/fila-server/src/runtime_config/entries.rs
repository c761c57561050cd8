//! One state of the whole runtime configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::str::Utf8Error;
use std::sync::Arc;

use fila_store::{ConfigEntry, ConfigKey, Version};

use super::throttle::{self, Throttles};

/// An entry of the runtime configuration.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: ConfigKey,
    /// The value. It may be a secret, so no log contains it.
    pub value: String,
    /// The version, which every change raises.
    pub version: Version,
}

impl Entry {
    pub(crate) fn new(key: ConfigKey, value: String, version: Version) -> Self {
        Self {
            key,
            value,
            version,
        }
    }

    /// Reads an entry of the store.
    pub(crate) fn from_stored(stored: &ConfigEntry) -> Result<Self, Utf8Error> {
        let value = std::str::from_utf8(&stored.value)?;
        Ok(Self::new(
            stored.key.clone(),
            value.to_owned(),
            stored.version,
        ))
    }

    /// Returns the size of its key and its value in bytes.
    pub fn bytes(&self) -> usize {
        self.key.as_str().len() + self.value.len()
    }
}

/// Without the value.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("key", &self.key.as_str())
            .field("value_bytes", &self.value.len())
            .field("version", &self.version)
            .finish()
    }
}

/// All entries at one moment. Never changes; cheap to share behind an [`Arc`].
#[derive(Clone, Debug, Default)]
pub struct Entries {
    by_key: BTreeMap<ConfigKey, Arc<Entry>>,
    bytes: usize,
    /// Shared with the next state if the change concerns something else.
    throttles: Arc<Throttles>,
}

impl Entries {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entry(key).map(|entry| entry.value.as_str())
    }

    /// Returns the entry of a key.
    pub fn entry(&self, key: &str) -> Option<&Arc<Entry>> {
        self.by_key.get(key)
    }

    /// Returns the entries whose keys begin with `prefix` and come after `after`, in the order of their keys.
    pub fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: &str,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
        let from = if after.is_empty() || after < prefix {
            Bound::Included(prefix)
        } else {
            Bound::Excluded(after)
        };
        let found = self.by_key.range::<str, _>((from, Bound::Unbounded));
        let found = found.take_while(move |(key, _)| key.as_str().starts_with(prefix));
        found.map(|(_, entry)| entry)
    }

    /// Returns the throttles. Later states return the same value until a throttle changes.
    pub fn throttles(&self) -> &Arc<Throttles> {
        &self.throttles
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Returns the size of all keys and values in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the state with this entry.
    pub(crate) fn with(&self, entry: Arc<Entry>) -> Self {
        let mut next = self.clone();
        let key = entry.key.clone();
        next.bytes += entry.bytes();
        if let Some(old) = next.by_key.insert(entry.key.clone(), entry) {
            next.bytes -= old.bytes();
        }
        next.after_change_of(&key)
    }

    /// Returns the state without the entry of this key.
    pub(crate) fn without(&self, key: &ConfigKey) -> Self {
        let mut next = self.clone();
        if let Some(old) = next.by_key.remove(key) {
            next.bytes -= old.bytes();
        }
        next.after_change_of(key)
    }

    fn after_change_of(mut self, key: &ConfigKey) -> Self {
        if key.as_str().starts_with(throttle::PREFIX) {
            let next = self
                .throttles
                .after_change_of(key.as_str(), |key| self.get(key));
            self.throttles = Arc::new(next);
        }
        self
    }
}

impl FromIterator<Entry> for Entries {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        let entries = entries.into_iter().map(Arc::new);
        let by_key: BTreeMap<_, _> = entries.map(|entry| (entry.key.clone(), entry)).collect();
        let mut read = Self {
            bytes: by_key.values().map(|entry| entry.bytes()).sum(),
            by_key,
            throttles: Arc::default(),
        };
        let keys = read.range(throttle::PREFIX, "");
        let keys = keys.map(|entry| entry.key.as_str());
        read.throttles = Arc::new(Throttles::read(keys, |key| read.get(key)));
        read
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        let key = ConfigKey::parse(key).unwrap();
        Entry::new(key, value.to_owned(), Version::new(1))
    }

    fn entries(keys: &[&str]) -> Entries {
        keys.iter().map(|key| entry(key, "x")).collect()
    }

    fn keys<'a>(found: impl Iterator<Item = &'a Arc<Entry>>) -> Vec<&'a str> {
        found.map(|entry| entry.key.as_str()).collect()
    }

    #[test]
    fn a_range_is_in_order_and_goes_on_where_the_last_one_ended() {
        let entries = entries(&["b", "a2", "a1", "a3", "c"]);
        assert_eq!(keys(entries.range("a", "")), ["a1", "a2", "a3"]);
        assert_eq!(keys(entries.range("a", "a2")), ["a3"]);
        assert_eq!(keys(entries.range("b", "a")), ["b"]);
        assert_eq!(keys(entries.range("", "b")), ["c"]);
        assert_eq!(entries.range("a", "c").count(), 0);
    }

    #[test]
    fn a_state_stays_as_it_was_when_the_next_one_is_made() {
        let before = entries(&["a"]);
        let after = before.with(Arc::new(entry("a", "longer")));
        let gone = after.without(&ConfigKey::parse("a").unwrap());
        assert_eq!(
            (before.get("a"), after.get("a"), gone.get("a")),
            (Some("x"), Some("longer"), None)
        );
        assert_eq!((before.bytes(), after.bytes(), gone.bytes()), (2, 7, 0));
        assert!(gone.is_empty() && after.len() == 1);
    }

    #[test]
    fn throttles_are_read_anew_only_if_one_of_them_changed() {
        let before = entries(&["a"]);
        let other = before.with(Arc::new(entry("b", "1")));
        assert!(Arc::ptr_eq(before.throttles(), other.throttles()));
        let throttled = other.with(Arc::new(entry("throttle:api:rate", "10")));
        assert_eq!(throttled.throttles().len(), 1);
        let key = ConfigKey::parse("throttle:api:rate").unwrap();
        assert!(throttled.without(&key).throttles().is_empty());
    }

    proptest! {
        #[test]
        fn throttles_are_the_same_step_by_step_and_all_at_once(
            changes in prop::collection::vec(
                ("(throttle:[ab]:(rate|burst|rat)|throttle:a|x)", prop::option::of("[0-3]|x")),
                0..30,
            ),
        ) {
            let mut state = Entries::default();
            for (key, value) in changes {
                state = match value {
                    Some(value) => state.with(Arc::new(entry(&key, &value))),
                    None => state.without(&ConfigKey::parse(&key).unwrap()),
                };
                let all = state.range("", "").map(|entry| Entry::clone(entry));
                let read: Entries = all.collect();
                prop_assert_eq!(state.throttles(), read.throttles());
                prop_assert_eq!(state.bytes(), read.bytes());
            }
        }
    }

    #[test]
    fn a_value_is_not_in_the_debug_output() {
        let shown = format!(
            "{:?}",
            entries(&["a"]).with(Arc::new(entry("b", "hunter2")))
        );
        assert!(
            shown.contains("value_bytes: 7") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
}
