//! Which fairness keys a peek or a redrive is about, and where their messages lie.
//!
//! Messages lie in the order of their keys, byte by byte. So the keys in the group `acme` are one stretch, those that begin
//! with `acme/`. The key `acme` itself is another stretch: keys such as `acme-2` may lie between the two, and a reader
//! skips them.

use fila_core::KeySeparator;
use fila_store::{Cursor, FairnessKey, Locator, MessageId};

/// A choice of fairness keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeySelection {
    /// All keys.
    #[default]
    All,
    /// One key.
    Key(FairnessKey),
    /// The keys in a group, on every level, and the key of its name.
    Within {
        /// The path of the group.
        group: FairnessKey,
        /// The separator of the queue.
        separator: KeySeparator,
    },
}

impl KeySelection {
    /// Returns whether a page may begin after this message.
    pub fn covers(&self, place: &Locator) -> bool {
        self.stretches().any(|stretch| stretch.covers(place))
    }

    /// Returns the stretches of its messages, in their order.
    pub(super) fn stretches(&self) -> impl Iterator<Item = Stretch> + use<> {
        let (first, second) = match self {
            Self::All => (Stretch::All, None),
            Self::Key(key) => (Stretch::Key(key.clone()), None),
            Self::Within { group, separator } => {
                let mut prefix = group.as_bytes().to_vec();
                prefix.extend(separator.to_string().bytes());
                // No key is in a group whose path is as long as a key may be.
                let members = FairnessKey::new(prefix).ok().map(|prefix| Stretch::Under {
                    prefix,
                    separator: *separator,
                });
                (Stretch::Key(group.clone()), members)
            }
        };
        std::iter::once(first).chain(second)
    }
}

/// Messages that lie beside each other.
#[derive(Clone, Debug)]
pub(super) enum Stretch {
    All,
    Key(FairnessKey),
    /// The keys with this prefix: a path, and the separator.
    Under {
        prefix: FairnessKey,
        separator: KeySeparator,
    },
}

impl Stretch {
    /// Returns whether a message lies in it.
    pub(super) fn covers(&self, place: &Locator) -> bool {
        match self {
            Self::All => true,
            Self::Key(key) => *key == place.fairness_key,
            Self::Under { prefix, .. } => {
                let key = place.fairness_key.as_bytes();
                key.starts_with(prefix.as_bytes())
            }
        }
    }

    /// Returns whether a message that lies in it is one of the selection. An old key may begin like a path and be none:
    /// it is in no group.
    pub(super) fn wants(&self, place: &Locator) -> bool {
        match self {
            Self::All | Self::Key(_) => true,
            Self::Under { separator, .. } => separator.check(place.fairness_key.as_bytes()).is_ok(),
        }
    }

    /// Returns whether all of it lies before a message.
    pub(super) fn is_before(&self, place: &Locator) -> bool {
        let begins_before = self.first().is_some_and(|first| first < *place);
        begins_before && !self.covers(place)
    }

    /// Returns the position before its messages.
    pub(super) fn start(&self) -> Cursor {
        let first = self.first();
        first.map_or_else(Cursor::start, |place| Cursor::after(&place))
    }

    /// Returns the place before all of its messages: none has this id.
    fn first(&self) -> Option<Locator> {
        let fairness_key = match self {
            Self::All => return None,
            Self::Key(key) => key.clone(),
            Self::Under { prefix, .. } => prefix.clone(),
        };
        let id = MessageId::from_number(0);
        Some(Locator { fairness_key, id })
    }
}
