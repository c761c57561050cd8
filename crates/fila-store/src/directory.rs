//! The directory of a store: its lock, making names in it durable, and the room on its disk.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use crate::{Fault, OpenError};

/// The lock of a store's directory, released when it is dropped.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Locks the directory, which is created if it is missing.
    pub(crate) fn take(path: &Path) -> Result<Self, OpenError> {
        let fault = |error: io::Error| OpenError::Fault(Fault::new(error));
        fs::create_dir_all(path).map_err(at(path)).map_err(fault)?;
        let name = path.join("fila.lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&name)
            .map_err(at(&name))
            .map_err(fault)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(OpenError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => Err(fault(at(&name)(error))),
        }
    }
}

/// Makes the names of everything in the directory durable, and its own.
#[cfg(unix)]
pub(crate) fn sync_names(directory: &Path) -> io::Result<()> {
    fn sync(directory: &Path) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                sync(&entry.path())?;
            }
        }
        sync_directory(directory)
    }
    let directory = directory.canonicalize()?;
    sync(&directory)?;
    match directory.parent().map(File::open) {
        Some(Ok(parent)) => parent.sync_all(),
        // A process that may not read the directory above has not created this one.
        Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Some(Err(error)) => Err(error),
        None => Ok(()),
    }
}

/// Directories cannot be synced here.
#[cfg(not(unix))]
pub(crate) fn sync_names(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Makes the names in a directory durable.
#[cfg(unix)]
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(at(path))
}

/// Directories cannot be opened here, and their names are written through.
#[cfg(not(unix))]
pub(crate) fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Returns an error that names the file or directory, and says what to do.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| {
        let kind = error.kind();
        let (what, remedy) = match kind {
            io::ErrorKind::PermissionDenied => (
                "permission denied".to_owned(),
                "let the user of the server read and write it",
            ),
            io::ErrorKind::ReadOnlyFilesystem => (
                "the file system is read-only".to_owned(),
                "mount it for writing, or name another directory",
            ),
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => (
                "a file is in the place of a directory".to_owned(),
                "name another directory",
            ),
            _ if is_full(&error) => (error.to_string(), "make room on the disk"),
            _ => (error.to_string(), "check the disk"),
        };
        io::Error::new(kind, format!("`{}`: {what}; {remedy}", path.display()))
    }
}

/// Returns whether the error says that the disk, or the part of it that this process may use, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The bytes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    /// Bytes that this process can still use.
    pub(crate) free: u64,
    /// All bytes.
    pub(crate) total: u64,
}

/// Asks the file system of a directory for its space.
#[cfg(unix)]
pub(crate) fn space(directory: &Path) -> io::Result<DiskSpace> {
    let found = rustix::fs::fstatvfs(File::open(directory)?)?;
    Ok(DiskSpace {
        free: found.f_bavail.saturating_mul(found.f_frsize),
        total: found.f_blocks.saturating_mul(found.f_frsize),
    })
}

/// Without a portable way to ask, only failed writes show that the disk is full.
#[cfg(not(unix))]
pub(crate) fn space(_: &Path) -> io::Result<DiskSpace> {
    Ok(DiskSpace {
        free: u64::MAX,
        total: u64::MAX,
    })
}

/// Makes a file at least `bytes` long and allocates all of its blocks, so that writing to them needs no room later. What
/// the file contains stays.
#[cfg(unix)]
pub(crate) fn allocate(file: &mut File, bytes: u64) -> io::Result<()> {
    use rustix::io::Errno;
    match rustix::fs::fallocate(&*file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => extend(file, bytes),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(unix))]
pub(crate) fn allocate(file: &mut File, bytes: u64) -> io::Result<()> {
    extend(file, bytes)
}

/// Writes zeros from the end of the file up to this length.
fn extend(file: &mut File, bytes: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    let zeros = vec![0; 1 << 18];
    let end = file.seek(SeekFrom::End(0))?;
    let mut left = bytes.saturating_sub(end);
    while left > 0 {
        let part = left.min(zeros.len() as u64);
        file.write_all(&zeros[..usize::try_from(part).unwrap_or(zeros.len())])?;
        left -= part;
    }
    Ok(())
}
