//! A log in front of a database: what is committed is appended to a file, synced, and kept in memory; the database gets
//! it later, many commits at once and in order.
//!
//! A tree of sorted tables is made for reading. To get a commit into one takes several times the processor's time of
//! appending it to a file, and most messages of a queue that is served are acknowledged before there was any use in it:
//! those come and go in the log. What stays is filed a segment at a time, without passing through the database's own
//! journal; and of what is large, only where it is, if enough of a segment stays to [keep](kept) it.
//!
//! ```text
//! write ── frame ─→ segment N      synced, then applied ─→ memtable N ┐
//!                   segment N - 1  full                    memtable …  ├─ newest first: what a view sees
//!                   filed by the thread ─────────────────→ database   ┘
//! ```
//!
//! A commit has two halves. It is *staged*: appended, and put in line. It is *settled*, with all that were staged before:
//! synced, and applied. Further commits can be staged while one is settled, and share the next sync.
//!
//! # What always holds
//! - A commit is appended, then synced if it is to be, then visible; nothing can be read that is not as durable as asked.
//! - Commits become visible in the order in which they were staged, and those of a segment before it is to be filed.
//! - Locks are taken in this order, if several are: `settling`, `writer`, `applying`, and then those that are held for a
//!   moment.
//! - Every commit that is not in the database is in a segment whose number is greater than the one that the database
//!   says is [filed](filing), and there is such a segment at any time, with none missing before it. So a log that was
//!   taken away, and a segment that was, is noticed.
//! - After anything has failed, nothing is written any more.

mod filing;
mod frame;
mod kept;
mod memtable;
mod recovery;
mod shelf;
#[cfg(test)]
mod tests;
mod view;

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::thread::JoinHandle;

use filing::{Desk, FROZEN_MAX, Filed, Filer, Frozen};
use frame::Head;
use kept::{Keeper, Kept};
use memtable::Memtable;
use recovery::fault;
use shelf::{Segment, Shelf};

use crate::rows::{Figures, Rows, Write, WriteError};
use crate::{Durability, Fault, OpenError};

pub use filing::Filing;
pub use view::LoggedView;

/// Rows with a log in front of them.
pub struct Logged<R: Filing> {
    beneath: Arc<R>,
    shelf: Arc<Shelf>,
    state: Arc<State>,
    desk: Arc<Desk>,
    /// Who may settle.
    settling: Mutex<()>,
    writer: Mutex<Writer>,
    /// Who may apply.
    applying: Mutex<()>,
    /// Commits that are appended and not visible yet, in their order.
    staged: Mutex<VecDeque<Staged>>,
    /// Of the last frame that is known to be on the disk.
    synced: AtomicU64,
    /// Views that somebody looks at.
    views: AtomicUsize,
    /// Whether a commit may have to be on the disk, and with it all before it.
    syncs: bool,
    filer: Option<JoinHandle<()>>,
}

type State = RwLock<Visible>;

/// What a view is made of.
#[derive(Debug)]
struct Visible {
    /// The newest first. That is the one which is written to.
    memtables: Vec<Arc<Memtable>>,
    /// Segments that payloads are read from.
    kept: Kept,
    /// Of the last commit that may be seen.
    sequence: u64,
}

fn lock(state: &State) -> RwLockWriteGuard<'_, Visible> {
    state.write().unwrap_or_else(PoisonError::into_inner)
}

/// A commit that is appended.
#[derive(Debug)]
struct Staged {
    sequence: u64,
    writes: Vec<Write>,
    /// Where the value of each is in the segment; 0 if it has none.
    places: Vec<u32>,
    /// Of the segment that it was appended to.
    memtable: Arc<Memtable>,
}

/// Who appends to the log.
#[derive(Debug)]
struct Writer {
    segment: Segment,
    memtable: Arc<Memtable>,
    /// Of the last frame.
    sequence: u64,
    /// Of the last frame that has to be on the disk before it is visible.
    to_sync: u64,
    /// Rows that the segment has.
    rows: usize,
    buffer: Vec<u8>,
    /// Whether the next segment has been asked for.
    has_asked: bool,
    has_failed: bool,
}

impl<R: Filing> fmt::Debug for Logged<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logged")
            .field("shelf", &self.shelf)
            .finish_non_exhaustive()
    }
}

impl<R: Filing> Logged<R> {
    /// Puts the log that is in the directory of a store before its database, or begins one.
    ///
    /// No write is to be more durable than `durability`.
    pub(crate) fn open(
        beneath: R,
        store: &Path,
        segment_bytes: u64,
        durability: Durability,
    ) -> Result<Self, OpenError> {
        let (shelf, contents) = Shelf::open(store, segment_bytes).map_err(fault)?;
        let filed = Filed::read(&beneath.view())?;
        let upto = filed.unwrap_or_default().number;
        let (segments, kept) = kept::on_opening(&shelf, contents, upto).map_err(fault)?;
        let recovered = recovery::recover(&shelf, &segments, filed.unwrap_or_default())?;
        let filed_before = segments
            .iter()
            .take_while(|&&number| filed.is_some_and(|filed| number <= filed.number));
        for &number in filed_before {
            shelf.retire(number).map_err(fault)?;
        }
        let segment = match recovered.empty {
            Some((number, salt)) => shelf.reopen(number, salt),
            None if filed.is_some() && recovered.frozen.is_empty() => {
                return Err(recovery::missing(&shelf, recovered.number + 1));
            }
            None => shelf.prepare(recovered.number + 1, || false),
        };
        let segment = segment.map_err(fault)?;
        if filed.is_none() {
            note_log(&beneath)?;
        }
        let mut logged = Self::new(beneath, shelf, segment, recovered, kept);
        logged.syncs = durability == Durability::Fsync;
        logged.filer = Some(logged.start_filer().map_err(fault)?);
        Ok(logged)
    }

    fn new(
        beneath: R,
        shelf: Shelf,
        segment: Segment,
        recovered: recovery::Recovered,
        kept: Kept,
    ) -> Self {
        let memtable = Arc::new(Memtable::new(segment.number));
        let frozen = recovered.frozen;
        let older = frozen.iter().rev().map(|frozen| &frozen.memtable);
        let memtables = std::iter::once(&memtable).chain(older).cloned().collect();
        let state = RwLock::new(Visible {
            memtables,
            kept,
            sequence: recovered.sequence,
        });
        let desk = Desk::default();
        desk.change(|tray| tray.frozen.extend(frozen));
        let writer = Writer {
            segment,
            memtable,
            sequence: recovered.sequence,
            to_sync: recovered.sequence,
            rows: 0,
            buffer: Vec::new(),
            has_asked: false,
            has_failed: false,
        };
        Self {
            beneath: Arc::new(beneath),
            shelf: Arc::new(shelf),
            state: Arc::new(state),
            desk: Arc::new(desk),
            settling: Mutex::default(),
            writer: Mutex::new(writer),
            applying: Mutex::default(),
            staged: Mutex::default(),
            synced: AtomicU64::new(recovered.sequence),
            views: AtomicUsize::new(0),
            syncs: false,
            filer: None,
        }
    }

    fn start_filer(&self) -> io::Result<JoinHandle<()>> {
        let filer = Filer {
            beneath: Arc::clone(&self.beneath),
            shelf: Arc::clone(&self.shelf),
            state: Arc::clone(&self.state),
            desk: Arc::clone(&self.desk),
            keeper: Keeper::new(&lock(&self.state).kept),
            prepared: None,
        };
        let thread = std::thread::Builder::new().name("fila-filing".to_owned());
        thread.spawn(move || filer.run())
    }

    pub(crate) fn beneath(&self) -> &R {
        &self.beneath
    }
}

/// Notes in the database that there is a log, without which it is not to be opened any more.
fn note_log<R: Rows>(beneath: &R) -> Result<(), OpenError> {
    let written = beneath.write(Filed::default().writes().into(), Durability::Fsync);
    written.map_err(|error| OpenError::Fault(Fault::new(error)))
}

/// Bytes of memory that a row takes in a memtable, at least, beside those of its key and value. A segment is full, too,
/// when its rows take as many as it may have bytes: that of a removed row has next to none.
const ROW: u64 = 128;

/// Bytes that the buffer of frames may keep between commits.
const BUFFER: usize = 4 << 20;

/// Locks what whoever panicked with it has left as it is to be.
fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R: Filing> Logged<R> {
    fn writer(&self) -> MutexGuard<'_, Writer> {
        hold(&self.writer)
    }

    /// Gets a commit into the log, and returns where in the segment the value of each write is.
    fn append(
        &self,
        writer: &mut Writer,
        writes: &[Write],
        durability: Durability,
    ) -> Result<Vec<u32>, Fault> {
        if let Some(fault) = &self.desk.tray().fault {
            return Err(Fault::new(Arc::clone(fault)));
        }
        let segment_bytes = self.shelf.segment_bytes;
        let is_full = writer.segment.with(frame::size(writes)) > segment_bytes
            || (writer.rows + writes.len()) as u64 * ROW > segment_bytes;
        if is_full && !writer.segment.is_empty() {
            self.rotate(writer)?;
            // Whoever has filled one fills another, maybe sooner than this one is filed.
            self.ask(writer);
        }
        let head = Head {
            salt: writer.segment.salt,
            sequence: writer.sequence + 1,
            synced: self.synced.load(Ordering::Acquire),
        };
        let encoded = frame::encode(head, writes, &mut writer.buffer);
        let mut places = encoded
            .ok_or_else(|| Fault::new("a commit is larger than a frame of the log can be"))?;
        let begins = writer.segment.with(0);
        for place in places.iter_mut().filter(|place| **place > 0) {
            // One that cannot be said is none, and its row is filed whole.
            *place = u32::try_from(begins + u64::from(*place)).unwrap_or_default();
        }
        writer.segment.append(&writer.buffer).map_err(Fault::new)?;
        writer.sequence += 1;
        writer.rows += writes.len();
        if durability == Durability::Fsync {
            writer.to_sync = writer.sequence;
        }
        writer.buffer.clear();
        writer.buffer.shrink_to(BUFFER);
        let rows = writer.rows as u64 * ROW;
        if writer.segment.with(0).max(rows) > segment_bytes / 2 {
            self.ask(writer);
        }
        Ok(places)
    }

    /// Asks for the next segment, once.
    fn ask(&self, writer: &mut Writer) {
        if !std::mem::replace(&mut writer.has_asked, true) {
            let next = writer.segment.number + 1;
            self.desk.change(|tray| tray.wanted = Some(next));
        }
    }

    /// Begins the next segment, and leaves the present one to be filed.
    fn rotate(&self, writer: &mut Writer) -> Result<(), Fault> {
        if self.syncs {
            self.sync(&writer.segment.file(), writer.sequence)?;
        }
        self.apply(writer.sequence);
        let next = self.next_segment(writer)?;
        let memtable = Arc::new(Memtable::new(next.number));
        lock(&self.state).memtables.insert(0, Arc::clone(&memtable));
        let frozen = Frozen {
            bytes: writer.segment.with(0),
            sequence: writer.sequence,
            memtable: std::mem::replace(&mut writer.memtable, memtable),
        };
        writer.segment = next;
        writer.rows = 0;
        writer.has_asked = false;
        self.desk.change(|tray| tray.frozen.push_back(frozen));
        Ok(())
    }

    /// Takes the segment that was made ready, or makes one, as soon as there is room for one more to be filed.
    fn next_segment(&self, writer: &Writer) -> Result<Segment, Fault> {
        let has_asked = writer.has_asked;
        self.desk.change(|tray| tray.is_urgent = true);
        let mut tray = self.desk.wait_while(|tray| {
            let has_room = tray.frozen.len() < FROZEN_MAX;
            // One that is being made is waited for: there cannot be two of a number.
            let is_made = !has_asked || tray.ready.is_some() || tray.wanted.is_some();
            tray.fault.is_none() && !(has_room && is_made)
        });
        tray.is_urgent = false;
        if let Some(fault) = &tray.fault {
            return Err(Fault::new(Arc::clone(fault)));
        }
        if let Some(ready) = tray.ready.take() {
            return Ok(ready);
        }
        // The thread has had no time for it.
        tray.wanted = None;
        drop(tray);
        let next = self.shelf.prepare(writer.segment.number + 1, || false);
        next.map_err(Fault::new)
    }

    /// Files everything, so that the log has nothing to say when the store is opened again.
    fn close(&self) {
        let mut writer = self.writer();
        if !writer.has_failed && !writer.segment.is_empty() {
            // If it fails, the log is read the next time.
            let _ = self.rotate(&mut writer);
        }
        self.desk.change(|tray| {
            tray.wanted = None;
            tray.is_closing = true;
        });
    }
}

impl<R: Filing> Logged<R> {
    /// Returns when everything up to this frame is on the disk, which is in this file, or was synced with an earlier one.
    fn sync(&self, file: &File, sequence: u64) -> Result<(), Fault> {
        if self.synced.load(Ordering::Acquire) < sequence {
            file.sync_data().map_err(Fault::new)?;
            self.synced.fetch_max(sequence, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Makes staged commits visible, up to this one.
    fn apply(&self, sequence: u64) {
        let _applying = hold(&self.applying);
        while let Some(staged) = self.next_staged(sequence) {
            let mut visible = lock(&self.state);
            let keeps_older = self.views.load(Ordering::Acquire) > 0;
            staged
                .memtable
                .apply(staged.sequence, staged.writes, &staged.places, keeps_older);
            visible.sequence = staged.sequence;
        }
    }

    fn next_staged(&self, upto: u64) -> Option<Staged> {
        let mut staged = hold(&self.staged);
        let is_next = staged.front().is_some_and(|next| next.sequence <= upto);
        is_next.then(|| staged.pop_front()).flatten()
    }
}

impl<R: Filing> Drop for Logged<R> {
    fn drop(&mut self) {
        self.close();
        if let Some(filer) = self.filer.take() {
            // One that has panicked has said so to the writers.
            let _ = filer.join();
        }
    }
}

impl<R: Filing> Rows for Logged<R> {
    type View<'a> = LoggedView<'a, R::View<'a>>;

    fn view(&self) -> LoggedView<'_, R::View<'_>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        // Counted while no commit is being applied, so that none overwrites what is seen here.
        self.views.fetch_add(1, Ordering::Acquire);
        LoggedView {
            memtables: state.memtables.clone(),
            _kept: Arc::clone(&state.kept),
            shelf: &self.shelf,
            sequence: state.sequence,
            // After the memtables were looked at: what is no longer among them is in the database by now.
            beneath: self.beneath.view(),
            views: &self.views,
        }
    }

    fn write(&self, writes: Vec<Write>, durability: Durability) -> Result<(), WriteError> {
        self.stage(writes, durability)?;
        self.settle()
    }

    fn stage(&self, writes: Vec<Write>, durability: Durability) -> Result<(), WriteError> {
        let mut writer = self.writer();
        if writer.has_failed {
            return Err(WriteError::Poisoned);
        }
        let places = match self.append(&mut writer, &writes, durability) {
            Ok(places) => places,
            Err(fault) => {
                writer.has_failed = true;
                return Err(WriteError::Unknown(fault));
            }
        };
        let staged = Staged {
            sequence: writer.sequence,
            writes,
            places,
            memtable: Arc::clone(&writer.memtable),
        };
        hold(&self.staged).push_back(staged);
        Ok(())
    }

    fn settle(&self) -> Result<(), WriteError> {
        let _settling = hold(&self.settling);
        let writer = self.writer();
        if writer.has_failed {
            let fault = Fault::new("a later write has failed, or the sync");
            return Err(WriteError::Unknown(fault));
        }
        let (file, sequence, to_sync) = (writer.segment.file(), writer.sequence, writer.to_sync);
        drop(writer);
        // More is appended meanwhile, and is not covered.
        if self.synced.load(Ordering::Acquire) < to_sync
            && let Err(fault) = self.sync(&file, sequence)
        {
            self.writer().has_failed = true;
            return Err(WriteError::Unknown(fault));
        }
        self.apply(sequence);
        Ok(())
    }

    fn tend(&self) -> Result<(), Fault> {
        self.beneath.tend()
    }

    fn figures(&self) -> Result<Figures, Fault> {
        let beneath = self.beneath.figures()?;
        let waiting = self.desk.tray().frozen.len();
        Ok(Figures {
            bytes: beneath.bytes + self.shelf.bytes().map_err(Fault::new)?,
            // One journal it always has, which is next to empty.
            journals: beneath.journals.saturating_sub(1) + waiting + 1,
        })
    }
}
