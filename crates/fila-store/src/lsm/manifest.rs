//! The manifest of a tree: the list of its files. `lsm-tree` 3.1 does not check it, so a flipped bit in it could panic, or
//! forget tables.
//!
//! The file `current` names the manifest that holds, by its number (8 bytes), and has its XXH3 checksum (16 bytes, both
//! little-endian) and the kind of checksum (1 byte). A manifest is an archive of [`sfa`]; its section `tables` has for each
//! level its runs, and for each run the number, the checksum and the first sequence number of each file.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::damage::{DamagedPart, StoreDamage};
use crate::directory::{at, sync_directory};
use crate::repair::Aside;
use crate::rows::Table;
use crate::{Fault, OpenError};

/// Bytes that a manifest has for a file: its number, the kind of checksum, the checksum, and a sequence number.
const ENTRY: usize = 8 + 1 + 16 + 8;

/// Bytes at the end of an archive.
const TAIL: usize = 4 + 1 + 1 + 16 + 8 + 8;

/// The section of a manifest that lists the files.
const TABLES: &[u8] = b"tables";

/// The folder of a tree.
#[derive(Clone, Debug)]
pub(super) struct TreeFolder {
    table: Table,
    pub(super) path: PathBuf,
    /// What a search for a damaged file has found. A search reads all files.
    damaged: Arc<OnceLock<Option<StoreDamage>>>,
}

/// A file of a tree, as the manifest lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListedFile {
    number: u64,
    checksum: u128,
}

impl TreeFolder {
    /// Returns the folder of a table in a store.
    pub(super) fn of(store: &Path, table: Table) -> Self {
        let path = store.join("tables").join(table.name());
        Self {
            table,
            path,
            damaged: Arc::default(),
        }
    }

    /// Returns an error of the tree that names the damaged file, or the folder if the file cannot be told.
    pub(super) fn fault(&self, error: lsm_tree::Error) -> Fault {
        if let lsm_tree::Error::Io(error) = error {
            return Fault::new(at(&self.path)(error));
        }
        let search = || match self.verify() {
            // A merge may remove a file that is searched for.
            Err(OpenError::Damage(damage)) if damage.path.exists() => Some(damage),
            _ => None,
        };
        match self.damaged.get_or_init(search) {
            Some(damage) => Fault::new(damage.clone()),
            None => Fault::new(format!(
                "a file in `{}` is damaged; check the disk, then restore a copy",
                self.path.display()
            )),
        }
    }

    /// Returns why the tree was not opened.
    pub(super) fn opening(&self, error: lsm_tree::Error) -> OpenError {
        OpenError::Fault(self.fault(error))
    }

    fn current(&self) -> PathBuf {
        self.path.join("current")
    }

    fn manifest(&self, number: u64) -> PathBuf {
        self.path.join(format!("v{number}"))
    }

    /// Returns the path of one of its files.
    pub(super) fn file(&self, number: u64) -> PathBuf {
        self.path.join("tables").join(number.to_string())
    }

    /// Refuses a tree whose manifest is missing or damaged, or whose files are missing or cut short.
    pub(super) fn check(&self) -> Result<(), OpenError> {
        for file in self.listed()? {
            let path = self.file(file.number);
            let part = DamagedPart::TableFile(self.table, file.number);
            match File::open(&path).and_then(|mut file| has_tail(&mut file)) {
                Ok(true) => {}
                Ok(false) => return Err(self.damage(part, "is cut short or damaged")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(self.damage(part, "is missing"));
                }
                Err(error) => return Err(OpenError::Fault(Fault::new(at(&path)(error)))),
            }
        }
        self.refuse_foreign()
    }

    /// Reads every file, and reports the first that differs from what was written.
    pub(super) fn verify(&self) -> Result<(), OpenError> {
        for file in self.listed()? {
            let path = self.file(file.number);
            let part = DamagedPart::TableFile(self.table, file.number);
            match checksum(&path) {
                Ok(found) if found == file.checksum => {}
                Ok(_) => return Err(self.damage(part, "is damaged")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(self.damage(part, "is missing"));
                }
                Err(error) => return Err(OpenError::Fault(Fault::new(at(&path)(error)))),
            }
        }
        Ok(())
    }

    /// Returns the number of the manifest that holds; none if it cannot be told.
    pub(super) fn number(&self) -> Option<u64> {
        let current = fs::read(self.current()).ok()?;
        Some(parse(&current)?.0)
    }

    /// Copies the manifest that holds, and the file that names it.
    pub(super) fn copy_manifest(&self, aside: &Aside) -> io::Result<()> {
        aside.copy(&self.current())?;
        match self.number() {
            Some(number) => aside.copy(&self.manifest(number)),
            None => Ok(()),
        }
    }

    /// Writes a manifest that lacks a file, and makes it hold.
    pub(super) fn leave_out(&self, number: u64) -> io::Result<()> {
        let damaged = || io::Error::other("the manifest cannot be read");
        let last = self.number().ok_or_else(damaged)?;
        let old = self.manifest(last);
        let bytes = fs::read(&old).map_err(at(&old))?;
        let new = self.manifest(last + 1);
        let mut file = File::create(&new).map_err(at(&new))?;
        let mut writer = sfa::Writer::from_writer(&mut file);
        for (name, section) in sections(&bytes).ok_or_else(damaged)? {
            let is_list = name == TABLES;
            writer.start(name)?;
            if is_list {
                let left = without(section, number).ok_or_else(damaged)?;
                writer.write_all(&left)?;
            } else {
                writer.write_all(section)?;
            }
        }
        writer.finish().map_err(io::Error::other)?;
        file.sync_all()?;
        self.hold(last + 1)
    }

    /// Makes the newest whole manifest hold whose files are all there. Returns whether there is one.
    pub(super) fn find_current(&self) -> io::Result<bool> {
        let mut numbers = Vec::new();
        if !self.path.exists() {
            return Ok(false);
        }
        for file in fs::read_dir(&self.path).map_err(at(&self.path))? {
            let name = file?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix('v'));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        for &number in numbers.iter().rev() {
            let bytes = fs::read(self.manifest(number))?;
            let listed = parse_manifest(&bytes);
            let is_whole =
                |file: &ListedFile| checksum(&self.file(file.number)).ok() == Some(file.checksum);
            if listed.is_some_and(|files| files.iter().all(is_whole)) {
                self.hold(number)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the file `current`.
    fn hold(&self, number: u64) -> io::Result<()> {
        let checksum = xxh3_128(&fs::read(self.manifest(number))?);
        let mut current = number.to_le_bytes().to_vec();
        current.extend_from_slice(&checksum.to_le_bytes());
        current.push(0);
        let unnamed = self.path.join("current.new");
        let mut file = File::create(&unnamed).map_err(at(&unnamed))?;
        file.write_all(&current)?;
        file.sync_all()?;
        fs::rename(&unnamed, self.current())?;
        sync_directory(&self.path)
    }

    /// Returns the files that the manifest lists.
    fn listed(&self) -> Result<Vec<ListedFile>, OpenError> {
        let current = DamagedPart::Current(self.table);
        let Some(bytes) = read(&self.current())? else {
            return Err(self.damage(current, "is missing"));
        };
        let Some((number, checksum)) = parse(&bytes) else {
            return Err(self.damage(current, "is damaged"));
        };
        let manifest = DamagedPart::Manifest(self.table);
        let Some(bytes) = read(&self.manifest(number))? else {
            return Err(self.damage_at(self.manifest(number), manifest, "is missing"));
        };
        let is_whole = xxh3_128(&bytes) == checksum;
        let listed = is_whole.then(|| parse_manifest(&bytes)).flatten();
        listed.ok_or_else(|| self.damage_at(self.manifest(number), manifest, "is damaged"))
    }

    /// Refuses files that a tool has left in the folder: the tree would take them for its own.
    fn refuse_foreign(&self) -> Result<(), OpenError> {
        let folder = self.path.join("tables");
        let fault = |error| OpenError::Fault(Fault::new(at(&folder)(error)));
        let files = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            files => files.map_err(fault)?,
        };
        for file in files {
            let path = file.map_err(fault)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let is_ours = name.is_some_and(|name| name.parse::<u64>().is_ok()) && path.is_file();
            if !is_ours {
                return Err(OpenError::Foreign(path));
            }
        }
        Ok(())
    }

    fn damage(&self, part: DamagedPart, how: &'static str) -> OpenError {
        let path = match part {
            DamagedPart::TableFile(_, number) => self.file(number),
            DamagedPart::Tables
            | DamagedPart::Current(_)
            | DamagedPart::Manifest(_)
            | DamagedPart::Segment { .. }
            | DamagedPart::Blob(_) => self.current(),
        };
        self.damage_at(path, part, how)
    }

    fn damage_at(&self, path: PathBuf, part: DamagedPart, how: &'static str) -> OpenError {
        let store = self.path.ancestors().nth(2).unwrap_or(&self.path);
        OpenError::Damage(StoreDamage {
            store: store.to_owned(),
            path,
            how,
            part,
        })
    }
}

fn parse(current: &[u8]) -> Option<(u64, u128)> {
    let (number, rest) = current.split_first_chunk()?;
    let (checksum, kind) = rest.split_first_chunk()?;
    (kind == [0]).then(|| (u64::from_le_bytes(*number), u128::from_le_bytes(*checksum)))
}

/// A section of an archive: its name and its bytes.
type Section<'a> = (Vec<u8>, &'a [u8]);

/// Returns the sections of an archive, in order; none if it is damaged.
fn sections(archive: &[u8]) -> Option<Vec<Section<'_>>> {
    let mut reader = io::Cursor::new(archive);
    if !has_tail(&mut reader).ok()? {
        return None;
    }
    let reader = sfa::Reader::from_reader(&mut reader).ok()?;
    let section = |entry: &sfa::TocEntry| {
        let start = usize::try_from(entry.pos()).ok()?;
        let end = start.checked_add(usize::try_from(entry.len()).ok()?)?;
        Some((entry.name().to_owned(), archive.get(start..end)?))
    };
    reader.toc().iter().map(section).collect()
}

/// Returns the files that a manifest lists; none if it is damaged.
fn parse_manifest(archive: &[u8]) -> Option<Vec<ListedFile>> {
    let sections = sections(archive)?;
    let (_, tables) = sections.iter().find(|(name, _)| name == TABLES)?;
    entries(tables)
}

/// Returns the files that a section lists; none if it is damaged.
fn entries(section: &[u8]) -> Option<Vec<ListedFile>> {
    let mut files = Vec::new();
    walk(section, |entry| {
        files.push(entry);
        true
    })?;
    Some(files)
}

/// Returns the section without a file; none if it is damaged.
fn without(section: &[u8], number: u64) -> Option<Vec<u8>> {
    walk(section, |entry| entry.number != number)
}

/// Visits the files of a section, and returns a section with those for which `keeps` returns true.
fn walk(section: &[u8], mut keeps: impl FnMut(ListedFile) -> bool) -> Option<Vec<u8>> {
    let (&levels, mut rest) = section.split_first()?;
    let mut kept = vec![levels];
    for _ in 0..levels {
        let (&runs, after) = rest.split_first()?;
        rest = after;
        let mut runs_kept = Vec::new();
        let mut runs_count = 0_u8;
        for _ in 0..runs {
            let (count, mut after) = rest.split_first_chunk()?;
            let mut run = Vec::new();
            let mut run_count = 0_u32;
            for _ in 0..u32::from_le_bytes(*count) {
                let (entry, following) = after.split_first_chunk::<ENTRY>()?;
                after = following;
                let file = ListedFile {
                    number: u64::from_le_bytes(*entry.first_chunk()?),
                    checksum: u128::from_le_bytes(*entry[9..].first_chunk()?),
                };
                if keeps(file) {
                    run.extend_from_slice(entry);
                    run_count += 1;
                }
            }
            rest = after;
            if run_count > 0 {
                runs_count += 1;
                runs_kept.extend_from_slice(&run_count.to_le_bytes());
                runs_kept.extend_from_slice(&run);
            }
        }
        kept.push(runs_count);
        kept.extend_from_slice(&runs_kept);
    }
    rest.is_empty().then_some(kept)
}

/// Returns the checksum of a whole file.
fn checksum(path: &Path) -> io::Result<u128> {
    let mut file = File::open(path)?;
    let mut sum = Xxh3::new();
    let mut part = vec![0; 1 << 18];
    loop {
        match file.read(&mut part)? {
            0 => return Ok(sum.digest128()),
            read => sum.update(&part[..read]),
        }
    }
}

/// Tells whether an archive ends with its table of contents, and that is whole. [`sfa`] allocates what a damaged one asks for.
///
/// The last 38 bytes are `SFA!`, a version, the kind of checksum, the checksum of the table of contents, and its position
/// and length.
fn has_tail(archive: &mut (impl Read + Seek)) -> io::Result<bool> {
    let length = archive.seek(SeekFrom::End(0))?;
    let Some(start) = length.checked_sub(TAIL as u64) else {
        return Ok(false);
    };
    let mut tail = [0; TAIL];
    archive.seek(SeekFrom::Start(start))?;
    archive.read_exact(&mut tail)?;
    let number = |at: usize| {
        tail[at..]
            .first_chunk()
            .copied()
            .map_or(0, u64::from_le_bytes)
    };
    let sum = tail[6..]
        .first_chunk()
        .copied()
        .map_or(0, u128::from_le_bytes);
    let (position, contents) = (number(22), number(30));
    if !tail.starts_with(b"SFA!\x01\x00") || position.checked_add(contents) != Some(start) {
        return Ok(false);
    }
    archive.seek(SeekFrom::Start(position))?;
    let mut bytes = Vec::new();
    archive.take(contents).read_to_end(&mut bytes)?;
    Ok(xxh3_128(&bytes) == sum)
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, OpenError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OpenError::Fault(Fault::new(at(path)(error)))),
    }
}
