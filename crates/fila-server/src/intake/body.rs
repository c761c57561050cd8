//! The bodies of requests on their way to the services.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::Body as AnyBody;
use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame};
use tonic::Status;

use super::message_reader::MessageReader;
use super::receiving::{Room, Share};
use super::requests::StreamedBody;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The room of a request, as an extension of it. Clones share the room.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receipt(Arc<Mutex<Room>>);

impl Receipt {
    /// Returns the room, for the caller to give back when it has handed the request over.
    pub(crate) fn take(&self) -> Room {
        let mut room = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *room)
    }

    /// Keeps the room of the largest message: a call has only one in memory.
    fn keep(&self, more: Room) {
        let mut room = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if more.bytes() > room.bytes() {
            *room = more;
        }
    }
}

/// A body whose messages count against the budget until their call is over.
#[derive(Debug)]
pub(crate) struct MeteredBody<B> {
    /// Absent if the service reads the body itself, as a [`StreamedBody`].
    reader: Option<MessageReader<B>>,
    receipt: Receipt,
}

/// Lets the body of a request count against the budget. The caller keeps the receipt until the call is answered.
///
/// A call for which `is_streamed` gets its body as an extension, because `tonic` keeps the buffer of the largest
/// message of a stream until the stream ends.
pub(crate) fn receive<B>(
    share: &Arc<Share>,
    is_streamed: fn(&str) -> bool,
    request: Request<B>,
) -> (Request<MeteredBody<B>>, Receipt)
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let receipt = Receipt::default();
    let (mut head, body) = request.into_parts();
    let reader = if is_streamed(head.uri.path()) {
        head.extensions
            .insert(StreamedBody::new(AnyBody::new(body), share.clone()));
        None
    } else {
        head.extensions.insert(receipt.clone());
        Some(MessageReader::new(body, share.clone()))
    };
    let body = MeteredBody {
        reader,
        receipt: receipt.clone(),
    };
    (Request::from_parts(head, body), receipt)
}

impl<B> Body for MeteredBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Some(reader) = &mut this.reader else {
            return Poll::Ready(None);
        };
        let received = ready!(reader.poll_message(context));
        Poll::Ready(received.map(|received| {
            let received = received?;
            this.receipt.keep(received.room);
            Ok(Frame::data(received.bytes))
        }))
    }
}
