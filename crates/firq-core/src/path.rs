//! A tenant whose name has parts: `acme/alice` is alice within acme.
//!
//! A path and the paths above it share one allocation: [`TenantPath::parent`] and `clone` count a reference. With
//! 16 bytes a path is small enough for a tenant's queue to stay within one cache line.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use crate::nesting::DEPTH_MAX;

/// Separates the parts of a path.
const SEPARATOR: char = '/';

/// The name of a tenant in levels, such as `acme/alice`: from one part to four, separated by `/`.
///
/// With [`with_groups(TenantPath::parent)`](crate::SchedulerConfig::with_groups) all paths below `acme` share what one
/// tenant gets, and share it fairly among themselves:
///
/// ```
/// use firq_core::{Scheduler, SchedulerConfig, Task, TenantPath};
///
/// let scheduler = Scheduler::new(SchedulerConfig::fair().with_groups(TenantPath::parent))?;
/// let acme = TenantPath::single("acme")?;
/// for user in ["alice", "bob", "carol"] {
///     assert!(scheduler.submit(acme.join(user)?, Task::new(user)).is_ok());
/// }
/// assert!(scheduler.submit(TenantPath::parse("globex/dora")?, Task::new("dora")).is_ok());
/// assert_eq!(scheduler.tenant_len(&acme), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The default path is `anonymous`: one tenant for all clients without a valid name.
#[derive(Clone)]
pub struct TenantPath {
    /// This path, and maybe more parts.
    text: Arc<Box<str>>,
    /// How many bytes of the text are this path.
    len: u32,
}

impl TenantPath {
    /// The most parts of a path.
    pub const PARTS_MAX: usize = DEPTH_MAX;

    /// The most bytes of a path.
    pub const BYTES_MAX: usize = 512;

    /// Reads a path of one part or several.
    ///
    /// A client that may choose the text may choose the number of parts, too. Where that must not be, use
    /// [`single`](Self::single) and [`join`](Self::join), which take one part each.
    ///
    /// # Errors
    /// If a part is empty, or there are too many parts or bytes.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.len() > Self::BYTES_MAX {
            return Err(PathError::TooLong { bytes: text.len() });
        }
        let mut parts = 0;
        for part in text.split(SEPARATOR) {
            parts += 1;
            if part.is_empty() {
                return Err(PathError::EmptyPart { position: parts });
            }
        }
        if parts > Self::PARTS_MAX {
            return Err(PathError::TooDeep { parts });
        }
        Ok(Self::trusted(text.into()))
    }

    /// Returns the path of one part.
    ///
    /// # Errors
    /// If the name is empty or too long, or has a `/`.
    pub fn single(name: &str) -> Result<Self, PathError> {
        if name.contains(SEPARATOR) {
            return Err(PathError::SeparatorInPart);
        }
        Self::parse(name)
    }

    /// Returns the path with one more part.
    ///
    /// # Errors
    /// If the part is empty or has a `/`, or if the path becomes too deep or too long.
    pub fn join(&self, part: &str) -> Result<Self, PathError> {
        if part.contains(SEPARATOR) {
            return Err(PathError::SeparatorInPart);
        }
        Self::parse(&format!("{self}{SEPARATOR}{part}"))
    }

    /// Returns the path without its last part, which is the group that it is in; `None` for a path of one part.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let end = self.as_str().rfind(SEPARATOR)?;
        Some(Self {
            text: Arc::clone(&self.text),
            len: end as u32,
        })
    }

    /// Returns the parts, outermost first.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.as_str().split(SEPARATOR)
    }

    /// Returns the path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text[..self.len as usize]
    }

    fn trusted(text: Box<str>) -> Self {
        Self {
            len: text.len() as u32, // within `BYTES_MAX`
            text: Arc::new(text),
        }
    }
}

impl Default for TenantPath {
    fn default() -> Self {
        Self::trusted("anonymous".into())
    }
}

impl PartialEq for TenantPath {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for TenantPath {}

// As its text hashes, so that a map of paths can be searched by text.
impl Hash for TenantPath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialOrd for TenantPath {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TenantPath {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Borrow<str> for TenantPath {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl FromStr for TenantPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        Self::parse(text)
    }
}

impl fmt::Display for TenantPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Debug for TenantPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why a text is not a [path](TenantPath).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// A part has no characters.
    #[error("part {position} of the path is empty; remove a `/` or name the part")]
    EmptyPart {
        /// Which part, counted from 1.
        position: usize,
    },
    /// There are too many parts.
    #[error("the path has {parts} parts; it may have {max}", max = TenantPath::PARTS_MAX)]
    TooDeep {
        /// How many parts there are.
        parts: usize,
    },
    /// There are too many bytes.
    #[error("the path has {bytes} bytes; it may have {max}", max = TenantPath::BYTES_MAX)]
    TooLong {
        /// How many bytes there are.
        bytes: usize,
    },
    /// A single part has a `/` in it.
    #[error("a part of a path has no `/` in it; replace the character or use `TenantPath::parse`")]
    SeparatorInPart,
}

#[cfg(test)]
mod tests {
    use super::*;

    const _: () = assert!(size_of::<Option<TenantPath>>() == 16);

    fn path(text: &str) -> TenantPath {
        TenantPath::parse(text).unwrap()
    }

    #[test]
    fn a_path_is_its_text() {
        let alice = path("acme/alice");
        assert_eq!(alice.to_string(), "acme/alice");
        assert_eq!(format!("{alice:?}"), "\"acme/alice\"");
        assert_eq!(alice.parts().collect::<Vec<_>>(), ["acme", "alice"]);
        assert_eq!(Ok(alice.clone()), path("acme").join("alice"));
        assert_eq!(Ok(alice), "acme/alice".parse());
    }

    #[test]
    fn parents_end_at_the_first_part() {
        let job = path("acme/web/alice/job");
        let above: Vec<String> = std::iter::successors(job.parent(), TenantPath::parent)
            .map(|path| path.to_string())
            .collect();
        assert_eq!(above, ["acme/web/alice", "acme/web", "acme"]);
    }

    #[test]
    fn a_parent_equals_the_path_that_was_read_and_hashes_alike() {
        let mut names = std::collections::HashSet::new();
        assert!(names.insert(path("acme/alice").parent().unwrap()));
        assert!(!names.insert(path("acme")));
        assert!(names.contains("acme"));
        assert!(path("acme") < path("acme/alice"));
    }

    #[test]
    fn an_invalid_path_is_refused_with_the_reason() {
        let error = |text: &str| TenantPath::parse(text).unwrap_err();
        for (text, position) in [("", 1), ("/acme", 1), ("acme/", 2), ("a//b", 2)] {
            assert_eq!(error(text), PathError::EmptyPart { position });
        }
        assert_eq!(error("a/b/c/d/e"), PathError::TooDeep { parts: 5 });
        assert_eq!(error(&"x".repeat(513)), PathError::TooLong { bytes: 513 });
        assert!(TenantPath::parse(&"x".repeat(512)).is_ok());
        let acme = path("acme");
        assert_eq!(acme.join("a/b"), Err(PathError::SeparatorInPart));
        assert_eq!(TenantPath::single("a/b"), Err(PathError::SeparatorInPart));
        assert_eq!(acme.join(""), Err(PathError::EmptyPart { position: 2 }));
        assert_eq!(
            error("a/b/c/d/e").to_string(),
            "the path has 5 parts; it may have 4"
        );
    }

    #[test]
    fn the_default_path_is_valid() {
        let default = TenantPath::default();
        assert_eq!(TenantPath::parse(default.as_str()), Ok(default));
    }
}
