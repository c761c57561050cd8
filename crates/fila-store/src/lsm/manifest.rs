//! Checks the manifest of a tree, which `lsm-tree` 3.1 does not do: a flipped bit in it could panic, or forget tables.
//!
//! The file `current` names the manifest that holds, by its number (8 bytes), and has its XXH3 checksum (16 bytes, both
//! little-endian) and the kind of checksum (1 byte).

use std::fs;
use std::io;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::{Fault, OpenError};

/// Refuses a tree whose manifest is missing or damaged.
pub(super) fn check(tree: &Path) -> Result<(), OpenError> {
    let current = tree.join("current");
    let Some((number, checksum)) = read(&current)?.as_deref().and_then(parse) else {
        return Err(OpenError::DamagedFile(current));
    };
    let manifest = tree.join(format!("v{number}"));
    match read(&manifest)? {
        None => Err(OpenError::DamagedFile(current)),
        Some(bytes) if xxh3_128(&bytes) == checksum => Ok(()),
        Some(_) => Err(OpenError::DamagedFile(manifest)),
    }
}

/// Returns the number of the manifest that holds; none if it cannot be told.
pub(super) fn number(tree: &Path) -> Option<u64> {
    let current = fs::read(tree.join("current")).ok()?;
    Some(parse(&current)?.0)
}

fn parse(current: &[u8]) -> Option<(u64, u128)> {
    let (number, rest) = current.split_first_chunk()?;
    let (checksum, kind) = rest.split_first_chunk()?;
    (kind.len() == 1).then(|| (u64::from_le_bytes(*number), u128::from_le_bytes(*checksum)))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, OpenError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OpenError::Fault(Fault::new(error))),
    }
}
