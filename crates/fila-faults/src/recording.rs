//! The operations on the files beneath a directory, in order.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// A file or a directory, which keeps its number under whatever name it has.
pub type NodeId = usize;

/// The watched directory itself.
pub const ROOT: NodeId = 0;

/// A name in a directory.
pub type Place = (NodeId, OsString);

/// A file or a directory as it was when the recording began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A file, and its bytes.
    File(Content),
    /// A directory.
    Directory,
}

/// The bytes of a file; those beyond `bytes`, up to `len`, are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The bytes that are not known to be zero.
    pub bytes: Vec<u8>,
    /// How long the file is.
    pub len: u64,
}

impl Content {
    /// Writes at an offset; the file grows if need be.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let from = index(offset);
        let to = from + data.len();
        if self.bytes.len() < to {
            self.bytes.resize(to, 0);
        }
        self.bytes[from..to].copy_from_slice(data);
        self.len = self.len.max(to as u64);
    }

    /// Cuts the file off, or makes it longer by zeros.
    pub fn set_len(&mut self, len: u64) {
        self.bytes.truncate(index(len));
        self.len = len;
    }
}

/// Recordings fit into memory, so their offsets fit into a `usize`.
pub(crate) fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// One operation. The watch does not record a failed operation, since it has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Bytes were written.
    Write {
        /// To which file.
        node: NodeId,
        /// From where on.
        offset: u64,
        /// Which bytes.
        data: Box<[u8]>,
    },
    /// A file was cut off or made longer.
    SetLen {
        /// Which file.
        node: NodeId,
        /// How long it is now.
        len: u64,
    },
    /// A name was given, to something new or as a further name.
    Enter {
        /// Which name.
        place: Place,
        /// To what.
        node: NodeId,
    },
    /// A name was taken away.
    Remove {
        /// Which name.
        place: Place,
    },
    /// A name was exchanged for another, which may have been something else's.
    Rename {
        /// The name that is no more.
        from: Place,
        /// The name that is now its.
        to: Place,
        /// Of what.
        node: NodeId,
    },
    /// A sync has returned without an error.
    Sync {
        /// The file or directory.
        node: NodeId,
        /// The operations before this one are covered: the sync began after them.
        upto: usize,
        /// Whether only the data were asked for (`fdatasync`), and what is needed to find them.
        data_only: bool,
    },
    /// The driver has reached a point of its own.
    Mark(u64),
}

/// All that was done to a directory from some moment on.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// All files and directories that there ever were. Those that came later began empty.
    pub nodes: Vec<Node>,
    /// The names that there were when it began.
    pub entries: BTreeMap<Place, NodeId>,
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// Changes that the watch cannot follow. A recording that has one is worth nothing.
    pub unseen: Vec<String>,
}
