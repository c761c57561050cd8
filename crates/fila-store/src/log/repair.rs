//! Goes on with a log that has missing or damaged segments.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use super::flush::FlushTarget;
use super::segment_dir::SegmentDir;
use super::{recovery, value_log};
use crate::OpenError;
use crate::directory::{allocate, at};
use crate::repair::Aside;
use crate::rows::Table;

/// Lets the log end in a segment, after its last whole frame. Takes the segments behind it out.
pub(crate) fn end_at(
    store: &Path,
    segment_bytes: u64,
    (number, end): (u64, Option<u64>),
    aside: &Aside,
) -> io::Result<()> {
    let (dir, contents) = SegmentDir::open(store, segment_bytes)?;
    for &later in contents.segments.iter().filter(|&&it| it > number) {
        aside.take(&dir.path(later))?;
    }
    let path = dir.path(number);
    let Some(end) = end else {
        aside.take(&path)?;
        return dir.prepare(number, || false).map(drop);
    };
    aside.copy(&path)?;
    let laid_out = dir.laid_out(number)?;
    let mut file = OpenOptions::new()
        .write(true)
        .open(&path)
        .map_err(at(&path))?;
    // What the file gets back is zeros.
    file.set_len(end).map_err(at(&path))?;
    allocate(&mut file, laid_out.max(segment_bytes)).map_err(at(&path))?;
    file.sync_all().map_err(at(&path))
}

/// Accepts that a blob segment is missing, or as short as it is.
pub(crate) fn accept_blob<D: FlushTarget>(
    database: &D,
    store: &Path,
    number: u64,
) -> Result<(), OpenError> {
    let (dir, _) = SegmentDir::open(store, 0).map_err(recovery::fault)?;
    let row = match fs::metadata(dir.blob_path(number)) {
        Ok(file) => value_log::listed(number, file.len()),
        Err(_) => value_log::unlisted(number),
    };
    let written = database.ingest(Table::Catalog, &mut std::iter::once(row));
    written.map_err(OpenError::Fault)
}
