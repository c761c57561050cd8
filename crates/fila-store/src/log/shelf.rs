//! The files of the log: segments that are in use, and spare ones that are to be used again.
//!
//! A segment is a file `N.log`, with its number in sixteen hexadecimal digits: a head of [`HEAD`] bytes, then frames. A
//! file has that name only when its head is on the disk. What is no longer needed becomes `N.spare`: to overwrite blocks
//! that have been written before takes the disk half the time of making new ones, since no other block has to be
//! changed for it. A name that comes back after a power cut does no harm: the store knows which segments are filed.
//!
//! A segment that is filed, and [kept](super::kept) for the payloads in it, is a file `N.kept`. It gets that name before
//! anything that leads to it is written, so one that is not filed yet may have it, too.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Bytes before the first frame.
pub(super) const HEAD: usize = 64;

/// `FILALOG` and the version of its format.
const MAGIC: [u8; 8] = *b"FILALOG\x01";

/// Files that are kept for later.
const SPARES: usize = 6;

/// Kept segments that are open for reading, at most.
const OPENED: usize = 32;

/// Bytes of the smallest payload that a segment is kept for, unless segments are tiny. To file a smaller one takes hardly
/// longer than to file its place.
const PLACED: u64 = 256;

/// A file that frames are written to.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    /// What its frames are known by.
    pub(super) salt: u64,
    file: Arc<File>,
    /// Where the next frame begins.
    end: u64,
}

impl Segment {
    /// Returns how many bytes it has with this many more.
    pub(super) fn with(&self, bytes: usize) -> u64 {
        self.end + bytes as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.end == HEAD as u64
    }

    pub(super) fn append(&mut self, frame: &[u8]) -> io::Result<()> {
        (&*self.file).write_all(frame)?;
        self.end += frame.len() as u64;
        Ok(())
    }

    /// Returns the file, to be synced while more is appended. A sync covers what was appended before it began.
    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }
}

/// The directory of the log.
#[derive(Debug)]
pub(super) struct Shelf {
    directory: PathBuf,
    /// How long a segment is to be, about.
    pub(super) segment_bytes: u64,
    spares: Mutex<Vec<PathBuf>>,
    /// Kept segments that are read, the last one first.
    opened: Mutex<VecDeque<(u64, Arc<File>)>>,
}

/// What is on the shelf when it is opened, in order.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) segments: Vec<u64>,
    pub(super) kept: Vec<u64>,
}

impl Shelf {
    /// Opens the directory, which is made if need be, and returns it with what is in it.
    pub(super) fn open(store: &Path, segment_bytes: u64) -> io::Result<(Self, Contents)> {
        let directory = store.join("log");
        if !directory.is_dir() {
            fs::create_dir(&directory)?;
            sync_directory(store)?;
        }
        let mut contents = Contents::default();
        let mut spares = Vec::new();
        for file in fs::read_dir(&directory)? {
            let path = file?.path();
            match number_of(&path) {
                Some((number, Name::Segment)) => contents.segments.push(number),
                Some((number, Name::Kept)) => contents.kept.push(number),
                Some((_, Name::Spare)) => spares.push(path),
                None => {}
            }
        }
        contents.segments.sort_unstable();
        contents.kept.sort_unstable();
        let shelf = Self {
            directory,
            segment_bytes,
            spares: Mutex::new(spares),
            opened: Mutex::default(),
        };
        Ok((shelf, contents))
    }

    fn spares(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many bytes of a segment are few.
    pub(super) fn small(&self) -> u64 {
        self.segment_bytes / 16
    }

    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:016x}.log"))
    }

    fn kept_path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:016x}.kept"))
    }

    /// Returns how many bytes the smallest payload has that is not filed itself.
    pub(super) fn placed(&self) -> u64 {
        PLACED.min(self.segment_bytes / 64)
    }

    /// Makes a segment: of a spare file, or a new one, whose blocks are written beforehand for as long as `fills` says so,
    /// which is asked for each part. Syncs of what is not written beforehand take longer; to write it takes the processor as
    /// long as to write what will be in it.
    pub(super) fn prepare(&self, number: u64, fills: impl FnMut() -> bool) -> io::Result<Segment> {
        let spare = self.spares().pop();
        let unnamed = match &spare {
            Some(path) => path.clone(),
            None => self.directory.join(format!("{number:016x}.spare")),
        };
        let mut options = OpenOptions::new();
        let mut file = options
            .create(true)
            .truncate(false)
            .write(true)
            .open(&unnamed)?;
        if spare.is_none() {
            fill(&mut file, self.segment_bytes, fills)?;
        }
        file.seek(SeekFrom::Start(0))?;
        let salt = RandomState::new().hash_one(number);
        file.write_all(&head(number, salt))?;
        file.sync_all()?;
        fs::rename(&unnamed, self.path(number))?;
        sync_directory(&self.directory)?;
        Ok(Segment {
            number,
            salt,
            file: Arc::new(file),
            end: HEAD as u64,
        })
    }

    /// Opens a segment that has no frames, to go on with it.
    pub(super) fn reopen(&self, number: u64, salt: u64) -> io::Result<Segment> {
        let mut file = OpenOptions::new().write(true).open(self.path(number))?;
        file.seek(SeekFrom::Start(HEAD as u64))?;
        Ok(Segment {
            number,
            salt,
            file: Arc::new(file),
            end: HEAD as u64,
        })
    }

    /// Reads a segment, and returns its salt with its bytes; none if its head is not that of this segment.
    pub(super) fn read(&self, number: u64) -> io::Result<Option<(u64, Bytes)>> {
        let bytes = fs::read(self.path(number))?;
        let salt = bytes.get(16..24).and_then(<[u8]>::first_chunk);
        let Some(salt) = salt.copied().map(u64::from_be_bytes) else {
            return Ok(None);
        };
        let is_whole = bytes.starts_with(&head(number, salt));
        Ok(is_whole.then(|| (salt, bytes.into())))
    }

    /// Returns when a segment that was read is on the disk as it was read.
    pub(super) fn settle(&self, number: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path(number))?;
        file.sync_all()
    }

    /// Has a segment kept after it is filed. It is on the disk, and has its name, on `Ok`.
    pub(super) fn keep(&self, number: u64) -> io::Result<()> {
        self.settle(number)?;
        fs::rename(self.path(number), self.kept_path(number))?;
        sync_directory(&self.directory)
    }

    /// Takes back that a segment is kept, which is not filed yet.
    pub(super) fn unkeep(&self, number: u64) -> io::Result<()> {
        fs::rename(self.kept_path(number), self.path(number))
    }

    /// Reads a part of a kept segment; none if there is no such part.
    pub(super) fn read_part(&self, number: u64, at: u32, length: u32) -> io::Result<Option<Bytes>> {
        let mut part = vec![0; length as usize];
        match self
            .opened(number)
            .and_then(|file| read_at(&file, &mut part, u64::from(at)))
        {
            Ok(()) => Ok(Some(part.into())),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn opened(&self, number: u64) -> io::Result<Arc<File>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = opened.iter().position(|(other, _)| *other == number) {
            opened.swap(0, place);
        } else {
            let file = File::open(self.kept_path(number))?;
            opened.push_front((number, Arc::new(file)));
            opened.truncate(OPENED);
        }
        Ok(Arc::clone(&opened[0].1))
    }

    /// Returns how many bytes a kept segment has.
    pub(super) fn kept_bytes(&self, number: u64) -> io::Result<u64> {
        Ok(fs::metadata(self.kept_path(number))?.len())
    }

    /// Lets go of a kept segment, which nobody reads any more.
    pub(super) fn discard(&self, number: u64) -> io::Result<()> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|(other, _)| *other != number);
        drop(opened);
        self.put_away(&self.kept_path(number))
    }

    /// Takes a segment out of the log. Its file is used again, unless it is short or overlong, or one of too many.
    pub(super) fn retire(&self, number: u64) -> io::Result<()> {
        self.put_away(&self.path(number))
    }

    fn put_away(&self, path: &Path) -> io::Result<()> {
        let mut spares = self.spares();
        let length = fs::metadata(path)?.len();
        let is_fit = (self.segment_bytes / 2..=self.segment_bytes * 2).contains(&length);
        if spares.len() >= SPARES || !is_fit {
            return fs::remove_file(path);
        }
        let spare = path.with_extension("spare");
        fs::rename(path, &spare)?;
        spares.push(spare);
        Ok(())
    }

    /// Returns the bytes of all files.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for file in fs::read_dir(&self.directory)? {
            // One that has been renamed meanwhile counts the next time.
            bytes += file?.metadata().map_or(0, |file| file.len());
        }
        Ok(bytes)
    }
}

fn head(number: u64, salt: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..16].copy_from_slice(&number.to_be_bytes());
    head[16..24].copy_from_slice(&salt.to_be_bytes());
    let sum = crc32c::crc32c(&head[..24]);
    head[24..28].copy_from_slice(&sum.to_be_bytes());
    head
}

/// What the name of a file says of it.
enum Name {
    Segment,
    Kept,
    Spare,
}

/// Returns the number that a file is named by, and what else its name says.
fn number_of(path: &Path) -> Option<(u64, Name)> {
    let says = match path.extension()?.to_str()? {
        "log" => Name::Segment,
        "kept" => Name::Kept,
        "spare" => Name::Spare,
        _ => return None,
    };
    let name = path.file_stem()?.to_str()?;
    let number = u64::from_str_radix(name, 16).ok()?;
    (name.len() == 16).then_some((number, says))
}

#[cfg(unix)]
fn read_at(file: &File, part: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, part, at)
}

#[cfg(windows)]
fn read_at(file: &File, mut part: &mut [u8], mut at: u64) -> io::Result<()> {
    while !part.is_empty() {
        let read = std::os::windows::fs::FileExt::seek_read(file, part, at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        part = &mut part[read..];
        at += read as u64;
    }
    Ok(())
}

/// Writes zeros, a part at a time: one large sync would hold up those of the commits.
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

/// Returns when the names in a directory are on the disk.
#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Directories cannot be opened here, and their names are written through.
#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}
