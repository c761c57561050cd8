//! Payloads that stay where they were written: in a segment of the log, which is kept for as long as one of them is there.
//!
//! What a message carries is most of what is written, and is read once. To file it would be to write it again, and to
//! merge tables of it to write it several times more. So if a segment is worth it, the database gets the
//! [places](Place) of its payloads, and the segment stays. It is worth it if half of its bytes are payloads that are
//! still there when it is filed; of a queue that is served most are not, and the few that are, are filed themselves.
//!
//! # How a segment goes
//! Nothing is written down when a payload is removed but that it is. A *survey* walks over the places that the database
//! has, and sums up how much of each segment is still there. It is begun when half as many payloads have been removed as
//! there were at the last one, small ones that are in the database themselves among them, so that a message pays for
//! walking over a few. It goes on some rows at a time, between filings. What it has seen may be removed meanwhile, and nothing is ever added to a segment that is filed: its sums are
//! too large, if anything.
//!
//! A segment of which nothing is there is let go. Of one of which little is there, twice in a row, that little is filed, and
//! then it is let go: once may be a queue on its way to the end of the segment. Its file goes when nobody is looking at it
//! any more.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::filing::Filing;
use super::shelf::{Contents, Shelf};
use crate::record::{self, Place};
use crate::rows::{Table, View};
use crate::{Fault, keys};

/// Rows that are looked at in one go. In tests so few that much happens in the course of a survey.
const STEP: usize = if cfg!(test) { 20 } else { 100_000 };

/// Little is there of a segment if that is less than one of so many parts.
const SPARSE: u64 = 4;

/// Places that are gathered by one survey, about, to be filed.
const GATHERED: u64 = 100_000;

/// Payloads that a segment of an opened store is believed to have, until there was a survey.
const BELIEVED: u64 = 1_000;

/// The kept segments at one moment. Their files stay for as long as somebody has it.
pub(super) type Kept = Arc<BTreeMap<u64, Arc<KeptSegment>>>;

#[derive(Debug)]
pub(super) struct KeptSegment {
    pub(super) number: u64,
    bytes: u64,
}

impl KeptSegment {
    pub(super) fn new(number: u64, bytes: u64) -> Arc<Self> {
        Arc::new(Self { number, bytes })
    }
}

/// Tells which of the segments that were found are to be recovered, and which are kept: those that are filed. One that is
/// not has lost the way from being kept to being filed, and goes it again.
pub(super) fn on_opening(
    shelf: &Shelf,
    contents: Contents,
    filed: u64,
) -> io::Result<(Vec<u64>, Kept)> {
    let mut segments = contents.segments;
    let mut kept = BTreeMap::new();
    for number in contents.kept {
        if number > filed {
            shelf.unkeep(number)?;
            segments.push(number);
        } else {
            let bytes = shelf.kept_bytes(number)?;
            kept.insert(number, KeptSegment::new(number, bytes));
        }
    }
    segments.sort_unstable();
    Ok((segments, Arc::new(kept)))
}

/// Returns the record itself if this one says where it is.
///
/// One that makes no sense, or leads nowhere, is returned as it is: whoever decodes it finds it to be of the wrong kind.
pub(super) fn resolve(shelf: &Shelf, key: &[u8], record: Bytes) -> Result<Bytes, Fault> {
    let Some(place) = record::as_place(key, &record) else {
        return Ok(record);
    };
    let found = shelf.read_part(place.segment, place.at, place.length);
    Ok(found.map_err(Fault::new)?.unwrap_or(record))
}

/// What has been filed of payloads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Payloads, or their places.
    pub(super) set: u64,
    /// Payloads that are gone.
    pub(super) removed: u64,
}

impl Tally {
    /// Counts a row that was set, or removed.
    pub(super) fn note(&mut self, is_set: bool) {
        self.set += u64::from(is_set);
        self.removed += u64::from(!is_set);
    }
}

/// Who decides which segments are kept.
#[derive(Debug)]
pub(super) struct Keeper {
    /// Rows that a survey would walk over, at most: payloads as well as places.
    rows: u64,
    /// Payloads that were removed since the last survey began.
    removed: u64,
    survey: Option<Survey>,
    /// Segments of which little was there at the last survey.
    sparse: HashSet<u64>,
    /// Segments that are not kept any more, but somebody may be looking at.
    leaving: Vec<Arc<KeptSegment>>,
}

/// A walk over the places.
#[derive(Debug)]
struct Survey {
    /// Where to go on.
    from: Vec<u8>,
    /// The segments that it is about.
    segments: Kept,
    /// What is there of each.
    needed: HashMap<u64, Needed>,
    /// Segments whose places are gathered.
    sparse: HashSet<u64>,
    /// In the order of their keys.
    gathered: Vec<(Bytes, Place)>,
    rows: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Needed {
    bytes: u64,
    rows: u64,
}

impl Keeper {
    /// Begins with the segments that an opened store has.
    pub(super) fn new(kept: &Kept) -> Self {
        Self {
            rows: kept.len() as u64 * BELIEVED,
            removed: 0,
            survey: None,
            sparse: HashSet::new(),
            leaving: Vec::new(),
        }
    }

    /// Notes what has been filed.
    pub(super) fn note(&mut self, tally: Tally) {
        self.rows += tally.set;
        self.removed += tally.removed;
    }

    /// Tells whether there is something to look at.
    pub(super) fn has_work(&self, kept: &Kept) -> bool {
        self.survey.is_some() || self.is_due(kept)
    }

    fn is_due(&self, kept: &Kept) -> bool {
        !kept.is_empty() && self.removed > 0 && self.removed.saturating_mul(2) >= self.rows
    }

    /// Goes on with a survey, or begins one if it is time for it. If it comes to its end, what little is there of segments
    /// is filed; those that are not needed any more are returned.
    pub(super) fn look<R: Filing>(
        &mut self,
        kept: &Kept,
        shelf: &Shelf,
        beneath: &R,
    ) -> Result<HashSet<u64>, Fault> {
        if self.survey.is_none() && self.is_due(kept) {
            self.removed = 0;
            self.survey = Some(Survey {
                from: Vec::new(),
                segments: Arc::clone(kept),
                needed: HashMap::new(),
                sparse: std::mem::take(&mut self.sparse),
                gathered: Vec::new(),
                rows: 0,
            });
        }
        let Some(mut survey) = self.survey.take() else {
            return Ok(HashSet::new());
        };
        match survey.walk(&beneath.view()) {
            Ok(true) => return self.conclude(survey, shelf, beneath),
            Ok(false) => self.survey = Some(survey),
            // Nothing is lost by not knowing. There will be another one.
            Err(_) => {}
        }
        Ok(HashSet::new())
    }

    fn conclude<R: Filing>(
        &mut self,
        survey: Survey,
        shelf: &Shelf,
        beneath: &R,
    ) -> Result<HashSet<u64>, Fault> {
        self.rows = survey.rows;
        let mut idle = HashSet::new();
        let mut to_gather = 0;
        for segment in survey.segments.values() {
            let number = segment.number;
            let needed = survey.needed.get(&number).copied().unwrap_or_default();
            if needed.rows == 0 {
                idle.insert(number);
            } else if needed.bytes < segment.bytes / SPARSE
                && !survey.sparse.contains(&number)
                && to_gather < GATHERED
            {
                to_gather += needed.rows;
                self.sparse.insert(number);
            }
        }
        idle.extend(survey.file_gathered(shelf, beneath)?);
        Ok(idle)
    }

    /// Has segments go that are not kept any more, as soon as nobody looks at them.
    pub(super) fn let_go(
        &mut self,
        shelf: &Shelf,
        segments: impl IntoIterator<Item = Arc<KeptSegment>>,
    ) -> Result<(), Fault> {
        self.leaving.extend(segments);
        for segment in std::mem::take(&mut self.leaving) {
            if Arc::strong_count(&segment) == 1 {
                shelf.discard(segment.number).map_err(Fault::new)?;
            } else {
                self.leaving.push(segment);
            }
        }
        Ok(())
    }
}

impl Survey {
    /// Walks on, and tells whether it has come to the end.
    fn walk(&mut self, view: &impl View) -> Result<bool, Fault> {
        let end = keys::successor(&[]);
        let mut rows = view.range(Table::Payloads, &self.from, &end);
        let mut last = None;
        for row in rows.by_ref().take(STEP) {
            let (key, record) = row?;
            last = Some(key.clone());
            self.rows += 1;
            let Some(place) = record::as_place(&key, &record) else {
                continue;
            };
            let needed = self.needed.entry(place.segment).or_default();
            needed.bytes += u64::from(place.length);
            needed.rows += 1;
            if self.sparse.contains(&place.segment) {
                // By itself, without the block that it was read from.
                let key = Bytes::copy_from_slice(&key);
                self.gathered.push((key, place));
            }
        }
        let is_over = rows.next().is_none();
        drop(rows);
        if let Some(last) = last {
            self.from = keys::following(&last);
        }
        Ok(is_over)
    }

    /// Files the payloads that were gathered and are still there, and returns the segments that had them.
    fn file_gathered<R: Filing>(self, shelf: &Shelf, beneath: &R) -> Result<HashSet<u64>, Fault> {
        let mut done = self.sparse;
        let mut has_failed = false;
        let view = beneath.view();
        let mut read = |key: &Bytes, place: Place| {
            let filed = view.get(Table::Payloads, key)?;
            // One that was removed since is not to come back.
            if filed.and_then(|record| record::as_place(key, &record)) != Some(place) {
                return Ok(None);
            }
            let part = shelf.read_part(place.segment, place.at, place.length);
            let part = part.map_err(Fault::new)?;
            if part.is_none() {
                // What is there cannot be read whole, and stays as it is.
                done.remove(&place.segment);
            }
            Ok(part)
        };
        let mut payloads =
            self.gathered
                .into_iter()
                .map_while(|(key, place)| match read(&key, place) {
                    Ok(payload) => Some(payload.map(|payload| (key, Some(payload)))),
                    // Those before are there twice now, which does no harm.
                    Err::<_, Fault>(_) => {
                        has_failed = true;
                        None
                    }
                });
        beneath.file(Table::Payloads, &mut payloads.by_ref().flatten())?;
        drop(payloads);
        if has_failed {
            done.clear();
        }
        Ok(done)
    }
}
