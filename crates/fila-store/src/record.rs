//! The encoding of records as bytes, and the checks that decoding makes.
//!
//! Every record is framed alike: a byte for its kind, a byte for the version of that kind, the fields, and a CRC32C
//! over the row's key and all of the record before it. Because the checksum covers the key, a record under a wrong key is
//! refused as well. The frame is the same in all versions; only the fields change.
//!
//! Decoding never panics, whatever the bytes: engines, tests and fuzzers all call [`decode`]. Numbers are big-endian.
//! `docs/internal/storage-format.md` lists every field, and a test checks the bytes against it.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Death, DeathReason, DeduplicationId, ErrorText, FairnessKey, GroupWeights, History, MessageId,
    Meta, OutOfRange, Payload, PayloadError, QueueName, Schedule, Sizes, ThrottleKey, Timestamp,
    Version, keys,
};

/// Kind and version.
const HEAD: usize = 2;
/// The checksum.
const TAIL: usize = 4;

/// The first version of every kind, and the only one of most.
const VERSION: u8 = 1;
/// The version of a message with weights of groups. A message without them has version 1, so that earlier programs read it.
const VERSION_OF_GROUPS: u8 = 2;

const DELIVER_AFTER: u8 = 1 << 0;
const EXPIRES_AT: u8 = 1 << 1;
const DEDUPLICATION_ID: u8 = 1 << 2;
const THROTTLE_KEYS: u8 = 1 << 3;
const HISTORY: u8 = 1 << 4;
/// Set in version 2, and only there.
const GROUP_WEIGHTS: u8 = 1 << 5;
const FLAGS: u8 =
    DELIVER_AFTER | EXPIRES_AT | DEDUPLICATION_ID | THROTTLE_KEYS | HISTORY | GROUP_WEIGHTS;

/// Why a record cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It ends too early.
    #[error("record ends after {found} bytes where {needed} are needed")]
    Truncated {
        /// Bytes that a field needs.
        needed: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// The record, or the key that it is under, differs from what was written.
    #[error("checksum is {computed:08x} where {stored:08x} was stored")]
    Checksum {
        /// The checksum in the record.
        stored: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// It is a record of another kind.
    #[error("record is of kind {found} where {expected} was expected")]
    Kind {
        /// The kind that belongs there.
        expected: u8,
        /// The kind that is there.
        found: u8,
    },
    /// A later version wrote it.
    #[error("record of kind {kind} has version {version}, which is not known here")]
    UnknownVersion {
        /// Its kind.
        kind: u8,
        /// Its version.
        version: u8,
    },
    /// A field has a value that the encoder never writes.
    #[error("{0} out of range")]
    OutOfRange(&'static str),
    /// It goes on after its last field.
    #[error("{0} bytes after the last field")]
    TrailingBytes(usize),
    /// The row that should hold it is not there.
    #[error("record is missing")]
    Missing,
}

/// The kind of a record: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Number = 1,
    Queue = 2,
    Config = 3,
    Meta = 4,
    Payload = 5,
    Remembered = 6,
    ValuePointer = 7,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 7] = [
        Self::Number,
        Self::Queue,
        Self::Config,
        Self::Meta,
        Self::Payload,
        Self::Remembered,
        Self::ValuePointer,
    ];

    /// Returns the latest version of the kind.
    pub(crate) const fn newest(self) -> u8 {
        match self {
            Self::Meta => VERSION_OF_GROUPS,
            Self::Number
            | Self::Queue
            | Self::Config
            | Self::Payload
            | Self::Remembered
            | Self::ValuePointer => VERSION,
        }
    }
}

/// A decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A number of the catalogue: schema, epoch, counters, generations, ids by name.
    Number(u64),
    /// A queue's definition.
    Queue {
        /// The state of the definition.
        version: Version,
        /// The name of the queue.
        name: QueueName,
        /// The definition, which the store does not interpret.
        definition: Bytes,
    },
    /// An entry of the runtime configuration.
    Config {
        /// Its state.
        version: Version,
        /// Its value.
        value: Bytes,
    },
    /// The metadata of a message. The fairness key comes from the row's key.
    Meta(Meta),
    /// The payload of a message.
    Payload(Payload),
    /// Which message a deduplication id stands for.
    Remembered {
        /// The message.
        id: MessageId,
        /// Until when.
        expires_at: Timestamp,
    },
    /// The position in the log of the payload of a message.
    ValuePointer(ValuePointer),
}

/// The position of a record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuePointer {
    /// The number of the segment.
    pub segment: u64,
    /// The first byte of the record in it.
    pub at: u32,
    /// Bytes of the record.
    pub length: u32,
}

/// Decodes the record that was found under `key`, whatever its kind.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode(key: &[u8], record: &[u8]) -> Result<Record, DecodeError> {
    let found = *record.first().ok_or(DecodeError::Truncated {
        needed: HEAD + TAIL,
        found: 0,
    })?;
    match Kind::ALL.into_iter().find(|&kind| kind as u8 == found) {
        Some(kind) => decode_as(kind, key, record),
        None => Err(DecodeError::OutOfRange("kind of a record")),
    }
}

/// Decodes a record that is expected to be of this kind.
pub(crate) fn decode_as(kind: Kind, key: &[u8], record: &[u8]) -> Result<Record, DecodeError> {
    match kind {
        Kind::Number => decode_number(key, record).map(Record::Number),
        Kind::Queue => decode_queue(key, record).map(|(version, name, definition)| Record::Queue {
            version,
            name,
            definition,
        }),
        Kind::Config => {
            decode_config(key, record).map(|(version, value)| Record::Config { version, value })
        }
        Kind::Meta => {
            let (fairness_key, _) = keys::parse_message(key)?;
            decode_meta(key, record, fairness_key).map(Record::Meta)
        }
        Kind::Payload => decode_payload(key, record).map(Record::Payload),
        Kind::Remembered => decode_remembered(key, record)
            .map(|(id, expires_at)| Record::Remembered { id, expires_at }),
        Kind::ValuePointer => decode_value_pointer(key, record).map(Record::ValuePointer),
    }
}

/// Encodes a record of any kind, for the row of `key`. This and the functions below append to `bytes`.
pub(crate) fn encode(bytes: &mut Vec<u8>, key: &[u8], record: &Record) {
    match record {
        Record::Number(number) => encode_number(bytes, key, *number),
        Record::Queue {
            version,
            name,
            definition,
        } => encode_queue(bytes, key, *version, name, definition),
        Record::Config { version, value } => encode_config(bytes, key, *version, value),
        Record::Meta(meta) => encode_meta(bytes, key, meta),
        Record::Payload(payload) => encode_payload(bytes, key, payload),
        Record::Remembered { id, expires_at } => encode_remembered(bytes, key, *id, *expires_at),
        Record::ValuePointer(pointer) => encode_value_pointer(bytes, key, *pointer),
    }
}

pub(crate) fn encode_number(bytes: &mut Vec<u8>, key: &[u8], number: u64) {
    let mut writer = Writer::new(bytes, Kind::Number, 8);
    writer.u64(number);
    writer.seal(key);
}

pub(crate) fn decode_number(key: &[u8], record: &[u8]) -> Result<u64, DecodeError> {
    let mut reader = Reader::open(Kind::Number, key, record)?;
    let number = reader.u64()?;
    reader.end(number)
}

pub(crate) fn encode_queue(
    bytes: &mut Vec<u8>,
    key: &[u8],
    version: Version,
    name: &QueueName,
    definition: &[u8],
) {
    let name = name.as_str().as_bytes();
    let mut writer = Writer::new(bytes, Kind::Queue, 8 + 1 + name.len() + definition.len());
    writer.u64(version.get());
    writer.short(name);
    writer.bytes(definition);
    writer.seal(key);
}

pub(crate) fn decode_queue(
    key: &[u8],
    record: &[u8],
) -> Result<(Version, QueueName, Bytes), DecodeError> {
    let mut reader = Reader::open(Kind::Queue, key, record)?;
    let version = Version::new(reader.u64()?);
    let name = text(reader.short()?, "text of a queue's name")?;
    let name = QueueName::parse(&name).map_err(out_of_range)?;
    Ok((version, name, reader.rest()))
}

pub(crate) fn encode_config(bytes: &mut Vec<u8>, key: &[u8], version: Version, value: &[u8]) {
    let mut writer = Writer::new(bytes, Kind::Config, 8 + value.len());
    writer.u64(version.get());
    writer.bytes(value);
    writer.seal(key);
}

pub(crate) fn decode_config(key: &[u8], record: &[u8]) -> Result<(Version, Bytes), DecodeError> {
    let mut reader = Reader::open(Kind::Config, key, record)?;
    let version = Version::new(reader.u64()?);
    Ok((version, reader.rest()))
}

pub(crate) fn encode_remembered(
    bytes: &mut Vec<u8>,
    key: &[u8],
    id: MessageId,
    expires_at: Timestamp,
) {
    let mut writer = Writer::new(bytes, Kind::Remembered, 16);
    writer.u64(id.get());
    writer.u64(expires_at.as_millis());
    writer.seal(key);
}

pub(crate) fn decode_remembered(
    key: &[u8],
    record: &[u8],
) -> Result<(MessageId, Timestamp), DecodeError> {
    let mut reader = Reader::open(Kind::Remembered, key, record)?;
    let id = MessageId::from_number(reader.u64()?);
    let expires_at = Timestamp::from_millis(reader.u64()?);
    reader.end((id, expires_at))
}

pub(crate) fn encode_value_pointer(bytes: &mut Vec<u8>, key: &[u8], pointer: ValuePointer) {
    let mut writer = Writer::new(bytes, Kind::ValuePointer, 16);
    writer.u64(pointer.segment);
    writer.u32(pointer.at);
    writer.u32(pointer.length);
    writer.seal(key);
}

/// Returns the pointer in this record, or nothing if the record is damaged or of another kind.
pub(crate) fn as_value_pointer(key: &[u8], record: &[u8]) -> Option<ValuePointer> {
    let is_pointer = record.first() == Some(&(Kind::ValuePointer as u8));
    is_pointer
        .then(|| decode_value_pointer(key, record).ok())
        .flatten()
}

pub(crate) fn decode_value_pointer(key: &[u8], record: &[u8]) -> Result<ValuePointer, DecodeError> {
    let mut reader = Reader::open(Kind::ValuePointer, key, record)?;
    let pointer = ValuePointer {
        segment: reader.u64()?,
        at: reader.u32()?,
        length: reader.u32()?,
    };
    reader.end(pointer)
}

pub(crate) fn encode_meta(bytes: &mut Vec<u8>, key: &[u8], meta: &Meta) {
    let deduplication_id = meta.deduplication_id.as_ref();
    let named = deduplication_id.map_or(0, |id| 1 + id.as_bytes().len());
    let Schedule {
        fairness_key: _, // It is in the key of the row.
        weight,
        group_weights,
        throttle_keys,
    } = &meta.schedule;
    let throttled: usize = throttle_keys.iter().map(|key| 2 + key.as_str().len()).sum();
    let (version, grouped) = if group_weights.is_empty() {
        (VERSION, 0)
    } else {
        (VERSION_OF_GROUPS, GROUP_WEIGHTS)
    };
    let mut writer =
        Writer::of_version(bytes, Kind::Meta, version, 25 + 16 + named + 1 + throttled);
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    writer.u8(flag(meta.deliver_after.is_some(), DELIVER_AFTER)
        | flag(meta.expires_at.is_some(), EXPIRES_AT)
        | flag(deduplication_id.is_some(), DEDUPLICATION_ID)
        | flag(!throttle_keys.is_empty(), THROTTLE_KEYS)
        | flag(meta.history.is_some(), HISTORY)
        | grouped);
    writer.u32(weight.get());
    writer.u64(meta.enqueued_at.as_millis());
    writer.u32(meta.attempts);
    writer.u32(meta.sizes.headers);
    writer.u32(meta.sizes.body);
    for moment in [meta.deliver_after, meta.expires_at].into_iter().flatten() {
        writer.u64(moment.as_millis());
    }
    if let Some(id) = deduplication_id {
        writer.short(id.as_bytes());
    }
    if !throttle_keys.is_empty() {
        // The broker refuses longer lists than the format holds.
        let keys = &throttle_keys[..throttle_keys.len().min(Schedule::THROTTLE_KEYS_MAX)];
        writer.u8(keys.len() as u8);
        for key in keys {
            writer.u16(key.as_str().len() as u16);
            writer.bytes(key.as_str().as_bytes());
        }
    }
    if let Some(history) = &meta.history {
        encode_history(&mut writer, history);
    }
    if !group_weights.is_empty() {
        encode_group_weights(&mut writer, group_weights);
    }
    writer.seal(key);
}

fn encode_group_weights(writer: &mut Writer<'_>, weights: &GroupWeights) {
    writer.u8(weights.iter().fold(0, |set, (level, _)| set | 1 << level));
    for (_, weight) in weights.iter() {
        writer.u32(weight.get());
    }
}

fn encode_history(writer: &mut Writer<'_>, history: &History) {
    writer.u64(history.first_failed_at.as_millis());
    writer.u64(history.last_failed_at.as_millis());
    let error = history.last_error.as_str().as_bytes();
    // The cast is safe: an error's text exists only within its limit.
    writer.u16(error.len() as u16);
    writer.bytes(error);
    let Some(death) = &history.death else {
        return writer.u8(0);
    };
    writer.u8(death.reason.code());
    writer.u64(death.message.get());
    writer.u32(death.attempts);
    writer.u64(death.died_at.as_millis());
    writer.u64(death.enqueued_at.as_millis());
    writer.short(death.queue.as_str().as_bytes());
}

pub(crate) fn decode_meta(
    key: &[u8],
    record: &[u8],
    fairness_key: FairnessKey,
) -> Result<Meta, DecodeError> {
    let mut reader = Reader::open(Kind::Meta, key, record)?;
    let flags = decode_flags(&mut reader)?;
    let weight = NonZeroU32::new(reader.u32()?);
    let weight = weight.ok_or(DecodeError::OutOfRange("weight of a message"))?;
    let enqueued_at = Timestamp::from_millis(reader.u64()?);
    let attempts = reader.u32()?;
    let sizes = Sizes {
        headers: reader.u32()?,
        body: reader.u32()?,
    };
    let mut moment = |flag| {
        let set = flags & flag != 0;
        set.then(|| reader.u64().map(Timestamp::from_millis))
            .transpose()
    };
    let deliver_after = moment(DELIVER_AFTER)?;
    let expires_at = moment(EXPIRES_AT)?;
    let deduplication_id = if flags & DEDUPLICATION_ID == 0 {
        None
    } else {
        let id = Bytes::copy_from_slice(reader.short()?);
        Some(DeduplicationId::new(id).map_err(out_of_range)?)
    };
    let throttle_keys = if flags & THROTTLE_KEYS == 0 {
        Box::default()
    } else {
        decode_throttle_keys(&mut reader)?
    };
    let history = if flags & HISTORY == 0 {
        None
    } else {
        Some(Arc::new(decode_history(&mut reader)?))
    };
    let group_weights = if flags & GROUP_WEIGHTS == 0 {
        GroupWeights::NONE
    } else {
        decode_group_weights(&mut reader)?
    };
    reader.end(Meta {
        schedule: Schedule {
            fairness_key,
            weight,
            group_weights,
            throttle_keys,
        },
        enqueued_at,
        deliver_after,
        expires_at,
        attempts,
        deduplication_id,
        history,
        sizes,
    })
}

fn decode_flags(reader: &mut Reader<'_>) -> Result<u8, DecodeError> {
    let flags = reader.u8()?;
    let is_grouped = flags & GROUP_WEIGHTS != 0;
    if flags & !FLAGS != 0 || is_grouped != (reader.version == VERSION_OF_GROUPS) {
        return Err(DecodeError::OutOfRange("flags of a message"));
    }
    Ok(flags)
}

fn decode_group_weights(reader: &mut Reader<'_>) -> Result<GroupWeights, DecodeError> {
    let set = reader.u8()?;
    if set == 0 || set >= 1 << GroupWeights::LEVELS {
        return Err(DecodeError::OutOfRange("levels of groups"));
    }
    let mut weights = GroupWeights::NONE;
    for level in (0..GroupWeights::LEVELS).filter(|level| set & 1 << level != 0) {
        let weight = NonZeroU32::new(reader.u32()?);
        let weight = weight.ok_or(DecodeError::OutOfRange("weight of a group"))?;
        weights.set(level, weight);
    }
    Ok(weights)
}

fn decode_history(reader: &mut Reader<'_>) -> Result<History, DecodeError> {
    let first_failed_at = Timestamp::from_millis(reader.u64()?);
    let last_failed_at = Timestamp::from_millis(reader.u64()?);
    let length = usize::from(reader.u16()?);
    if length > ErrorText::MAX {
        return Err(DecodeError::OutOfRange("length of an error's text"));
    }
    let last_error = text(reader.take(length)?, "text of an error")?;
    let death = match reader.u8()? {
        0 => None,
        code => {
            let reason = DeathReason::from_code(code);
            let reason = reason.ok_or(DecodeError::OutOfRange("reason of a dead letter"))?;
            let message = MessageId::from_number(reader.u64()?);
            let attempts = reader.u32()?;
            let died_at = Timestamp::from_millis(reader.u64()?);
            let enqueued_at = Timestamp::from_millis(reader.u64()?);
            let queue = text(reader.short()?, "text of a queue's name")?;
            Some(Death {
                reason,
                queue: QueueName::parse(&queue).map_err(out_of_range)?,
                message,
                attempts,
                died_at,
                enqueued_at,
            })
        }
    };
    Ok(History {
        last_error: ErrorText::new(&last_error),
        first_failed_at,
        last_failed_at,
        death,
    })
}

fn decode_throttle_keys(reader: &mut Reader<'_>) -> Result<Box<[ThrottleKey]>, DecodeError> {
    let count = reader.u8()?;
    if count == 0 {
        return Err(DecodeError::OutOfRange("number of throttle keys"));
    }
    (0..count)
        .map(|_| {
            let length = usize::from(reader.u16()?);
            let key = text(reader.take(length)?, "text of a throttle key")?;
            ThrottleKey::parse(&key).map_err(out_of_range)
        })
        .collect()
}

pub(crate) fn encode_payload(bytes: &mut Vec<u8>, key: &[u8], payload: &Payload) {
    let sizes = payload.sizes();
    let headers = payload.headers();
    let length = 2 + headers.len() * 8 + sizes.headers as usize + sizes.body as usize;
    let mut writer = Writer::new(bytes, Kind::Payload, length);
    // The casts are safe: a payload exists only within its limits.
    writer.u16(headers.len() as u16);
    for (name, value) in headers {
        for text in [name, value] {
            writer.u32(text.len() as u32);
            writer.bytes(text.as_bytes());
        }
    }
    writer.bytes(payload.body());
    writer.seal(key);
}

pub(crate) fn decode_payload(key: &[u8], record: &[u8]) -> Result<Payload, DecodeError> {
    let mut reader = Reader::open(Kind::Payload, key, record)?;
    let count = usize::from(reader.u16()?);
    // Bounds the count before the allocation: a header takes at least eight bytes.
    let mut headers = Vec::with_capacity(count.min(reader.left() / 8));
    for _ in 0..count {
        let name = text(reader.long()?, "text of a header's name")?;
        let value = text(reader.long()?, "text of a header's value")?;
        headers.push((name, value));
    }
    Payload::new(headers, reader.rest()).map_err(|error| match error {
        PayloadError::Headers(error) | PayloadError::Body(error) => out_of_range(error),
    })
}

fn text(bytes: &[u8], what: &'static str) -> Result<String, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::OutOfRange(what))?;
    Ok(text.to_owned())
}

fn out_of_range(error: OutOfRange) -> DecodeError {
    DecodeError::OutOfRange(error.what)
}

fn checksum(key: &[u8], framed: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), framed)
}

/// Returns what `encode` appends.
pub(crate) fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes.into()
}

/// Appends a valid checksum to any bytes.
pub(crate) fn sealed(key: &[u8], framed: &[u8]) -> Bytes {
    encoded(|bytes| {
        bytes.extend_from_slice(framed);
        Writer { bytes, start: 0 }.seal(key);
    })
}

/// Writes a record, with its frame, behind other bytes.
struct Writer<'a> {
    bytes: &'a mut Vec<u8>,
    /// Where the record begins.
    start: usize,
}

impl<'a> Writer<'a> {
    fn new(bytes: &'a mut Vec<u8>, kind: Kind, fields: usize) -> Self {
        Self::of_version(bytes, kind, VERSION, fields)
    }

    fn of_version(bytes: &'a mut Vec<u8>, kind: Kind, version: u8, fields: usize) -> Self {
        let start = bytes.len();
        bytes.reserve(HEAD + fields + TAIL);
        bytes.extend_from_slice(&[kind as u8, version]);
        Self { bytes, start }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn u8(&mut self, number: u8) {
        self.bytes.push(number);
    }

    fn u16(&mut self, number: u16) {
        self.bytes(&number.to_be_bytes());
    }

    fn u32(&mut self, number: u32) {
        self.bytes(&number.to_be_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.bytes(&number.to_be_bytes());
    }

    /// Writes up to 255 bytes after their number; names and deduplication ids are no longer than that.
    fn short(&mut self, bytes: &[u8]) {
        self.u8(bytes.len() as u8);
        self.bytes(bytes);
    }

    fn seal(mut self, key: &[u8]) {
        let checksum = checksum(key, &self.bytes[self.start..]);
        self.u32(checksum);
    }
}

/// Reads the fields of a record whose frame has been checked.
struct Reader<'a> {
    version: u8,
    fields: &'a [u8],
}

impl<'a> Reader<'a> {
    fn open(kind: Kind, key: &[u8], record: &'a [u8]) -> Result<Self, DecodeError> {
        if record.len() < HEAD + TAIL {
            return Err(DecodeError::Truncated {
                needed: HEAD + TAIL,
                found: record.len(),
            });
        }
        let end = record.len() - TAIL;
        let (framed, stored) = record.split_at(end);
        let mut bytes = [0; TAIL];
        bytes.copy_from_slice(stored);
        let stored = u32::from_be_bytes(bytes);
        let computed = checksum(key, framed);
        if stored != computed {
            return Err(DecodeError::Checksum { stored, computed });
        }
        if framed[0] != kind as u8 {
            return Err(DecodeError::Kind {
                expected: kind as u8,
                found: framed[0],
            });
        }
        if !(VERSION..=kind.newest()).contains(&framed[1]) {
            return Err(DecodeError::UnknownVersion {
                kind: framed[0],
                version: framed[1],
            });
        }
        Ok(Self {
            version: framed[1],
            fields: &framed[HEAD..],
        })
    }

    fn left(&self) -> usize {
        self.fields.len()
    }

    fn truncated(&self, needed: usize) -> DecodeError {
        DecodeError::Truncated {
            needed,
            found: self.fields.len(),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let taken = self.fields.split_at_checked(length);
        let (taken, rest) = taken.ok_or_else(|| self.truncated(length))?;
        self.fields = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let taken = self.fields.split_first_chunk();
        let (taken, rest) = taken.ok_or_else(|| self.truncated(N))?;
        self.fields = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    fn short(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::from(self.u8()?);
        self.take(length)
    }

    fn long(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    /// Returns a copy of the remaining bytes. A slice would keep the whole block or segment of the row in memory.
    fn rest(self) -> Bytes {
        Bytes::copy_from_slice(self.fields)
    }

    fn end<T>(self, value: T) -> Result<T, DecodeError> {
        if self.fields.is_empty() {
            Ok(value)
        } else {
            Err(DecodeError::TrailingBytes(self.fields.len()))
        }
    }
}

#[cfg(test)]
mod tests;
