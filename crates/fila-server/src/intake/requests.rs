//! The requests of a stream.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body as AnyBody;
use bytes::Buf;
use prost::Message;
use tonic::{Code, Request, Status};

use super::message_reader::{MessageReader, PREFIX};
use super::receiving::{Room, Share};

/// The body of a stream, as an extension of its request. It can be taken once.
#[derive(Clone, Debug)]
pub(crate) struct StreamedBody(Arc<Mutex<Option<MessageReader<AnyBody>>>>);

impl StreamedBody {
    pub(super) fn new(body: AnyBody, share: Arc<Share>) -> Self {
        Self(Arc::new(Mutex::new(Some(MessageReader::new(body, share)))))
    }
}

/// The requests that a client sends on one stream, each with the room that it takes.
#[derive(Debug)]
pub(crate) struct Requests<T> {
    reader: MessageReader<AnyBody>,
    of: PhantomData<fn() -> T>,
}

impl<T: Message + Default> Requests<T> {
    /// Takes the body out of the request of a stream.
    ///
    /// # Errors
    /// If the request has none.
    pub(crate) fn of<B>(request: &mut Request<B>) -> Result<Self, Status> {
        let body: Option<StreamedBody> = request.extensions_mut().remove();
        let reader = body.and_then(|StreamedBody(body)| {
            let mut body = body.lock().unwrap_or_else(PoisonError::into_inner);
            body.take()
        });
        let reader = reader.ok_or_else(|| Status::internal("the stream has no body"))?;
        Ok(Self {
            reader,
            of: PhantomData,
        })
    }

    /// Waits for the next request. Returns `None` if the client sends no more, or has hung up.
    ///
    /// # Errors
    /// If there is no room for it in time, it stalls, or it cannot be read.
    ///
    /// # Cancel safety
    /// If it is dropped before it completes, the next call goes on.
    pub(crate) async fn message(&mut self) -> Result<Option<(T, Room)>, Status> {
        let received = poll_fn(|context| self.reader.poll_message(context)).await;
        let mut received = match received.transpose().map_err(Status::from) {
            Ok(None) => return Ok(None),
            Ok(Some(received)) => received,
            Err(status) if status.code() == Code::Cancelled => return Ok(None),
            Err(status) => return Err(status),
        };
        if received.bytes[0] != 0 {
            return Err(Status::internal("the message is compressed"));
        }
        received.bytes.advance(PREFIX);
        let message = T::decode(received.bytes);
        let message = message.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Some((message, received.room)))
    }
}
