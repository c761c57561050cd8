//! The contents that a disk may have after the power was cut.
//!
//! # The model
//! A *write* that was not synced is kept, lost or torn. The unit is the sector: on the disk every sector holds what it held
//! after some prefix of the writes to it, and different sectors need not agree. A sector is never half written. The
//! disk keeps every synced write, and a sync covers the operations before it *began*.
//!
//! File systems differ in the *names* (of files made, renamed and removed) that they keep, so there are two:
//! - [`FileSystem::Strict`] keeps the letter of POSIX. A name is durable when its directory has been synced. Until then each
//!   change is kept or lost by itself, whatever was synced of the file that it names.
//! - [`FileSystem::Ordered`] is what journalling file systems do (ext4, XFS). Changes of names are kept up to some moment and
//!   lost from there on; a sync of any file or directory keeps all before it. `fdatasync` does so only if the file has
//!   grown or is new.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use crate::recording::{Content, Node, NodeId, Op, Place, ROOT, Recording, index};

/// The fate of names that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// Each is kept or lost by itself until its directory is synced.
    Strict,
    /// They are kept in order, and with any sync.
    Ordered,
}

/// The fate of unsynced operations in one cut.
#[derive(Clone, Copy, Debug)]
enum Luck {
    Nothing,
    Everything,
    /// All before this operation, some sectors of it, and nothing after it.
    Prefix(usize),
    /// Each sector by itself, of this size, and kept with this chance.
    Sectors {
        bytes: u64,
        kept: f64,
    },
}

/// A disk on which a recording is played.
#[derive(Debug)]
pub struct Disk<'a> {
    recording: &'a Recording,
    file_system: FileSystem,
    /// How many operations have been done.
    done: usize,
    files: Vec<File>,
    /// The names that are durable.
    entries: BTreeMap<Place, NodeId>,
    /// The operations on names that are not.
    unsynced: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
struct File {
    durable: Content,
    /// The operations on it that are not durable.
    unsynced: Vec<usize>,
    /// The length that a reader sees before the cut.
    len: u64,
}

impl<'a> Disk<'a> {
    /// Returns the disk as it was when the recording began.
    pub fn new(recording: &'a Recording, file_system: FileSystem) -> Self {
        let file = |node: &Node| match node {
            Node::Directory => File::default(),
            Node::File(content) => File {
                durable: content.clone(),
                len: content.len,
                ..File::default()
            },
        };
        Self {
            recording,
            file_system,
            done: 0,
            files: recording.nodes.iter().map(file).collect(),
            entries: recording.entries.clone(),
            unsynced: Vec::new(),
        }
    }

    /// Goes on until `to` operations have been done, or all.
    pub fn advance(&mut self, to: usize) {
        let recording = self.recording;
        while self.done < to.min(recording.ops.len()) {
            self.perform(self.done, &recording.ops[self.done]);
            self.done += 1;
        }
    }

    fn perform(&mut self, at: usize, op: &Op) {
        match op {
            Op::Write { node, offset, data } => {
                let file = &mut self.files[*node];
                file.unsynced.push(at);
                file.len = file.len.max(offset + data.len() as u64);
            }
            Op::SetLen { node, len } => {
                self.files[*node].unsynced.push(at);
                self.files[*node].len = *len;
            }
            Op::Enter { .. } | Op::Remove { .. } | Op::Rename { .. } => self.unsynced.push(at),
            Op::Sync {
                node,
                upto,
                data_only,
            } => match self.recording.nodes[*node] {
                Node::File(_) => {
                    let grown = self.files[*node].len != self.files[*node].durable.len;
                    let named = grown || !data_only || self.is_renamed(*node);
                    self.sync_file(*node, *upto);
                    if named && self.file_system == FileSystem::Ordered {
                        self.sync_names(*upto, |_| true);
                    }
                }
                Node::Directory => match self.file_system {
                    FileSystem::Ordered => self.sync_names(*upto, |_| true),
                    FileSystem::Strict => self.sync_names(*upto, |op| concerns(op, *node)),
                },
            },
            Op::Mark(_) => {}
        }
    }

    fn is_renamed(&self, file: NodeId) -> bool {
        let ops = self.unsynced.iter().map(|at| &self.recording.ops[*at]);
        ops.into_iter().any(|op| match op {
            Op::Enter { node, .. } | Op::Rename { node, .. } => *node == file,
            Op::Write { .. }
            | Op::SetLen { .. }
            | Op::Remove { .. }
            | Op::Sync { .. }
            | Op::Mark(_) => false,
        })
    }

    fn sync_file(&mut self, node: NodeId, upto: usize) {
        let file = &mut self.files[node];
        let synced = file.unsynced.partition_point(|at| *at < upto);
        for at in file.unsynced.drain(..synced) {
            match &self.recording.ops[at] {
                Op::Write { offset, data, .. } => file.durable.write(*offset, data),
                Op::SetLen { len, .. } => file.durable.set_len(*len),
                Op::Enter { .. }
                | Op::Remove { .. }
                | Op::Rename { .. }
                | Op::Sync { .. }
                | Op::Mark(_) => {}
            }
        }
    }

    fn sync_names(&mut self, upto: usize, concerned: impl Fn(&Op) -> bool) {
        let ops = &self.recording.ops;
        let entries = &mut self.entries;
        self.unsynced.retain(|at| {
            let durable = *at < upto && concerned(&ops[*at]);
            if durable {
                rename(entries, &ops[*at]);
            }
            !durable
        });
    }

    /// Puts what the disk holds after a cut at this moment into an empty directory.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn cut(&self, rng: &mut Rng, into: &Path) -> std::io::Result<()> {
        let luck = self.luck(rng);
        write(self.image(rng, luck), into)
    }

    /// Puts everything that has been done so far into an empty directory.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn restore(&self, into: &Path) -> std::io::Result<()> {
        write(self.image(&mut Rng::with_seed(0), Luck::Everything), into)
    }

    /// Compares what the recording has led to with what there is: a difference means that something was done unseen.
    ///
    /// # Errors
    /// If there is one.
    pub fn compare(&self, with: &Path) -> anyhow::Result<()> {
        let unseen = &self.recording.unseen;
        anyhow::ensure!(unseen.is_empty(), "done unseen: {unseen:?}");
        for (path, content) in self.image(&mut Rng::with_seed(0), Luck::Everything) {
            let path = with.join(path);
            let Some(content) = content else {
                anyhow::ensure!(path.is_dir(), "{} is missing", path.display());
                continue;
            };
            let mut found = std::fs::read(&path)?;
            anyhow::ensure!(
                found.len() as u64 == content.len,
                "{} is longer",
                path.display()
            );
            let rest = found.split_off(content.bytes.len().min(found.len()));
            let same = found == content.bytes && rest.iter().all(|byte| *byte == 0);
            anyhow::ensure!(same, "{} has been written to unseen", path.display());
        }
        Ok(())
    }

    fn luck(&self, rng: &mut Rng) -> Luck {
        let oldest = self.unsynced.first().into_iter().copied();
        let files = self.files.iter().filter_map(|file| file.unsynced.first());
        let oldest = oldest.chain(files.copied()).min().unwrap_or(self.done);
        match rng.u8(..8) {
            0 => Luck::Nothing,
            1 => Luck::Everything,
            2 | 3 => Luck::Prefix(rng.usize(oldest..=self.done)),
            _ => Luck::Sectors {
                bytes: rng.choice([512, 4096]).unwrap_or(512),
                kept: rng.choice([0.1, 0.5, 0.9]).unwrap_or(0.5),
            },
        }
    }

    /// Returns everything that there is, directories before what is in them.
    fn image(&self, rng: &mut Rng, luck: Luck) -> Vec<(PathBuf, Option<Content>)> {
        let entries = self.names(rng, luck);
        let mut image = Vec::new();
        let mut open = vec![(ROOT, PathBuf::new())];
        while let Some((directory, path)) = open.pop() {
            let first = (directory, std::ffi::OsString::new());
            let names = entries.range(first..);
            for ((_, name), node) in names.take_while(|((parent, _), _)| *parent == directory) {
                let path = path.join(name);
                match self.recording.nodes[*node] {
                    Node::Directory => {
                        image.push((path.clone(), None));
                        open.push((*node, path));
                    }
                    Node::File(_) => {
                        image.push((path, Some(self.content(&self.files[*node], rng, luck))));
                    }
                }
            }
        }
        image
    }

    fn names(&self, rng: &mut Rng, luck: Luck) -> BTreeMap<Place, NodeId> {
        let mut entries = self.entries.clone();
        let kept = match (luck, self.file_system) {
            (Luck::Nothing, _) => 0,
            (Luck::Sectors { .. }, FileSystem::Ordered) => rng.usize(0..=self.unsynced.len()),
            (Luck::Prefix(until), _) => self.unsynced.partition_point(|at| *at < until),
            (Luck::Everything, _) | (Luck::Sectors { .. }, FileSystem::Strict) => {
                self.unsynced.len()
            }
        };
        for at in &self.unsynced[..kept] {
            let lost = match (luck, self.file_system) {
                (Luck::Sectors { kept, .. }, FileSystem::Strict) => rng.f64() >= kept,
                (Luck::Nothing | Luck::Everything | Luck::Prefix(_) | Luck::Sectors { .. }, _) => {
                    false
                }
            };
            if !lost {
                rename(&mut entries, &self.recording.ops[*at]);
            }
        }
        entries
    }

    fn content(&self, file: &File, rng: &mut Rng, luck: Luck) -> Content {
        let mut content = file.durable.clone();
        let unit = match luck {
            Luck::Sectors { bytes, .. } => bytes,
            Luck::Nothing | Luck::Everything | Luck::Prefix(_) => 512,
        };
        // Up to which operation a sector has been written; the file's length is a sector of its own.
        let mut written: BTreeMap<u64, usize> = BTreeMap::new();
        let mut keeps = |at: usize, sector: u64| match luck {
            Luck::Nothing => false,
            Luck::Everything => true,
            Luck::Prefix(until) => at < until || (at == until && rng.bool()),
            Luck::Sectors { kept, .. } => {
                let until = written.entry(sector).or_insert_with(|| {
                    if rng.f64() < kept {
                        usize::MAX
                    } else if rng.bool() {
                        0
                    } else {
                        rng.choice(&file.unsynced).copied().unwrap_or_default()
                    }
                });
                at < *until
            }
        };
        for at in &file.unsynced {
            match &self.recording.ops[*at] {
                Op::Write { offset, data, .. } => {
                    let mut from = *offset;
                    let end = offset + data.len() as u64;
                    while from < end {
                        let to = end.min((from / unit + 1) * unit);
                        if keeps(*at, from / unit) {
                            let part = index(from - offset)..index(to - offset);
                            content.write(from, &data[part]);
                        }
                        from = to;
                    }
                }
                Op::SetLen { len, .. } if keeps(*at, u64::MAX) => content.set_len(*len),
                Op::SetLen { .. }
                | Op::Enter { .. }
                | Op::Remove { .. }
                | Op::Rename { .. }
                | Op::Sync { .. }
                | Op::Mark(_) => {}
            }
        }
        if self.file_system == FileSystem::Strict && keeps(self.done, u64::MAX) {
            content.len = content.len.max(file.len);
        }
        content
    }
}

/// Tells whether an operation changes a name in this directory.
fn concerns(op: &Op, directory: NodeId) -> bool {
    match op {
        Op::Enter { place, .. } | Op::Remove { place } => place.0 == directory,
        Op::Rename { from, to, .. } => from.0 == directory || to.0 == directory,
        Op::Write { .. } | Op::SetLen { .. } | Op::Sync { .. } | Op::Mark(_) => false,
    }
}

fn write(image: Vec<(PathBuf, Option<Content>)>, into: &Path) -> std::io::Result<()> {
    for (path, content) in image {
        let path = into.join(path);
        match content {
            None => std::fs::create_dir(path)?,
            Some(content) => {
                std::fs::write(&path, &content.bytes)?;
                if content.len != content.bytes.len() as u64 {
                    let file = std::fs::OpenOptions::new().write(true).open(&path)?;
                    file.set_len(content.len)?;
                }
            }
        }
    }
    Ok(())
}

fn rename(entries: &mut BTreeMap<Place, NodeId>, op: &Op) {
    match op {
        Op::Enter { place, node } => {
            entries.insert(place.clone(), *node);
        }
        Op::Remove { place } => {
            entries.remove(place);
        }
        Op::Rename { from, to, node } => {
            if entries.get(from) == Some(node) {
                entries.remove(from);
            }
            entries.insert(to.clone(), *node);
        }
        Op::Write { .. } | Op::SetLen { .. } | Op::Sync { .. } | Op::Mark(_) => {}
    }
}
