//! What the caller holds: handles to keys and groups, and the errors of holding an old one.

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
/// A key that was forgotten is recognised and refused, also when its slot lives on as another key.
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

/// What a key owed when it was forgotten; see [`Drr::readmit`](crate::Drr::readmit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "without its standing, a key that comes back has shed its debt"]
pub struct Standing {
    pub(crate) home: Option<Group>,
    pub(crate) due: u64,
    pub(crate) epoch: u32,
    /// Scaled credit still owed at that visit; negative if some was left over.
    pub(crate) owed: i64,
}

/// A point in an engine's virtual time, comparable between engines of the same quantum.
///
/// Virtual time wraps: a moment means something only as long as it is near the present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Moment(pub(crate) u64);

impl Moment {
    /// Returns whether this moment comes before another one.
    #[inline]
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }

    /// Returns the moment as a number, to be kept in an atomic.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the moment that [`to_bits`](Self::to_bits) was called on.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// The key or group is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this key or group was forgotten; register it again and use the new handle")]
pub struct Unknown;

/// Why a group could not be disbanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisbandError {
    /// The group is not there any more.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// The group has children, which would be left without a parent.
    #[error("the group still has {children} children; forget or disband them first")]
    NotEmpty {
        /// How many children it has.
        children: u32,
    },
}

/// What a key or group is doing.
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
