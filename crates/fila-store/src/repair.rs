//! Goes on with a store that has missing or damaged files, if its owner accepts the loss.
//!
//! The repair opens the store until that succeeds. Each time, it takes the file that the opening complains about out of the
//! store. So only the opening knows what a store must have.
//!
//! # What always holds
//! The repair deletes nothing: it moves damaged files, and files that are of no use without them, to a new folder `damaged-N`
//! of the store. A file that it changes is copied there first.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::damage::{DamagedPart, StoreDamage};
use crate::directory::{DirectoryLock, at, sync_directory};
use crate::rows::Table;
use crate::{DiskOptions, Fault, LsmEngine, OpenError, log, lsm};

/// Files that one repair takes out, at most.
const FILES_MAX: usize = 10_000;

/// What a repair has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The damage that it found, in order. Empty if the store was whole.
    pub damage: Vec<StoreDamage>,
    /// The folder with the files as they were.
    pub aside: PathBuf,
}

impl DiskOptions {
    /// Reads every file of the tables, and opens the store. Blocks as long as it takes to read them.
    ///
    /// # Errors
    /// [`OpenError::Damage`] for the first damaged file; as [`open`](Self::open).
    pub fn check(&self) -> Result<(), OpenError> {
        self.open_whole().map(drop)
    }

    /// Takes missing and damaged files out of the store, so that it can be opened. The data in them is lost.
    ///
    /// # Errors
    /// As [`open`](Self::open); if a file cannot be moved.
    pub fn repair(&self) -> Result<Repaired, OpenError> {
        let mut damage: Vec<StoreDamage> = Vec::new();
        let mut aside = Aside::new(&self.path);
        loop {
            match self.open_whole() {
                Ok(engine) => {
                    if !damage.is_empty() {
                        engine.skip_numbers()?;
                    }
                    return Ok(Repaired {
                        damage,
                        aside: aside.folder,
                    });
                }
                Err(OpenError::Damage(found)) if damage.len() < FILES_MAX => {
                    self.take_out(&found, &mut aside)?;
                    damage.push(found);
                }
                // The lost commits were the first ones, and rows of theirs are in the tables nevertheless.
                Err(OpenError::Unrecognised) if !damage.is_empty() => {
                    let taken = aside.take_everything();
                    taken.map_err(|error| OpenError::Fault(Fault::new(error)))?;
                    damage.push(StoreDamage {
                        store: self.path.clone(),
                        path: self.path.join("tables"),
                        how: "has no catalogue left",
                        part: DamagedPart::Tables,
                    });
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn open_whole(&self) -> Result<LsmEngine, OpenError> {
        lsm::verify(&self.path)?;
        self.clone().open()
    }

    fn take_out(&self, damage: &StoreDamage, aside: &mut Aside) -> Result<(), OpenError> {
        if let DamagedPart::Blob(number) = damage.part {
            return log::accept_blob(&lsm::tables(&self.path)?, &self.path, number);
        }
        let _lock = DirectoryLock::take(&self.path)?;
        let done = match damage.part {
            DamagedPart::Tables
            | DamagedPart::Manifest(Table::Catalog)
            | DamagedPart::TableFile(Table::Catalog, _) => aside.take_everything(),
            DamagedPart::Current(table) => match lsm::find_current(&self.path, table, aside) {
                Ok(false) if table == Table::Catalog => aside.take_everything(),
                Ok(false) => lsm::begin_anew(&self.path, table, aside),
                found => found.map(drop),
            },
            DamagedPart::Manifest(table) => lsm::begin_anew(&self.path, table, aside),
            DamagedPart::TableFile(table, number) => {
                lsm::leave_out(&self.path, table, number, aside)
            }
            DamagedPart::Segment { number, end } => {
                log::end_at(&self.path, self.segment_bytes(), (number, end), aside)
            }
            DamagedPart::Blob(_) => Ok(()),
        };
        done.map_err(|error| OpenError::Fault(Fault::new(error)))
    }
}

/// The folder for files that are taken out.
#[derive(Debug)]
pub(crate) struct Aside {
    store: PathBuf,
    folder: PathBuf,
}

impl Aside {
    fn new(store: &Path) -> Self {
        let mut folders = (1..).map(|number| store.join(format!("damaged-{number}")));
        let folder = folders.find(|folder| !folder.exists());
        Self {
            store: store.to_owned(),
            folder: folder.unwrap_or_else(|| store.join("damaged")),
        }
    }

    /// Moves a file or a folder, if it exists.
    pub(crate) fn take(&self, path: &Path) -> io::Result<()> {
        if path.exists() {
            let to = self.place(path)?;
            fs::rename(path, &to).map_err(at(path))?;
        }
        Ok(())
    }

    /// Copies a file that will change, if it exists.
    pub(crate) fn copy(&self, path: &Path) -> io::Result<()> {
        if path.exists() {
            let to = self.place(path)?;
            fs::copy(path, &to).map_err(at(&to))?;
            fs::File::open(&to)
                .and_then(|file| file.sync_all())
                .map_err(at(&to))?;
        }
        Ok(())
    }

    fn take_everything(&self) -> io::Result<()> {
        self.take(&self.store.join("tables"))?;
        self.take(&self.store.join("log"))?;
        sync_directory(&self.store)
    }

    /// Returns an unused place for a file, at its path in the store.
    fn place(&self, path: &Path) -> io::Result<PathBuf> {
        let inside = path.strip_prefix(&self.store).unwrap_or(path);
        let place = self.folder.join(inside);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(at(parent))?;
        }
        let mut places = (1..).map(|number| place.with_extension(format!("{number}")));
        let free = (!place.exists()).then(|| place.clone());
        Ok(free
            .or_else(|| places.find(|place| !place.exists()))
            .unwrap_or(place))
    }
}
