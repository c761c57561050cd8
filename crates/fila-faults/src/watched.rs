//! One watched directory: what it holds, what is recorded of it, and what is to go wrong.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::gate::Gate;
use crate::kernel::{self, Inode};
use crate::recording::{Content, Node, NodeId, Op, Place, ROOT, Recording};

/// The faults to inject. By default there are none.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Syncs that still succeed before one fails.
    pub(crate) syncs_left: Option<u64>,
    /// Bytes by which files can still grow before the disk is full. Files that are removed or cut off give theirs back.
    pub(crate) room: Option<u64>,
    /// Whether reads fail.
    pub(crate) unreadable: bool,
    /// Where syncs wait.
    pub(crate) gate: Arc<Gate>,
}

#[derive(Debug)]
pub(crate) struct Watched {
    root: PathBuf,
    /// The names that there are now.
    live: BTreeMap<Place, NodeId>,
    inodes: HashMap<Inode, NodeId>,
    /// How many bytes each file has on the disk.
    allocated: HashMap<NodeId, u64>,
    /// Whether the bytes are kept, too.
    records: bool,
    pub(crate) recording: Recording,
    pub(crate) faults: Faults,
    pub(crate) syncs: u64,
}

impl Watched {
    pub(crate) fn new(root: PathBuf, records: bool) -> std::io::Result<Self> {
        let mut watched = Self {
            live: BTreeMap::new(),
            inodes: HashMap::new(),
            allocated: HashMap::new(),
            records,
            recording: Recording::default(),
            faults: Faults::default(),
            syncs: 0,
            root,
        };
        watched.recording.nodes.push(Node::Directory);
        if let Some(stat) = kernel::lstat(&watched.root) {
            watched.inodes.insert(stat.inode, ROOT);
        }
        watched.read(ROOT, &watched.root.clone())?;
        watched.recording.entries = watched.live.clone();
        Ok(watched)
    }

    /// Learns what there is beneath a directory.
    fn read(&mut self, directory: NodeId, path: &Path) -> std::io::Result<()> {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let path = entry.path();
            let Some(stat) = kernel::lstat(&path) else {
                continue;
            };
            let node = if stat.is_directory {
                Node::Directory
            } else if self.records {
                let mut bytes = Vec::new();
                let file = std::fs::File::open(&path)?;
                let used = kernel::used(&file).unwrap_or(stat.len);
                file.take(used).read_to_end(&mut bytes)?;
                Node::File(Content {
                    bytes,
                    len: stat.len,
                })
            } else {
                Node::File(Content::default())
            };
            let node = self.node(node, stat.inode);
            if !stat.is_directory {
                self.allocated.insert(node, stat.len);
            }
            self.live.insert((directory, entry.file_name()), node);
            if stat.is_directory {
                self.read(node, &path)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, node: Node, inode: Inode) -> NodeId {
        self.recording.nodes.push(node);
        let id = self.recording.nodes.len() - 1;
        self.inodes.insert(inode, id);
        id
    }

    /// Forgets a file that the kernel has given the number of to another one.
    pub(crate) fn forget(&mut self, inode: Inode) {
        self.inodes.remove(&inode);
    }

    /// Returns the numbers of all files that there are.
    pub(crate) fn inodes(&self) -> Vec<Inode> {
        self.inodes.keys().copied().collect()
    }

    pub(crate) fn known(&self, inode: Inode) -> Option<NodeId> {
        self.inodes.get(&inode).copied()
    }

    /// Tells whether a path lies in here.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        path.starts_with(&self.root)
    }

    /// Returns the name that a path is; none for the root, and for what lies in a directory that is not known.
    fn place(&self, path: &Path) -> Option<Place> {
        let mut directory = ROOT;
        let path = path.strip_prefix(&self.root).ok()?;
        let mut parts = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(OsString::from(name)),
            Component::Prefix(_)
            | Component::RootDir
            | Component::CurDir
            | Component::ParentDir => None,
        });
        let mut name = parts.next()?;
        for next in parts {
            directory = *self.live.get(&(directory, name))?;
            name = next;
        }
        Some((directory, name))
    }

    fn path_of(&self, directory: NodeId) -> Option<PathBuf> {
        if directory == ROOT {
            return Some(self.root.clone());
        }
        let ((parent, name), _) = self.live.iter().find(|(_, node)| **node == directory)?;
        Some(self.path_of(*parent)?.join(name))
    }

    pub(crate) fn record(&mut self, op: Op) {
        if self.records {
            self.recording.ops.push(op);
        }
    }

    pub(crate) fn unseen(&mut self, what: impl Into<String>) {
        self.recording.unseen.push(what.into());
    }

    /// Something new has got this name.
    pub(crate) fn created(&mut self, path: &Path, node: Node, inode: Inode) {
        let Some(place) = self.place(path) else {
            return self.unseen(format!("{} was made nowhere", path.display()));
        };
        let node = self.node(node, inode);
        self.live.insert(place.clone(), node);
        self.record(Op::Enter { place, node });
    }

    /// Something known has got this name, too.
    pub(crate) fn linked(&mut self, path: &Path, inode: Inode) {
        match (self.place(path), self.known(inode)) {
            (Some(place), Some(node)) => {
                self.live.insert(place.clone(), node);
                self.record(Op::Enter { place, node });
            }
            (None, _) | (_, None) => self.unseen(format!("{} was linked", path.display())),
        }
    }

    pub(crate) fn removed(&mut self, path: &Path) {
        let Some(place) = self.place(path) else {
            return self.unseen(format!("{} was removed", path.display()));
        };
        match self.live.remove(&place) {
            None => self.unseen(format!("{} was removed, and not known", path.display())),
            Some(node) => self.lost_a_name(node),
        }
        self.record(Op::Remove { place });
    }

    /// Something no longer has one of its names. After its last one its number may be given to another file, which need
    /// not be ours.
    fn lost_a_name(&mut self, node: NodeId) {
        if !self.live.values().any(|named| *named == node) {
            self.inodes.retain(|_, known| *known != node);
            self.cut_off(node, 0);
        }
    }

    pub(crate) fn renamed(&mut self, from: &Path, to: &Path) {
        match (self.place(from), self.place(to)) {
            (Some(from), Some(to)) => self.moved(from, to),
            (None, _) | (_, None) => {
                self.unseen(format!("{} became {}", from.display(), to.display()));
            }
        }
    }

    fn moved(&mut self, from: Place, to: Place) {
        let Some(node) = self.live.remove(&from) else {
            return self.unseen(format!("{from:?} was renamed, and not known"));
        };
        if let Some(replaced) = self.live.insert(to.clone(), node) {
            self.lost_a_name(replaced);
        }
        self.record(Op::Rename { from, to, node });
    }

    /// A name may have been given or taken by a call that cannot be seen, as those are that libraries make without the C
    /// library. A rename of that kind shows here, when the name is opened or its directory synced; before that it is
    /// not durable anyway.
    pub(crate) fn opened(&mut self, path: &Path, inode: Inode) {
        let Some(place) = self.place(path) else {
            return;
        };
        if self.live.get(&place).copied() != self.known(inode) {
            self.reconcile(place.0);
        }
    }

    /// Compares the names in a directory with those that are known.
    pub(crate) fn reconcile(&mut self, directory: NodeId) {
        let Some(path) = self.path_of(directory) else {
            return;
        };
        let Ok(found) = std::fs::read_dir(&path) else {
            return;
        };
        let names = found.flatten().map(|entry| entry.file_name());
        let found: BTreeMap<OsString, Option<NodeId>> = names
            .filter_map(|name| {
                let stat = kernel::lstat(&path.join(&name))?;
                Some((name, self.known(stat.inode)))
            })
            .collect();
        let known: BTreeMap<OsString, NodeId> = self
            .live
            .iter()
            .filter(|((parent, _), _)| *parent == directory)
            .map(|((_, name), node)| (name.clone(), *node))
            .collect();
        for (name, node) in &found {
            match node {
                Some(node) if known.get(name) == Some(node) => {}
                None => self.unseen(format!("{} came unseen", path.join(name).display())),
                Some(node) => {
                    let before = known
                        .iter()
                        .find(|(name, old)| *old == node && !found.contains_key(*name));
                    let to = (directory, name.clone());
                    match before {
                        Some((old, _)) => self.moved((directory, old.clone()), to),
                        None => self.unseen(format!("{to:?} came unseen")),
                    }
                }
            }
        }
        let gone = known.keys().filter(|name| !found.contains_key(*name));
        for name in gone {
            let place = (directory, name.clone());
            if let Some(node) = self.live.remove(&place) {
                self.lost_a_name(node);
                self.record(Op::Remove { place });
            }
        }
    }

    /// Returns how many of `bytes` bytes can be written at this offset of a file, and takes the room for those by which
    /// the file grows.
    pub(crate) fn admit(&mut self, node: NodeId, offset: u64, bytes: usize) -> usize {
        let allocated = self.allocated.entry(node).or_default();
        let end = offset + bytes as u64;
        let growth = end.saturating_sub(*allocated);
        let missing = match &mut self.faults.room {
            None => 0,
            Some(room) => {
                let missing = growth.saturating_sub(*room);
                *room -= growth - missing;
                missing
            }
        };
        *allocated = (*allocated).max(end - missing);
        bytes - crate::recording::index(missing).min(bytes)
    }

    /// Takes the room for a file of this length, all of it or none. Returns whether there is enough.
    pub(crate) fn allocate(&mut self, node: NodeId, len: u64) -> bool {
        let allocated = self.allocated.entry(node).or_default();
        let growth = len.saturating_sub(*allocated);
        if let Some(room) = &mut self.faults.room {
            if growth > *room {
                return false;
            }
            *room -= growth;
        }
        *allocated += growth;
        true
    }

    /// Gives back the room of a file that is cut off.
    pub(crate) fn cut_off(&mut self, node: NodeId, len: u64) {
        let allocated = self.allocated.entry(node).or_default();
        let freed = allocated.saturating_sub(len);
        *allocated -= freed;
        if let Some(room) = &mut self.faults.room {
            *room += freed;
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.faults.room == Some(0)
    }

    /// Counts a sync, and tells whether it is to fail.
    pub(crate) fn sync_fails(&mut self) -> bool {
        self.syncs += 1;
        match &mut self.faults.syncs_left {
            None => false,
            Some(0) => {
                self.faults.syncs_left = None;
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }
}
