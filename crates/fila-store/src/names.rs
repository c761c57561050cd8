//! The words that users choose, each within bounds that the storage format can hold.
//!
//! The constructor checks the bounds, so every value of these types is within them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// Something is longer or shorter, or more or fewer, than the storage format holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {found} given, allowed are {min} to {max}")]
pub struct OutOfRange {
    /// The name and unit of the quantity.
    pub what: &'static str,
    /// The given amount.
    pub found: usize,
    /// The least that is allowed.
    pub min: usize,
    /// The most that is allowed.
    pub max: usize,
}

pub(crate) fn within(
    what: &'static str,
    found: usize,
    min: usize,
    max: usize,
) -> Result<(), OutOfRange> {
    if (min..=max).contains(&found) {
        Ok(())
    } else {
        Err(OutOfRange {
            what,
            found,
            min,
            max,
        })
    }
}

/// The tenant that a message belongs to in fair scheduling: any bytes, up to [`MAX`](Self::MAX) of them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FairnessKey(Bytes);

impl FairnessKey {
    /// The longest key, in bytes.
    pub const MAX: usize = 512;

    /// Takes these bytes as a key.
    ///
    /// # Errors
    /// If there are more than [`MAX`](Self::MAX).
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, OutOfRange> {
        let bytes = bytes.into();
        within("bytes of a fairness key", bytes.len(), 0, Self::MAX)?;
        Ok(Self(bytes))
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The key of messages whose producer names none.
impl Default for FairnessKey {
    fn default() -> Self {
        Self(Bytes::from_static(b"default"))
    }
}

/// So that a table of keys finds one by its bytes, or by a part of another.
impl Borrow<[u8]> for FairnessKey {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for FairnessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FairnessKey({:?})", self.0)
    }
}

/// A producer's id for a message, so that sending it twice enqueues it once: 1 to [`MAX`](Self::MAX) bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeduplicationId(Bytes);

impl DeduplicationId {
    /// The longest id, in bytes.
    pub const MAX: usize = 128;

    /// Takes these bytes as an id.
    ///
    /// # Errors
    /// If there are none, or more than [`MAX`](Self::MAX).
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, OutOfRange> {
        let bytes = bytes.into();
        within("bytes of a deduplication id", bytes.len(), 1, Self::MAX)?;
        Ok(Self(bytes))
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for DeduplicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeduplicationId({:?})", self.0)
    }
}

/// The name of a deduplication row, which the store does not interpret: 1 to [`MAX`](Self::MAX) bytes. It has room for a
/// deduplication id, its fairness key, and three bytes more.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RememberedName(Bytes);

impl RememberedName {
    /// The longest name, in bytes.
    pub const MAX: usize = 3 + FairnessKey::MAX + DeduplicationId::MAX;

    /// Takes these bytes as a name.
    ///
    /// # Errors
    /// If there are none, or more than [`MAX`](Self::MAX).
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, OutOfRange> {
        let bytes = bytes.into();
        within("bytes of a deduplication row", bytes.len(), 1, Self::MAX)?;
        Ok(Self(bytes))
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<DeduplicationId> for RememberedName {
    fn from(id: DeduplicationId) -> Self {
        Self(id.0)
    }
}

impl fmt::Debug for RememberedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RememberedName({:?})", self.0)
    }
}

/// The name of a queue: 1 to [`MAX`](Self::MAX) bytes of text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// The longest name, in bytes.
    pub const MAX: usize = 255;

    /// Takes this text as a name.
    ///
    /// # Errors
    /// If it is empty, or longer than [`MAX`](Self::MAX).
    pub fn parse(name: &str) -> Result<Self, OutOfRange> {
        within("bytes of a queue's name", name.len(), 1, Self::MAX)?;
        Ok(Self(name.into()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueName({:?})", self.0)
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The token bucket that a message takes from before it is delivered: 1 to [`MAX`](Self::MAX) bytes of text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThrottleKey(Arc<str>);

impl ThrottleKey {
    /// The longest key, in bytes.
    pub const MAX: usize = 256;

    /// Takes this text as a key.
    ///
    /// # Errors
    /// If it is empty, or longer than [`MAX`](Self::MAX).
    pub fn parse(key: &str) -> Result<Self, OutOfRange> {
        within("bytes of a throttle key", key.len(), 1, Self::MAX)?;
        Ok(Self(key.into()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Texts sort and hash as keys do.
impl Borrow<str> for ThrottleKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ThrottleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThrottleKey({:?})", self.0)
    }
}

impl fmt::Display for ThrottleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The key of an entry of the runtime configuration: 1 to [`MAX`](Self::MAX) bytes of text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigKey(Arc<str>);

impl ConfigKey {
    /// The longest key, in bytes.
    pub const MAX: usize = 512;

    /// Takes this text as a key.
    ///
    /// # Errors
    /// If it is empty, or longer than [`MAX`](Self::MAX).
    pub fn parse(key: &str) -> Result<Self, OutOfRange> {
        within("bytes of a config key", key.len(), 1, Self::MAX)?;
        Ok(Self(key.into()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Texts sort as keys do.
impl Borrow<str> for ConfigKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ConfigKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConfigKey({:?})", self.0)
    }
}

impl fmt::Display for ConfigKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_at_the_limit_is_taken_and_one_byte_more_is_refused() {
        assert!(FairnessKey::new(vec![0; FairnessKey::MAX]).is_ok());
        let refused = FairnessKey::new(vec![0; FairnessKey::MAX + 1]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "bytes of a fairness key: 513 given, allowed are 0 to 512"
        );
    }

    #[test]
    fn names_and_deduplication_ids_are_not_empty() {
        assert!(QueueName::parse("").is_err());
        assert!(ConfigKey::parse("").is_err());
        assert!(ThrottleKey::parse("").is_err());
        assert!(DeduplicationId::new("").is_err());
        assert!(QueueName::parse(&"q".repeat(QueueName::MAX + 1)).is_err());
        assert!(ConfigKey::parse(&"c".repeat(ConfigKey::MAX + 1)).is_err());
        assert!(ThrottleKey::parse(&"t".repeat(ThrottleKey::MAX + 1)).is_err());
        assert!(DeduplicationId::new(vec![b'd'; DeduplicationId::MAX + 1]).is_err());
        assert!(RememberedName::new("").is_err());
        assert!(RememberedName::new(vec![b'd'; RememberedName::MAX]).is_ok());
        assert!(RememberedName::new(vec![b'd'; RememberedName::MAX + 1]).is_err());
    }
}
