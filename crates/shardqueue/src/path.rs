//! Keys that are paths: `acme/alice` is alice in the group `acme`.
//!
//! A path is a slice of its key. Nothing here allocates. Keys are checked when they are submitted, so all that a shard
//! knows are valid.

use crate::error::KeyError;

/// The most parts of a path.
///
/// Every level costs one more visit at each dispatch, and adds one more turn to the bound on a wait. Four are an
/// organisation, a team, a user and a job.
pub(crate) const PARTS_MAX: usize = 4;

/// The character between the parts of a path: printable ASCII, and no letter, digit or space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Separator(char);

impl Separator {
    pub(crate) const fn new(character: char) -> Option<Self> {
        if character.is_ascii_punctuation() {
            Some(Self(character))
        } else {
            None
        }
    }

    /// Checks that a key is a path or has one part. An empty key has one part.
    pub(crate) fn check(self, key: &str) -> Result<(), KeyError> {
        if !key.contains(self.0) {
            return Ok(());
        }
        let mut parts = 0;
        for part in key.split(self.0) {
            parts += 1;
            if part.is_empty() {
                return Err(KeyError::EmptyPart {
                    part: parts,
                    separator: self.0,
                });
            }
        }
        if parts > PARTS_MAX {
            return Err(KeyError::TooDeep {
                parts,
                max: PARTS_MAX,
                separator: self.0,
            });
        }
        Ok(())
    }

    /// Returns the name of the group that a key or a group is in.
    pub(crate) fn parent(self, name: &str) -> Option<&str> {
        let (parent, _) = name.rsplit_once(self.0)?;
        Some(parent)
    }

    /// Returns the names of the groups that a key or a group is in, from the top down.
    pub(crate) fn groups(self, name: &str) -> impl Iterator<Item = &str> {
        let ends = name.match_indices(self.0);
        ends.map(|(end, _)| &name[..end])
    }

    /// Returns whether a name is that of a group, or of something in it.
    pub(crate) fn is_within(self, name: &str, group: &str) -> bool {
        let rest = name.strip_prefix(group);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLASH: Separator = Separator('/');

    #[test]
    fn a_key_has_one_to_four_parts_and_none_is_empty() {
        for key in ["", "acme", "acme/alice", "a/b/c/d", "a b:c", "ключ/a"] {
            assert_eq!(SLASH.check(key), Ok(()), "{key}");
        }
        for (key, part) in [
            ("/", 1),
            ("/a", 1),
            ("a/", 2),
            ("a//b", 2),
            ("a/b/c/d//", 5),
        ] {
            let separator = '/';
            let empty = KeyError::EmptyPart { part, separator };
            assert_eq!(SLASH.check(key), Err(empty), "{key}");
        }
        let deep = KeyError::TooDeep {
            parts: 5,
            max: 4,
            separator: '/',
        };
        assert_eq!(SLASH.check("a/b/c/d/e"), Err(deep));
    }

    #[test]
    fn groups_are_the_beginnings_of_a_path() {
        assert_eq!(SLASH.groups("a/b/c").collect::<Vec<_>>(), ["a", "a/b"]);
        assert_eq!(SLASH.groups("a").count(), 0);
        assert_eq!(
            (SLASH.parent("a/b/c"), SLASH.parent("a")),
            (Some("a/b"), None)
        );
        for (name, group, is_within) in [
            ("a", "a", true),
            ("a/b", "a", true),
            ("ab", "a", false),
            ("a", "a/b", false),
        ] {
            assert_eq!(SLASH.is_within(name, group), is_within, "{name} in {group}");
        }
    }

    #[test]
    fn a_separator_is_a_printable_ascii_character_and_no_letter_digit_or_space() {
        for character in ['/', ':', '.', '|', '-', '_'] {
            assert!(Separator::new(character).is_some(), "{character}");
        }
        for character in ['a', '7', ' ', '\n', '\0', 'é', '→'] {
            assert_eq!(Separator::new(character), None, "{character:?}");
        }
    }
}
