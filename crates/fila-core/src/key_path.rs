//! Fairness keys as paths: `acme/alice` is alice in the group `acme`.
//!
//! A queue has a separator, or none. With one, a key that contains it is a path: each part of it is a level, and the path
//! without its last part names the group that the key is in. A key without the separator is flat. So is a stored key that
//! is no valid path, because an earlier version wrote it or because the separator was changed: it is one name. Only new
//! messages are refused.
//!
//! A path is a slice of its key. Nothing here allocates, and a key is read once from its start to its end.

use std::fmt;

use fila_store::GroupWeights;
use serde::{Deserialize, Serialize};

/// The most parts of a path.
///
/// Every level costs one more visit at each dispatch, and adds one more turn to the bound on a wait. Four are an
/// organisation, a team, a user and a job.
pub const DEPTH_MAX: usize = GroupWeights::LEVELS + 1;

/// The character between the parts of a path: printable ASCII, and no letter, digit or space.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "char", into = "char")]
pub struct KeySeparator(u8);

/// Why a character cannot separate the parts of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a separator is one ASCII character that is printable and no letter, digit or space, as `/`"
)]
pub struct NoSeparator;

/// Why a fairness key is no path under the separator of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyPathError {
    /// A part is empty.
    #[error(
        "part {part} of the fairness key is empty: `{separator}` separates parts, and each has a name; name it, or \
         switch the queue's key_separator off"
    )]
    EmptyPart {
        /// The number of the part, from 1 on.
        part: usize,
        /// The separator of the queue.
        separator: KeySeparator,
    },
    /// There are too many parts.
    #[error(
        "the fairness key has {parts} parts between `{separator}`, at most {DEPTH_MAX} are allowed; join some of them, \
         or switch the queue's key_separator off"
    )]
    TooDeep {
        /// The number of parts.
        parts: usize,
        /// The separator of the queue.
        separator: KeySeparator,
    },
}

/// The separator of new queues: `/`.
impl Default for KeySeparator {
    fn default() -> Self {
        Self(b'/')
    }
}

impl KeySeparator {
    /// Takes this character as a separator.
    ///
    /// # Errors
    /// If it is not printable ASCII, or a letter, a digit or a space.
    pub fn new(character: char) -> Result<Self, NoSeparator> {
        match u8::try_from(character) {
            Ok(byte) if byte.is_ascii_punctuation() => Ok(Self(byte)),
            Ok(_) | Err(_) => Err(NoSeparator),
        }
    }

    /// Takes this text as a separator.
    ///
    /// # Errors
    /// If it is not one character, or not a valid one.
    pub fn parse(text: &str) -> Result<Self, NoSeparator> {
        let mut characters = text.chars();
        match (characters.next(), characters.next()) {
            (Some(character), None) => Self::new(character),
            (Some(_), Some(_)) | (None, _) => Err(NoSeparator),
        }
    }

    /// Returns the character.
    pub fn as_char(self) -> char {
        char::from(self.0)
    }

    /// Checks that a key is a path, or flat. An empty key is flat.
    ///
    /// # Errors
    /// If a part of it is empty, or if it has more than [`DEPTH_MAX`] parts.
    pub fn check(self, key: &[u8]) -> Result<(), KeyPathError> {
        if !key.contains(&self.0) {
            return Ok(());
        }
        let separator = self;
        let mut parts = 0;
        for part in self.parts(key) {
            parts += 1;
            if part.is_empty() {
                return Err(KeyPathError::EmptyPart {
                    part: parts,
                    separator,
                });
            }
        }
        if parts > DEPTH_MAX {
            return Err(KeyPathError::TooDeep { parts, separator });
        }
        Ok(())
    }

    /// Returns the path of the group that a key or a group of this name is in; none if the name is flat, or no valid
    /// path.
    pub fn parent(self, name: &[u8]) -> Option<&[u8]> {
        let last = name.iter().rposition(|byte| *byte == self.0)?;
        self.check(name).ok()?;
        Some(&name[..last])
    }

    /// Returns the paths of the groups that a key is in, from the top down: the place of each is its level in
    /// [`GroupWeights`]. None for a flat key, and for one that is no valid path.
    pub fn groups(self, key: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
        let key = if self.check(key).is_ok() { key } else { &[] };
        let ends = (0..key.len()).filter(move |at| key[*at] == self.0);
        ends.map(|end| &key[..end])
    }

    /// Returns the last part of a path: the name of a key or a group among its siblings. The whole name if it is flat, or
    /// no valid path.
    pub fn last_part(self, name: &[u8]) -> &[u8] {
        match self.parent(name) {
            Some(parent) => &name[parent.len() + 1..],
            None => name,
        }
    }

    /// Returns the first part of a path: the name of the key or group at the top that it belongs to. The whole name if it
    /// is flat, or no valid path.
    pub fn top(self, name: &[u8]) -> &[u8] {
        self.groups(name).next().unwrap_or(name)
    }

    fn parts(self, key: &[u8]) -> impl Iterator<Item = &[u8]> {
        key.split(move |byte| *byte == self.0)
    }
}

impl TryFrom<char> for KeySeparator {
    type Error = NoSeparator;

    fn try_from(character: char) -> Result<Self, NoSeparator> {
        Self::new(character)
    }
}

impl From<KeySeparator> for char {
    fn from(separator: KeySeparator) -> Self {
        separator.as_char()
    }
}

impl fmt::Display for KeySeparator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_char().fmt(f)
    }
}

impl fmt::Debug for KeySeparator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySeparator({:?})", self.as_char())
    }
}

#[cfg(test)]
mod tests {
    use fila_store::FairnessKey;
    use proptest::prelude::*;

    use super::*;

    const SLASH: KeySeparator = KeySeparator(b'/');

    #[test]
    fn a_separator_is_printable_and_no_letter_digit_or_space() {
        for byte in 0..=u8::MAX {
            let character = char::from(byte);
            let allowed = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~".contains(character);
            assert_eq!(
                KeySeparator::new(character).is_ok(),
                allowed,
                "{character:?}"
            );
        }
        for text in ["", "//", "→", "a", "7", " ", "\n", "\u{7f}", "ä", "/ "] {
            assert_eq!(KeySeparator::parse(text), Err(NoSeparator), "{text:?}");
        }
        assert_eq!(KeySeparator::parse("/"), Ok(KeySeparator::default()));
        assert_eq!(KeySeparator::parse("::"), Err(NoSeparator));
        assert_eq!(KeySeparator::parse("|").unwrap().to_string(), "|");
    }

    #[test]
    fn a_path_has_up_to_four_parts_and_each_has_a_name() {
        for good in [
            "",
            "acme",
            "a/b",
            "a/b/c",
            "a/b/c/d",
            "a:b//c".replace("//", "|").as_str(),
        ] {
            assert_eq!(SLASH.check(good.as_bytes()), Ok(()), "{good}");
        }
        let empty = |part| {
            Err(KeyPathError::EmptyPart {
                part,
                separator: SLASH,
            })
        };
        for (bad, part) in [
            ("/", 1),
            ("/a", 1),
            ("a/", 2),
            ("a//b", 2),
            ("a/b/", 3),
            ("//", 1),
            ("a/b/c/d/", 5),
            ("a/b/c/d/e//", 6),
        ] {
            assert_eq!(SLASH.check(bad.as_bytes()), empty(part), "{bad}");
        }
        let deep = |parts| {
            Err(KeyPathError::TooDeep {
                parts,
                separator: SLASH,
            })
        };
        assert_eq!(SLASH.check(b"a/b/c/d/e"), deep(5));
        let long = ["a"; FairnessKey::MAX / 2].join("/");
        assert_eq!(SLASH.check(long.as_bytes()), deep(256));
    }

    #[test]
    fn the_sentences_name_the_part_and_the_remedy() {
        let text = |key: &[u8]| SLASH.check(key).unwrap_err().to_string();
        assert_eq!(
            text(b"a//b"),
            "part 2 of the fairness key is empty: `/` separates parts, and each has a name; name it, or switch the \
             queue's key_separator off"
        );
        assert_eq!(
            text(b"a/b/c/d/e"),
            "the fairness key has 5 parts between `/`, at most 4 are allowed; join some of them, or switch the queue's \
             key_separator off"
        );
    }

    #[test]
    fn the_parent_is_the_path_without_its_last_part() {
        let parent = |key: &'static [u8]| SLASH.parent(key);
        assert_eq!(parent(b"a/b/c/d"), Some(&b"a/b/c"[..]));
        assert_eq!(parent(b"a/b"), Some(&b"a"[..]));
        assert_eq!(parent(b"\xff/\x00"), Some(&b"\xff"[..]));
        for alone in [&b""[..], b"a", b"/", b"a/", b"/a", b"a//b", b"a/b/c/d/e"] {
            assert_eq!(SLASH.parent(alone), None, "{alone:?}");
        }
        assert_eq!(KeySeparator(b':').parent(b"a/b"), None);
    }

    #[test]
    fn the_groups_of_a_key_come_from_the_top_down() {
        let groups = |key: &'static [u8]| SLASH.groups(key).collect::<Vec<_>>();
        assert_eq!(groups(b"a/b/c/d"), [&b"a"[..], b"a/b", b"a/b/c"]);
        assert_eq!(groups(b"acme/alice"), [&b"acme"[..]]);
        for alone in [&b""[..], b"a", b"a/", b"/a", b"a//b", b"a/b/c/d/e"] {
            assert_eq!(SLASH.groups(alone).count(), 0, "{alone:?}");
        }
        assert_eq!(SLASH.last_part(b"acme/alice"), b"alice");
        assert_eq!(SLASH.last_part(b"acme"), b"acme");
        assert_eq!(SLASH.last_part(b"a//b"), b"a//b");
        assert_eq!(SLASH.top(b"a/b/c/d"), b"a");
        assert_eq!(SLASH.top(b"acme"), b"acme");
        assert_eq!(SLASH.top(b"a//b"), b"a//b");
    }

    proptest! {
        /// Whatever the bytes: each parent is a valid path that is shorter, and the chain of parents is the groups.
        #[test]
        fn parents_lead_to_a_flat_name_by_way_of_all_groups(
            key in prop::collection::vec(prop::sample::select(&b"/ab\xff\x00:"[..]), 0..24),
        ) {
            let mut groups: Vec<&[u8]> = Vec::new();
            let mut name = &key[..];
            while let Some(parent) = SLASH.parent(name) {
                prop_assert!(SLASH.check(parent).is_ok() && !parent.is_empty());
                prop_assert_eq!(&[parent, b"/", SLASH.last_part(name)].concat()[..], name);
                groups.push(parent);
                name = parent;
            }
            groups.reverse();
            prop_assert!(groups.len() < DEPTH_MAX);
            prop_assert_eq!(&SLASH.groups(&key).collect::<Vec<_>>(), &groups);
            let is_path = SLASH.check(&key).is_ok() && key.contains(&b'/');
            prop_assert_eq!(!groups.is_empty(), is_path);
        }
    }
}
