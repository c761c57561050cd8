//! Frames of messages that a client keeps while it sends them.

use std::sync::Arc;

use prost::Message;
use tonic::client::Grpc;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{IntoStreamingRequest, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::v1::{BatchId, ProduceRequest, ProduceResponse};

/// A frame of the call `Produce` whose messages the sender keeps, to send them again if the stream breaks.
#[derive(Clone, Debug)]
pub struct SharedFrame {
    /// The frame, without a batch id.
    pub frame: Arc<ProduceRequest>,
    /// The batch id, which says something else each time the frame is sent.
    pub batch_id: BatchId,
}

/// Makes the call `Produce` with frames that the sender keeps. A frame has at most `frame_max` bytes, in both directions.
///
/// # Errors
/// If the server refuses the call or is away.
pub async fn produce_shared(
    channel: Channel,
    frame_max: usize,
    frames: impl IntoStreamingRequest<Message = SharedFrame>,
) -> Result<Streaming<ProduceResponse>, Status> {
    let mut client = Grpc::new(channel)
        .max_decoding_message_size(frame_max)
        .max_encoding_message_size(frame_max);
    let ready = client.ready().await;
    ready.map_err(|error| Status::unknown(format!("Service was not ready: {error}")))?;
    let path = PathAndQuery::from_static("/fila.v1.FilaService/Produce");
    let call = client.streaming(frames.into_streaming_request(), path, SharedFrameCodec);
    Ok(call.await?.into_inner())
}

/// Encodes frames of the call `Produce` without a copy of their messages.
#[derive(Clone, Copy, Debug)]
struct SharedFrameCodec;

/// The encoder of a [`SharedFrameCodec`].
#[derive(Clone, Copy, Debug)]
struct SharedFrameEncoder;

impl SharedFrame {
    /// Appends both parts. In this format, the encodings of two messages one after the other are the encoding of the message
    /// that has the fields of both.
    fn write(self, buffer: &mut impl bytes::BufMut) {
        let rest = ProduceRequest {
            batch_id: Some(self.batch_id),
            ..ProduceRequest::default()
        };
        let written = self.frame.encode(buffer).and_then(|()| rest.encode(buffer));
        written.expect("the buffer grows");
    }
}

impl Codec for SharedFrameCodec {
    type Encode = SharedFrame;
    type Decode = ProduceResponse;
    type Encoder = SharedFrameEncoder;
    type Decoder = <ProstCodec<ProduceRequest, ProduceResponse> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        SharedFrameEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<ProduceRequest, ProduceResponse>::default().decoder()
    }
}

impl Encoder for SharedFrameEncoder {
    type Item = SharedFrame;
    type Error = Status;

    fn encode(&mut self, item: SharedFrame, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.write(buffer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn a_shared_frame_is_encoded_as_the_whole_request() {
        let message = v1::Message {
            fairness_key: "acme".to_owned(),
            payload: vec![7; 300].into(),
            ..v1::Message::default()
        };
        let frame = ProduceRequest {
            frame_id: 7,
            queue: "orders".to_owned(),
            messages: vec![message; 3],
            batch_id: None,
        };
        let batch_id = BatchId {
            producer: vec![1; 16].into(),
            sequence: 7,
            answered_below: 5,
            remember_ms: 60_000,
        };
        let whole = ProduceRequest {
            batch_id: Some(batch_id.clone()),
            ..frame.clone()
        };
        let mut bytes = Vec::new();
        let frame = Arc::new(frame);
        SharedFrame { frame, batch_id }.write(&mut bytes);
        assert_eq!(bytes, whole.encode_to_vec());
    }
}
