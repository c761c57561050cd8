//! Handles to keys and groups, and the errors of using an old one.

use core::fmt;

/// A slot and the generation that lives in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Handle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Something that has work of its own and competes for service.
///
/// The engine recognises and refuses a forgotten key, also when another key has its slot by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub(crate) Handle);

impl Key {
    /// Returns the key's slot: a small number, unique among live keys and groups, reused once forgotten.
    ///
    /// Callers keep what belongs to a key in a plain vector at this index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0.index as usize
    }
}

/// A parent: competes as one for service and shares it among its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub(crate) Handle);

impl Group {
    /// Returns the group's slot, as [`Key::index`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0.index as usize
    }
}

/// A key or a group, where both will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub(crate) Handle);

impl From<Key> for Node {
    fn from(key: Key) -> Self {
        Self(key.0)
    }
}

impl From<Group> for Node {
    fn from(group: Group) -> Self {
        Self(group.0)
    }
}

/// The debt of a forgotten key; see [`Drr::readmit`](crate::Drr::readmit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "without its standing, a key that comes back has shed its debt"]
pub struct Standing {
    pub(crate) home: Option<Group>,
    pub(crate) due: u64,
    pub(crate) epoch: u32,
    /// Scaled credit still owed at that visit; negative if some was left over.
    pub(crate) owed: i64,
}

/// The key or group does not exist any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this key or group was forgotten; register it again and use the new handle")]
pub struct Unknown;

/// Why a group could not be disbanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisbandError {
    /// The group does not exist any more.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// The group has children, which would be left without a parent.
    #[error("the group still has {children} children; forget or disband them first")]
    NotEmpty {
        /// How many children it has.
        children: u32,
    },
}

/// The state of a key or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It has no work.
    Idle,
    /// It may not run, whether or not it has work.
    Parked,
    /// It has just come back from a pass without work and is served ahead of the ring.
    Fresh,
    /// It waits in the ring for its next visit.
    Waiting,
    /// It is being served, as long as it has credit.
    Serving,
}
