//! The levels of durability, and their names in the configuration.

use std::fmt;
use std::str::FromStr;

/// How far a confirmed commit has got. A later level survives more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Into this process: gone if it is killed. For tests and caches.
    Memory,
    /// To the operating system: survives a killed process, not a power cut.
    Os,
    /// Onto the disk: survives a power cut.
    #[default]
    Fsync,
}

impl Durability {
    /// All levels.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Os, Self::Fsync];

    /// Returns the level's name, as it is configured: `memory`, `os` or `fsync`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Os => "os",
            Self::Fsync => "fsync",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no level of durability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no level of durability; choose `fsync`, `os` or `memory`")]
pub struct UnknownDurability(String);

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(word: &str) -> Result<Self, UnknownDurability> {
        let level = Self::ALL.into_iter().find(|level| level.name() == word);
        level.ok_or_else(|| UnknownDurability(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_found_by_its_name() {
        for level in Durability::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert!(Durability::ALL.is_sorted());
    }

    #[test]
    fn another_word_is_refused_with_the_ones_allowed() {
        let refused = "Fsync".parse::<Durability>().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "`Fsync` is no level of durability; choose `fsync`, `os` or `memory`"
        );
    }
}
