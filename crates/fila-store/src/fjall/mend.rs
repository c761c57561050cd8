//! Makes a database ready to be opened after a power cut, and refuses one that has been damaged.
//!
//! What fjall 3.1 does with its files after an accident is not what we promise:
//! - A power cut while the database was being made leaves it unopenable, or without one of its keyspaces. Nothing had
//!   been confirmed, so what there is of it is removed.
//! - A batch that was being written, of which sectors in the middle are missing, is taken for damage, and the database
//!   is not opened. It was not confirmed, and is cut off here.
//! - From a journal with a bad byte in the wrong place, whatever comes after it is cut off without a word. Confirmed
//!   messages would be gone, so this is refused here.
//! - The list of a keyspace's tables has a sum that is not looked at, and a bad byte in the list may be a panic, or tables
//!   that are forgotten. The sum is looked at here.
//!
//! # How a torn batch is told from a damaged one
//! At [`Durability::Fsync`] each batch is synced before the next one is begun. So only the last one of the last journal can
//! be torn, and a bad batch that is followed by a good one is damage. A journal is written from its beginning to its end
//! over zeros, so what a cut has taken from the last batch is zeros up to the end of a sector. A last batch that is bad
//! without such a gap is damaged, too; one that has both is taken for torn. At the other levels batches are not
//! synced one by one: nothing is promised after a power cut, and what follows a bad batch is given up.
//!
//! The format is that of fjall's journals in version 3: entries with a tag each, batches of one `Start`, the items, and one
//! `End` with a checksum of the items.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::{Durability, Fault, OpenError};

/// What the disk writes whole.
const SECTOR: usize = 512;
/// What an `End` ends with, and the marker of the format's version consists of.
const MAGIC: &[u8; 4] = b"FJL\x03";
/// Tag, checksum, magic.
const END_BYTES: usize = 13;

/// Mends what lies in the directory of a store, if there is one, and nobody has it open.
pub(super) fn mend(directory: &Path, durability: Durability) -> Result<(), OpenError> {
    let fault = |error: io::Error| OpenError::Fault(Fault::new(error));
    let journals = journals(directory).map_err(fault)?;
    if journals.is_empty() && !directory.join("version").exists() {
        return Ok(());
    }
    let lock = File::options()
        .create(true)
        .append(true)
        .open(directory.join("lock"));
    let lock = lock.map_err(fault)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            return Err(OpenError::Locked(directory.to_owned()));
        }
        Err(std::fs::TryLockError::Error(error)) => return Err(fault(error)),
    }
    clear_unfinished(directory, &journals).map_err(fault)?;
    if let Some(file) = damaged_manifest(&directory.join("keyspaces")).map_err(fault)? {
        return Err(OpenError::DamagedFile(file));
    }
    for (place, journal) in journals.iter().enumerate() {
        if !journal.exists() {
            continue;
        }
        let sealed = place + 1 < journals.len();
        let found = examine(journal, durability, sealed);
        match found.map_err(fault)? {
            Found::Whole => {}
            Found::Torn { offset } => cut_off(journal, offset).map_err(fault)?,
            Found::Damaged { offset } => {
                return Err(OpenError::DamagedJournal {
                    file: journal.clone(),
                    offset,
                });
            }
        }
    }
    Ok(())
}

/// Returns the journals, the one that is written to last.
fn journals(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut journals = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let number = path
            .file_stem()
            .and_then(|stem| stem.to_str()?.parse().ok());
        if let (Some("jnl"), Some(number)) = (path.extension().and_then(|end| end.to_str()), number)
        {
            let number: u64 = number;
            journals.push((number, path));
        }
    }
    journals.sort_unstable();
    Ok(journals.into_iter().map(|(_, path)| path).collect())
}

/// Removes what there is of a database that was never finished: nothing has been written to its one journal, and nothing is
/// filed. Its keyspaces may exist in part, and a database that goes on with some of them loses what is put into the others.
fn clear_unfinished(directory: &Path, journals: &[PathBuf]) -> io::Result<()> {
    let first = directory.join("0.jnl");
    let keyspaces = directory.join("keyspaces");
    let (written, others) = match journals {
        [] => (false, false),
        [journal] => (!is_zero(File::open(journal)?)?, *journal != first),
        [_, ..] => (true, true),
    };
    if written || others || holds_tables(&keyspaces)? {
        return Ok(());
    }
    // The journal goes last: as long as it is there, this is done again.
    missing_is_fine(std::fs::remove_file(directory.join("version")))?;
    missing_is_fine(std::fs::remove_dir_all(keyspaces))?;
    super::sync_names(directory)?;
    missing_is_fine(std::fs::remove_file(first))
}

/// Tells whether something is filed. What the database knows of its keyspaces is in the first of them, and does not count.
fn holds_tables(keyspaces: &Path) -> io::Result<bool> {
    for keyspace in missing_is_fine(std::fs::read_dir(keyspaces).map(Some))?
        .into_iter()
        .flatten()
    {
        let keyspace = keyspace?;
        let tables = std::fs::read_dir(keyspace.path().join("tables")).map(Some);
        let filed = missing_is_fine(tables)?.is_some_and(|mut tables| tables.next().is_some());
        if filed && keyspace.file_name() != "0" {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the list of a keyspace's tables that is not what was written, if there is one. Which list holds, and its sum, is in
/// the file `current`.
fn damaged_manifest(keyspaces: &Path) -> io::Result<Option<PathBuf>> {
    let found = missing_is_fine(std::fs::read_dir(keyspaces).map(Some))?;
    for keyspace in found.into_iter().flatten() {
        let keyspace = keyspace?.path();
        let current = keyspace.join("current");
        let said = missing_is_fine(std::fs::read(&current).map(Some))?;
        let Some(said) = said else {
            continue; // It was never finished, and is made anew.
        };
        if said.len() != 25 {
            return Ok(Some(current));
        }
        let number = u64::from_le_bytes(array(&said[..8]));
        let list = keyspace.join(format!("v{number}"));
        let Some(bytes) = missing_is_fine(std::fs::read(&list).map(Some))? else {
            return Ok(Some(current));
        };
        if xxh3_128(&bytes) != u128::from_le_bytes(array(&said[8..24])) {
            return Ok(Some(list));
        }
    }
    Ok(None)
}

fn missing_is_fine<T: Default>(result: io::Result<T>) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(T::default()),
        result => result,
    }
}

fn is_zero(mut file: File) -> io::Result<bool> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(true),
            read if bytes[..read].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

fn cut_off(journal: &Path, offset: u64) -> io::Result<()> {
    let file = File::options().write(true).open(journal)?;
    file.set_len(offset)?;
    file.sync_all()
}

/// How a journal is.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Whole,
    /// The batch that begins here was being written.
    Torn {
        offset: u64,
    },
    /// The batch that begins here is not what was written.
    Damaged {
        offset: u64,
    },
}

fn examine(journal: &Path, durability: Durability, sealed: bool) -> io::Result<Found> {
    let mut reader = BufReader::with_capacity(1 << 18, File::open(journal)?);
    let mut offset = 0;
    let mut last = None;
    loop {
        match batch(&mut reader)? {
            Ok(good) if last.is_none_or(|last| last < good.number) => {
                last = Some(good.number);
                offset += good.bytes;
            }
            Ok(_) => return Ok(Found::Damaged { offset }),
            Err(bad) => {
                let mut file = reader.into_inner();
                file.seek(SeekFrom::Start(offset))?;
                let rest = content(file)?;
                if rest.is_empty() {
                    return Ok(Found::Whole);
                }
                let torn = match durability {
                    Durability::Fsync => {
                        !sealed && !is_followed(&rest, last) && has_gap(&rest, offset, &bad)
                    }
                    Durability::Os | Durability::Memory => !sealed,
                };
                return Ok(if torn {
                    Found::Torn { offset }
                } else {
                    Found::Damaged { offset }
                });
            }
        }
    }
}

/// Reads what is left of a file, without the zeros at its end.
fn content(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    let (mut at, mut used) = (0, 0);
    loop {
        let read = match file.read(&mut chunk)? {
            0 => break,
            read => &chunk[..read],
        };
        if let Some(end) = read.iter().rposition(|byte| *byte != 0) {
            bytes.resize(at, 0);
            bytes.extend_from_slice(&read[..=end]);
            used = at + end + 1;
        }
        at += read.len();
    }
    bytes.truncate(used);
    Ok(bytes)
}

/// Tells whether there is a whole batch after the bad one.
fn is_followed(rest: &[u8], last: Option<u64>) -> bool {
    let ends = rest.windows(MAGIC.len()).enumerate();
    let ends = ends.filter(|(_, window)| window == MAGIC);
    let mut starts = ends.map(|(at, _)| at + MAGIC.len());
    starts.any(|start| {
        let good = batch(&mut &rest[start..]).ok().and_then(Result::ok);
        good.is_some_and(|good| last.is_none_or(|last| last < good.number))
    })
}

/// Tells whether something of the last batch is missing, so that it reads as zeros up to the end of a sector.
fn has_gap(rest: &[u8], offset: u64, bad: &Bad) -> bool {
    let offset = offset as usize % SECTOR;
    let written_to_its_end = rest.len() >= END_BYTES && {
        let end = &rest[rest.len() - END_BYTES..];
        end[0] == 3 && end.ends_with(MAGIC)
    };
    // The end of a batch is written at once, so if a part of it is there the other one is in another sector.
    let has_bad_end = bad.items_are_whole && bad.at < rest.len() && {
        let sector = (offset + bad.at) / SECTOR;
        (offset + bad.at + END_BYTES - 1) / SECTOR == sector
    };
    let mut sector_ends = (SECTOR - offset..rest.len()).step_by(SECTOR);
    sector_ends.any(|end| rest[end - 1] == 0) || !(written_to_its_end || has_bad_end)
}

/// A batch that is as it was written.
struct Good {
    /// Greater than that of any batch before it.
    number: u64,
    bytes: u64,
}

/// What is wrong with a batch.
#[derive(Debug)]
struct Bad {
    /// How many bytes of it were read before the entry that is wrong.
    at: usize,
    /// Whether only its end is wrong or missing.
    items_are_whole: bool,
}

/// Reads one batch.
fn batch(reader: &mut impl Read) -> io::Result<Result<Good, Bad>> {
    let mut bytes = 0;
    let mut left = 0;
    let mut hasher = Xxh3::new();
    let mut number = None;
    let mut entry = Vec::new();
    loop {
        let bad = Bad {
            at: bytes,
            items_are_whole: number.is_some() && left == 0,
        };
        entry.clear();
        match (read_entry(reader, &mut entry)?, number) {
            (Some(Tag::Start), None) => {
                left = u32::from_le_bytes(array(&entry[1..5]));
                number = Some(u64::from_le_bytes(array(&entry[5..13])));
            }
            (Some(Tag::Item), Some(_)) if left > 0 => {
                left -= 1;
                hasher.update(&entry);
            }
            (Some(Tag::End), Some(number)) if left == 0 => {
                if hasher.digest() != u64::from_le_bytes(array(&entry[1..9])) {
                    return Ok(Err(bad));
                }
                let bytes = (bytes + entry.len()) as u64;
                return Ok(Ok(Good { number, bytes }));
            }
            (Some(Tag::Start | Tag::Item | Tag::End) | None, _) => return Ok(Err(bad)),
        }
        bytes += entry.len();
    }
}

enum Tag {
    Start,
    Item,
    End,
}

/// Reads one entry; none if it is none, or not all there. Keyspaces are never cleared here, so there is no entry that says so.
fn read_entry(reader: &mut impl Read, entry: &mut Vec<u8>) -> io::Result<Option<Tag>> {
    let mut take = |entry: &mut Vec<u8>, bytes: u64| -> io::Result<bool> {
        let read = Read::take(&mut *reader, bytes).read_to_end(entry)?;
        Ok(read as u64 == bytes)
    };
    if !take(entry, 1)? {
        return Ok(None);
    }
    Ok(match entry[0] {
        1 => take(entry, 12)?.then_some(Tag::Start),
        2 => {
            // Kind, compression, keyspace, and the lengths of the key, the value, and the value as it is stored.
            if !take(entry, 20)? || entry[1] > 2 || entry[2] != 0 {
                return Ok(None);
            }
            let key = u16::from_le_bytes(array(&entry[11..13]));
            let value = u32::from_le_bytes(array(&entry[13..17]));
            let stored = u32::from_le_bytes(array(&entry[17..21]));
            let whole = value == stored && take(entry, u64::from(key) + u64::from(stored))?;
            whole.then_some(Tag::Item)
        }
        3 => (take(entry, 12)? && entry.ends_with(MAGIC)).then_some(Tag::End),
        _ => None,
    })
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

#[cfg(test)]
mod tests;
