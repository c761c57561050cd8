//! The body of a response that carries deliveries: each chunk counts as in transit until the connection has written or
//! dropped it.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::http::{Outbox, WaitingChunk};
use crate::runtime::{Framed, InTransit};

/// Counts the deliveries of a response that goes through this outbox, if it has any.
pub(crate) fn count_deliveries(mut response: Response, outbox: Option<Outbox>) -> Response {
    match response.extensions_mut().remove::<Framed>() {
        Some(framed) => response.map(|body| {
            Body::new(ResponseBody {
                body,
                framed,
                outbox,
            })
        }),
        None => response,
    }
}

struct ResponseBody {
    body: Body,
    framed: Framed,
    outbox: Option<Outbox>,
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // A connection asks for more only after it has accepted the chunk before.
        self.framed.accepted();
        let polled = Pin::new(&mut self.body).poll_frame(context);
        // All frames that were encoded up to now are in this chunk.
        polled.map_ok(|frame| {
            frame.map_data(|data| match self.framed.take() {
                Some(transit) => Bytes::from_owner(Chunk {
                    data,
                    _transit: transit,
                    _waiting: self.outbox.as_ref().map(Outbox::add),
                }),
                None => data,
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Encoded deliveries, and the bytes that they count.
struct Chunk {
    data: Bytes,
    _transit: InTransit,
    _waiting: Option<WaitingChunk>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}
