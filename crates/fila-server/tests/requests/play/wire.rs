//! Requests as bytes: how an input names them, and how they get to the server as they are.

use bytes::{Buf, BufMut, Bytes};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Status, codec};

/// The calls that an input can make, by number. Zero and larger numbers wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Call(&'static str),
    Produce,
    Consume,
    Work,
    Redrive,
    /// The client goes away from the stream without a word.
    HangUp(Stream),
    /// The client says that no more requests come.
    Finish(Stream),
    /// The client waits for deliveries.
    Listen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Produce,
    Consume,
    Work,
}

pub(crate) const STEPS: [Step; 37] = [
    Step::Call("FilaService/Enqueue"),
    Step::Call("FilaService/EnqueueBatch"),
    Step::Produce,
    Step::Consume,
    Step::Work,
    Step::Call("FilaService/Ack"),
    Step::Call("FilaService/AckBatch"),
    Step::Call("FilaService/Nack"),
    Step::Call("FilaService/NackBatch"),
    Step::Call("FilaService/Extend"),
    Step::Call("FilaService/Peek"),
    Step::Call("FilaAdmin/CreateQueue"),
    Step::Call("FilaAdmin/DeleteQueue"),
    Step::Call("FilaAdmin/UpdateQueue"),
    Step::Call("FilaAdmin/PurgeQueue"),
    Step::Call("FilaAdmin/ListQueues"),
    Step::Call("FilaAdmin/InspectQueue"),
    Step::Call("FilaAdmin/PauseQueue"),
    Step::Call("FilaAdmin/ResumeQueue"),
    Step::Call("FilaAdmin/ListKeys"),
    Step::Call("FilaAdmin/UpdateKey"),
    Step::Call("FilaAdmin/ExplainKey"),
    Step::Redrive,
    Step::Call("FilaAdmin/SetConfig"),
    Step::Call("FilaAdmin/GetConfig"),
    Step::Call("FilaAdmin/ListConfig"),
    Step::Call("FilaAdmin/DeleteConfig"),
    Step::Call("FilaAdmin/ServerInfo"),
    Step::HangUp(Stream::Produce),
    Step::HangUp(Stream::Consume),
    Step::HangUp(Stream::Work),
    Step::Finish(Stream::Produce),
    Step::Finish(Stream::Work),
    Step::Listen,
    Step::Call("FilaService/Receive"),
    Step::Call("FilaService/Release"),
    Step::Call("FilaService/ExtendBatch"),
];

/// Takes an input apart: it is a message of protobuf, whose fields are requests, and whose numbers say what for. So
/// `protoc --decode_raw` shows what it is. A length beyond the end goes to the end.
pub(crate) fn steps(mut input: &[u8]) -> Vec<(Step, Bytes)> {
    let mut steps = Vec::new();
    while !input.is_empty() {
        let number = varint(&mut input) >> 3;
        let length = varint(&mut input).min(input.len() as u64) as usize;
        let (body, rest) = input.split_at(length);
        input = rest;
        let step = STEPS[(number.wrapping_sub(1) % STEPS.len() as u64) as usize];
        steps.push((step, Bytes::copy_from_slice(body)));
    }
    steps
}

fn varint(input: &mut &[u8]) -> u64 {
    let mut number = 0;
    for place in (0..64).step_by(7) {
        let Some((&byte, rest)) = input.split_first() else {
            break;
        };
        *input = rest;
        number |= u64::from(byte & 0x7f) << place;
        if byte < 0x80 {
            break;
        }
    }
    number
}

/// Requests and responses that are bytes already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }

    fn buffer_settings(&self) -> codec::BufferSettings {
        codec::BufferSettings::default()
    }
}
