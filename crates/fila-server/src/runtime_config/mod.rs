//! The runtime configuration: a small table of texts that operators change while the server runs.
//!
//! Pure: what a state of it is ([`Entries`]), what may be in it (the rules below), and what it says of throttles
//! ([`Throttles`]). A state never changes; a change makes another one, which shares all other entries with the one
//! before. So whoever has a state reads it without a lock, for as long as they like, and sees one moment of it. Who
//! writes them, and in which order, is the business of [`runtime`](crate::runtime).
//!
//! Rules. A key has no control characters and no spaces at its ends, so that it can stand in a log line. Keys that
//! begin with `throttle:` are settings of throttles and nothing else: what is misspelt there would silently have no
//! effect, so it is refused. All other keys are free, and their values are any text.

mod entries;
mod rules;
mod throttle;

pub use entries::{Entries, Entry};
pub use rules::InvalidEntry;
pub use throttle::{Burst, Rate, ThrottleSetting, Throttles};

pub(crate) use rules::check;
