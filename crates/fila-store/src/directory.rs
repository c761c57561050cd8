//! The directory of a store: its lock, and making names in it durable.

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
        fs::create_dir_all(path).map_err(fault)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join("fila.lock"))
            .map_err(fault)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(OpenError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => Err(fault(error)),
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
    File::open(path)?.sync_all()
}

/// Directories cannot be opened here, and their names are written through.
#[cfg(not(unix))]
pub(crate) fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}
