//! The runtime configuration: a small table of texts that operators change while the server runs.
//!
//! Pure code: one state of it ([`Entries`]), its rules (below), and its throttles ([`Throttles`]). A state never changes; a
//! change makes another state, which shares all other entries. So a reader needs no lock and sees one moment of the
//! configuration. [`runtime`](crate::runtime) writes the entries.
//!
//! Rules. A key has no control characters and no spaces at its ends, so that it fits into a log line. Keys that begin with
//! `throttle:` are settings of throttles only: a misspelt one would have no effect, so the server rejects it. All other
//! keys are free, and their values are any text.

mod entries;
mod rules;
mod throttle;

pub use entries::{Entries, Entry};
pub use rules::InvalidEntry;
pub use throttle::{Burst, Rate, ThrottleSetting, Throttles};

pub(crate) use rules::check;
