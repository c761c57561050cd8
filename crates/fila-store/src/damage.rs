//! The missing and damaged parts of a store: how an opening reports one, and what is lost without it.

use std::fmt;
use std::path::PathBuf;

use crate::rows::Table;

/// A missing or damaged file. The store does not open with it: going on would lose confirmed data without a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreDamage {
    /// The directory of the store.
    pub store: PathBuf,
    /// The file.
    pub path: PathBuf,
    /// How it is damaged, as a predicate: "is missing".
    pub how: &'static str,
    /// The part of the store that it belongs to.
    pub part: DamagedPart,
}

/// Commits at the end of the log that could not be read when the store was opened, and were dropped.
///
/// After a crash these are commits that were being written and not confirmed. If the machine did not crash, the disk has
/// damaged the end of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornLog {
    /// The segment.
    pub path: PathBuf,
    /// How many commits, about.
    pub commits: u64,
}

/// The part of a store that a damaged file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamagedPart {
    /// All tables.
    Tables,
    /// The file that names the manifest of a table.
    Current(Table),
    /// The manifest of a table: the list of its files.
    Manifest(Table),
    /// A file with rows of a table.
    TableFile(Table, u64),
    /// A segment of the log.
    Segment {
        /// Its number.
        number: u64,
        /// Where its last whole frame ends; none if the segment cannot be read at all.
        end: Option<u64>,
    },
    /// A segment that keeps payloads.
    Blob(u64),
}

impl DamagedPart {
    /// Returns what is lost if the store goes on without the part.
    pub fn loss(self) -> &'static str {
        match self {
            Self::Tables | Self::Manifest(Table::Catalog) | Self::TableFile(Table::Catalog, _) => {
                "all queues, messages and settings would be lost"
            }
            Self::Current(Table::Catalog) => {
                "all queues, messages and settings would be lost if the manifest beside it is damaged, too"
            }
            Self::Current(_) => {
                "the rows of this table would be lost if the manifest beside it is damaged, too"
            }
            Self::Manifest(Table::Messages) => {
                "all messages that have left the log for the tables would be lost"
            }
            Self::Manifest(Table::Payloads) => {
                "the payloads of all messages that have left the log for the tables would be lost, and the messages reported \
                 as damaged"
            }
            Self::Manifest(Table::Deduplication) => {
                "deduplication ids would be forgotten, and messages sent again would be stored twice"
            }
            Self::TableFile(Table::Messages, _) => {
                "messages would be lost, and acknowledged ones could come back"
            }
            Self::TableFile(Table::Payloads, _) => {
                "payloads would be lost, and their messages reported as damaged"
            }
            Self::TableFile(Table::Deduplication, _) => {
                "some deduplication ids would be forgotten, and messages sent again would be stored twice"
            }
            Self::Segment { .. } => {
                "confirmed messages and changes from there on would be lost, and acknowledged messages would come back"
            }
            Self::Blob(_) => "its payloads would be lost, and their messages reported as damaged",
        }
    }
}

impl StoreDamage {
    /// Returns what is damaged and what is lost with it, without the remedy.
    pub fn description(&self) -> String {
        let (path, how, loss) = (self.path.display(), self.how, self.part.loss());
        format!("`{path}` {how}; without it {loss}")
    }
}

impl fmt::Display for StoreDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; put the file back or restore a copy, or accept the loss with `fila store repair {} \
             --accept-loss`",
            self.description(),
            self.store.display(),
        )
    }
}

impl std::error::Error for StoreDamage {}
