//! The directory of the log: its segments, blob segments, and spare files for later segments.
//!
//! A segment is a file `N.log`, with its number in sixteen hexadecimal digits: a head of [`HEAD`] bytes, then frames. A
//! file gets that name only when its head is on the disk. A flushed segment becomes `N.spare`, to be used again: overwriting
//! blocks takes the disk half the time of allocating new ones. An old name that comes back after a power cut does no harm:
//! the database knows which segments are flushed.
//!
//! All blocks of a segment are allocated before its first frame, so that appending to it cannot meet a full disk. Spare
//! files are also the store's reserve: while the disk is full, acknowledgements go to them, and removing one makes room for
//! a flush.
//!
//! A segment that stays for its payloads ([`value_log`](super::value_log)) is a file `N.blob`. It gets that name before the
//! first pointer to it is written, so an unflushed segment may have it, too. The database lists these files. One that is no
//! longer needed leaves the list before it is removed; on a full disk it becomes an empty `N.void` until it has left.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::frame;
use super::memtable::Memtable;
use crate::directory::{self, allocate, at, sync_directory};
use crate::sync;

/// Bytes before the first frame.
pub(super) const HEAD: usize = 64;

/// `FILALOG` and the version of its format.
const MAGIC: [u8; 8] = *b"FILALOG\x01";

/// Spare files, at most.
const SPARES_MAX: usize = 6;

/// Blob segments that are open for reading, at most.
const OPEN_MAX: usize = 32;

/// Bytes of the smallest payload that a pointer stands for, unless segments are tiny. Flushing a smaller payload takes
/// hardly longer than flushing a pointer.
const POINTER_MIN: u64 = 256;

/// The segment that frames are appended to.
#[derive(Debug)]
pub(super) struct ActiveSegment {
    pub(super) number: u64,
    path: Arc<Path>,
    /// Marks the frames of this use of the file.
    pub(super) salt: u64,
    file: Arc<File>,
    /// Where the next frame begins.
    end: u64,
    /// Bytes of the file that are allocated.
    allocated: u64,
}

impl ActiveSegment {
    /// Returns where the segment would end after this many more bytes.
    pub(super) fn end_after(&self, bytes: usize) -> u64 {
        self.end + bytes as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.end == HEAD as u64
    }

    /// Makes sure that this many more bytes can be appended. A failure changes nothing.
    pub(super) fn reserve(&mut self, bytes: usize) -> io::Result<()> {
        let end = self.end_after(bytes);
        if end > self.allocated {
            let mut file = self.file.try_clone()?;
            allocate(&mut file, end).map_err(at(&self.path))?;
            self.allocated = end;
        }
        Ok(())
    }

    pub(super) fn append(&mut self, frame: &[u8]) -> io::Result<()> {
        // Where it goes does not depend on the file's cursor, which reads of earlier frames may move.
        write_at(&self.file, frame, self.end).map_err(at(&self.path))?;
        self.end += frame.len() as u64;
        Ok(())
    }

    /// Marks the end of the segment, after the next one has got its name. Recovery then misses the next one if it is gone.
    ///
    /// A power cut may lose the mark, which does no harm.
    pub(super) fn seal(&mut self) -> io::Result<()> {
        let seal = frame::seal(self.salt);
        self.reserve(seal.len())?;
        self.append(&seal)
    }

    /// Returns the file, to sync it while others append. A sync covers what was appended before it began.
    pub(super) fn file(&self) -> AppendedFile {
        AppendedFile {
            path: Arc::clone(&self.path),
            file: Arc::clone(&self.file),
        }
    }
}

/// The file of a segment that frames are appended to, or were.
#[derive(Debug)]
pub(super) struct AppendedFile {
    path: Arc<Path>,
    file: Arc<File>,
}

impl AppendedFile {
    #[cfg(test)]
    pub(super) fn unnamed(file: File) -> Self {
        Self {
            path: Path::new("unnamed").into(),
            file: Arc::new(file),
        }
    }

    /// Reads a value of a frame.
    pub(super) fn read_value(&self, at: u32, length: u32) -> io::Result<Bytes> {
        let mut value = vec![0; length as usize];
        read_at(&self.file, &mut value, u64::from(at)).map_err(directory::at(&self.path))?;
        Ok(value.into())
    }

    pub(super) fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data().map_err(at(&self.path))
    }
}

/// A segment as it is on the disk.
#[derive(Debug)]
pub(super) struct SegmentFile {
    pub(super) salt: u64,
    pub(super) file: AppendedFile,
    pub(super) bytes: Vec<u8>,
    /// Whether it is shorter than it was when it got its name.
    pub(super) is_cut: bool,
}

/// The directory of the log.
#[derive(Debug)]
pub(super) struct SegmentDir {
    directory: PathBuf,
    /// Size of a segment, about.
    pub(super) segment_bytes: u64,
    spares: Mutex<Vec<PathBuf>>,
    /// Blob segments that are open for reading, the last used first.
    open: Mutex<VecDeque<(u64, Arc<File>)>>,
}

/// The numbers of the segments in a directory, in order.
#[derive(Debug, Default)]
pub(super) struct DirContents {
    pub(super) segments: Vec<u64>,
    pub(super) blobs: Vec<u64>,
    pub(super) void: BTreeSet<u64>,
}

impl SegmentDir {
    /// Opens the directory, or creates it, and lists it.
    pub(super) fn open(store: &Path, segment_bytes: u64) -> io::Result<(Self, DirContents)> {
        let directory = store.join("log");
        if !directory.is_dir() {
            fs::create_dir(&directory).map_err(at(&directory))?;
            sync_directory(store)?;
        }
        let mut contents = DirContents::default();
        let mut spares = Vec::new();
        for file in fs::read_dir(&directory).map_err(at(&directory))? {
            let path = file.map_err(at(&directory))?.path();
            match parse_name(&path) {
                Some((number, FileKind::Log)) => contents.segments.push(number),
                Some((number, FileKind::Blob)) => contents.blobs.push(number),
                Some((number, FileKind::Void)) => drop(contents.void.insert(number)),
                Some((_, FileKind::Spare)) => spares.push(path),
                None => {}
            }
        }
        contents.segments.sort_unstable();
        contents.blobs.sort_unstable();
        let dir = Self {
            directory,
            segment_bytes,
            spares: Mutex::new(spares),
            open: Mutex::default(),
        };
        Ok((dir, contents))
    }

    /// Returns how many bytes a small segment has, at most.
    pub(super) fn small_bytes(&self) -> u64 {
        self.segment_bytes / 16
    }

    /// Returns how many bytes the smallest payload has that a pointer may stand for.
    pub(super) fn pointer_min(&self) -> u64 {
        POINTER_MIN.min(self.segment_bytes / 64)
    }

    /// Returns the memtable of a new segment.
    pub(super) fn memtable(&self, segment: &ActiveSegment) -> Memtable {
        Memtable::new(segment.number, segment.file(), self.pointer_min())
    }

    /// Returns the directory itself.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:016x}.log"))
    }

    pub(super) fn blob_path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:016x}.blob"))
    }

    /// Prepares a segment: in a spare file, or in a new one, which is filled with zeros as long as `fills` returns true; it
    /// is called once for each part. Filling makes later syncs faster, and costs the CPU as much as writing the frames.
    ///
    /// A failure changes nothing.
    pub(super) fn prepare(
        &self,
        number: u64,
        fills: impl FnMut() -> bool,
    ) -> io::Result<ActiveSegment> {
        let spare = sync::lock(&self.spares).pop();
        let unnamed = match &spare {
            Some(path) => path.clone(),
            None => self.directory.join(format!("{number:016x}.spare")),
        };
        let prepared = match &spare {
            Some(path) => self.make_segment(path, number, || false),
            None => self.make_segment(&unnamed, number, fills),
        };
        if prepared.is_err() {
            match spare {
                Some(path) => sync::lock(&self.spares).push(path),
                // What was allocated of it is needed elsewhere.
                None => drop(fs::remove_file(&unnamed)),
            }
        }
        prepared.map_err(at(&unnamed))
    }

    fn make_segment(
        &self,
        unnamed: &Path,
        number: u64,
        fills: impl FnMut() -> bool,
    ) -> io::Result<ActiveSegment> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(unnamed)?;
        allocate(&mut file, self.segment_bytes)?;
        file.seek(SeekFrom::Start(0))?;
        fill(&mut file, self.segment_bytes, fills)?;
        file.seek(SeekFrom::Start(0))?;
        let salt = RandomState::new().hash_one(number);
        let length = file.metadata()?.len();
        file.write_all(&head(number, salt, length))?;
        file.sync_all()?;
        fs::rename(unnamed, self.path(number))?;
        sync_directory(&self.directory)?;
        Ok(self.active(number, salt, file))
    }

    fn active(&self, number: u64, salt: u64, file: File) -> ActiveSegment {
        ActiveSegment {
            number,
            path: self.path(number).into(),
            salt,
            file: Arc::new(file),
            end: HEAD as u64,
            allocated: self.segment_bytes,
        }
    }

    /// Returns the bytes of all spare files, about.
    pub(super) fn spare_bytes(&self) -> u64 {
        sync::lock(&self.spares).len() as u64 * self.segment_bytes
    }

    /// Allocates a spare file, unless there are `count` already. Returns whether it has.
    pub(super) fn add_spare(&self, count: usize) -> io::Result<bool> {
        let mut spares = sync::lock(&self.spares);
        if spares.len() >= count {
            return Ok(false);
        }
        // Names from the end of the numbers: no segment gets that far.
        let names = (0..).map(|back| format!("{:016x}.spare", u64::MAX - back));
        let mut paths = names.map(|name| self.directory.join(name));
        let Some(path) = paths.find(|path| !spares.contains(path)) else {
            return Ok(false);
        };
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)?;
        if let Err(error) = allocate(&mut file, self.segment_bytes) {
            fs::remove_file(&path)?;
            return Err(error);
        }
        spares.push(path);
        Ok(true)
    }

    /// Removes a spare file, so that the database has room, but keeps `count`. Returns whether it has.
    pub(super) fn give_up_spare(&self, count: usize) -> io::Result<bool> {
        let mut spares = sync::lock(&self.spares);
        if spares.len() <= count {
            return Ok(false);
        }
        let Some(path) = spares.pop() else {
            return Ok(false);
        };
        fs::remove_file(&path).map_err(at(&path))?;
        Ok(true)
    }

    /// Opens a segment whose frames end here, to append to it.
    pub(super) fn reopen(&self, number: u64, salt: u64, end: u64) -> io::Result<ActiveSegment> {
        let path = self.path(number);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let mut file = file.map_err(at(&path))?;
        allocate(&mut file, self.segment_bytes).map_err(at(&path))?;
        let segment = self.active(number, salt, file);
        Ok(ActiveSegment { end, ..segment })
    }

    /// Reads a segment; none if its head is damaged.
    pub(super) fn read(&self, number: u64) -> io::Result<Option<SegmentFile>> {
        let path = self.path(number);
        let mut file = File::open(&path).map_err(at(&path))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(at(&path))?;
        let field = |at: usize| {
            bytes
                .get(at..)?
                .first_chunk()
                .copied()
                .map(u64::from_be_bytes)
        };
        let (Some(salt), Some(length)) = (field(16), field(28)) else {
            return Ok(None);
        };
        let is_whole = bytes.starts_with(&head(number, salt, length));
        Ok(is_whole.then(|| SegmentFile {
            salt,
            is_cut: (bytes.len() as u64) < length,
            file: AppendedFile {
                path: path.into(),
                file: Arc::new(file),
            },
            bytes,
        }))
    }

    /// Returns how long a segment was when it got its name; 0 if its head does not tell.
    pub(super) fn laid_out(&self, number: u64) -> io::Result<u64> {
        let path = self.path(number);
        let mut file = File::open(&path).map_err(at(&path))?;
        let mut head = [0; HEAD];
        file.read_exact(&mut head).map_err(at(&path))?;
        let length = head[28..].first_chunk().copied();
        Ok(length.map_or(0, u64::from_be_bytes))
    }

    pub(super) fn sync(&self, number: u64) -> io::Result<()> {
        let path = self.path(number);
        let file = OpenOptions::new().write(true).open(&path);
        file.and_then(|file| file.sync_all()).map_err(at(&path))
    }

    /// Makes a segment a blob segment. It is on the disk under its new name on `Ok`.
    pub(super) fn make_blob(&self, number: u64) -> io::Result<()> {
        self.sync(number)?;
        let path = self.path(number);
        fs::rename(&path, self.blob_path(number)).map_err(at(&path))?;
        sync_directory(&self.directory)
    }

    /// Makes a blob segment that was not flushed an ordinary segment again.
    pub(super) fn unmake_blob(&self, number: u64) -> io::Result<()> {
        let path = self.blob_path(number);
        fs::rename(&path, self.path(number)).map_err(at(&path))
    }

    /// Reads a value from a blob segment; none if the segment is missing or too short.
    pub(super) fn read_value(
        &self,
        number: u64,
        at: u32,
        length: u32,
    ) -> io::Result<Option<Bytes>> {
        let mut value = vec![0; length as usize];
        match self
            .open_blob(number)
            .and_then(|file| read_at(&file, &mut value, u64::from(at)))
        {
            Ok(()) => Ok(Some(value.into())),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(directory::at(&self.blob_path(number))(error)),
        }
    }

    fn open_blob(&self, number: u64) -> io::Result<Arc<File>> {
        let mut open = sync::lock(&self.open);
        if let Some(index) = open.iter().position(|(other, _)| *other == number) {
            open.swap(0, index);
        } else {
            let file = File::open(self.blob_path(number))?;
            open.push_front((number, Arc::new(file)));
            open.truncate(OPEN_MAX);
        }
        Ok(Arc::clone(&open[0].1))
    }

    pub(super) fn blob_bytes(&self, number: u64) -> io::Result<u64> {
        let path = self.blob_path(number);
        Ok(fs::metadata(&path).map_err(at(&path))?.len())
    }

    /// Removes a blob segment that no view reads any more.
    pub(super) fn remove_blob(&self, number: u64) -> io::Result<()> {
        sync::lock(&self.open).retain(|(other, _)| *other != number);
        self.recycle(&self.blob_path(number))
    }

    /// Empties a blob segment that no view reads any more and that the database still lists: a row cannot be removed from
    /// it without room on the disk.
    pub(super) fn void_blob(&self, number: u64) -> io::Result<()> {
        sync::lock(&self.open).retain(|(other, _)| *other != number);
        let (path, void) = (self.blob_path(number), self.void_path(number));
        fs::rename(&path, &void).map_err(at(&path))?;
        sync_directory(&self.directory)?;
        let file = OpenOptions::new().write(true).open(&void);
        file.and_then(|file| file.set_len(0)).map_err(at(&void))
    }

    /// Removes what is left of an emptied blob segment.
    pub(super) fn remove_void(&self, number: u64) -> io::Result<()> {
        let path = self.void_path(number);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(at(&path)),
        }
    }

    fn void_path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:016x}.void"))
    }

    /// Takes a flushed segment out of the log.
    pub(super) fn retire(&self, number: u64) -> io::Result<()> {
        self.recycle(&self.path(number))
    }

    /// Makes the file a spare one. Removes it instead if its length is far from that of a segment, or there are enough.
    fn recycle(&self, path: &Path) -> io::Result<()> {
        let mut spares = sync::lock(&self.spares);
        let length = fs::metadata(path).map_err(at(path))?.len();
        let is_fit = (self.segment_bytes / 2..=self.segment_bytes * 2).contains(&length);
        if spares.len() >= SPARES_MAX || !is_fit {
            return fs::remove_file(path).map_err(at(path));
        }
        let spare = path.with_extension("spare");
        fs::rename(path, &spare).map_err(at(path))?;
        spares.push(spare);
        Ok(())
    }

    /// Returns the bytes of all files.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for file in fs::read_dir(&self.directory)? {
            // A file that is renamed meanwhile counts the next time.
            bytes += file?.metadata().map_or(0, |file| file.len());
        }
        Ok(bytes)
    }
}

/// Returns the head of a segment in a file of this length. Segments of earlier versions do not tell their length, and have
/// zeros there.
fn head(number: u64, salt: u64, length: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..16].copy_from_slice(&number.to_be_bytes());
    head[16..24].copy_from_slice(&salt.to_be_bytes());
    let sum = crc32c::crc32c(&head[..24]);
    head[24..28].copy_from_slice(&sum.to_be_bytes());
    if length > 0 {
        head[28..36].copy_from_slice(&length.to_be_bytes());
        let sum = crc32c::crc32c(&head[..36]);
        head[36..40].copy_from_slice(&sum.to_be_bytes());
    }
    head
}

/// The extension of a file's name.
enum FileKind {
    Log,
    Blob,
    Void,
    Spare,
}

fn parse_name(path: &Path) -> Option<(u64, FileKind)> {
    let kind = match path.extension()?.to_str()? {
        "log" => FileKind::Log,
        "blob" => FileKind::Blob,
        "void" => FileKind::Void,
        "spare" => FileKind::Spare,
        _ => return None,
    };
    let name = path.file_stem()?.to_str()?;
    let number = u64::from_str_radix(name, 16).ok()?;
    (name.len() == 16).then_some((number, kind))
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, at)
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn write_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}

#[cfg(windows)]
fn read_at(file: &File, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        let read = std::os::windows::fs::FileExt::seek_read(file, buffer, at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer = &mut buffer[read..];
        at += read as u64;
    }
    Ok(())
}

/// Writes zeros, a part at a time: one large sync would delay those of the commits.
fn fill(file: &mut File, bytes: u64, mut goes_on: impl FnMut() -> bool) -> io::Result<()> {
    let zeros = vec![0; 1 << 18];
    let mut left = bytes;
    while left > 0 && goes_on() {
        let part = left.min(zeros.len() as u64);
        file.write_all(&zeros[..usize::try_from(part).unwrap_or(zeros.len())])?;
        file.sync_data()?;
        left -= part;
    }
    Ok(())
}
