//! The files of the log: segments that are in use, and spare ones that are to be used again.
//!
//! A segment is a file `N.log`, with its number in sixteen hexadecimal digits: a head of [`HEAD`] bytes, then frames. A
//! file has that name only when its head is on the disk. What is no longer needed becomes `N.spare`: to overwrite blocks
//! that have been written before takes the disk half the time of making new ones, since no other block has to be
//! changed for it. A name that comes back after a power cut does no harm: the store knows which segments are filed.

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
}

impl Shelf {
    /// Opens the directory, which is made if need be, and returns it with the segments in it, in order.
    pub(super) fn open(store: &Path, segment_bytes: u64) -> io::Result<(Self, Vec<u64>)> {
        let directory = store.join("log");
        if !directory.is_dir() {
            fs::create_dir(&directory)?;
            sync_directory(store)?;
        }
        let mut segments = Vec::new();
        let mut spares = Vec::new();
        for file in fs::read_dir(&directory)? {
            let path = file?.path();
            match number_of(&path) {
                Some((number, true)) => segments.push(number),
                Some((_, false)) => spares.push(path),
                None => {}
            }
        }
        segments.sort_unstable();
        let shelf = Self {
            directory,
            segment_bytes,
            spares: Mutex::new(spares),
        };
        Ok((shelf, segments))
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

    /// Makes a segment: of a spare file, or a new one, whose blocks are written beforehand if it is to be `filled`.
    pub(super) fn prepare(&self, number: u64, filled: bool) -> io::Result<Segment> {
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
        if filled && spare.is_none() {
            fill(&mut file, self.segment_bytes)?;
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

    /// Takes a segment out of the log. Its file is used again, unless it is overlong or one of too many.
    pub(super) fn retire(&self, number: u64) -> io::Result<()> {
        let path = self.path(number);
        let mut spares = self.spares();
        let length = fs::metadata(&path)?.len();
        if spares.len() >= SPARES || length < self.segment_bytes || length > self.segment_bytes * 2
        {
            return fs::remove_file(&path);
        }
        let spare = path.with_extension("spare");
        fs::rename(&path, &spare)?;
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

/// Returns the number that a file is named by, and whether it is a segment rather than a spare file.
fn number_of(path: &Path) -> Option<(u64, bool)> {
    let is_segment = match path.extension()?.to_str()? {
        "log" => true,
        "spare" => false,
        _ => return None,
    };
    let name = path.file_stem()?.to_str()?;
    let number = u64::from_str_radix(name, 16).ok()?;
    (name.len() == 16).then_some((number, is_segment))
}

fn fill(file: &mut File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 18];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(zeros.len() as u64);
        file.write_all(&zeros[..usize::try_from(part).unwrap_or(zeros.len())])?;
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
