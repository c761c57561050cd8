//! Times in JSON: whole numbers, in the unit that the field's name ends in.

use std::time::Duration;

use serde::{Serialize, Serializer};

pub(crate) fn millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(crate::message::millis(*time))
}

pub(crate) fn some_millis<S: Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    time.map(crate::message::millis).serialize(serializer)
}

pub(crate) fn micros<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}
