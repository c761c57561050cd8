//! The test broker as a client sees it that sends and consumes: its two streams, and the calls of clients without one.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fila_core::{ConsumerId, Departure};
use fila_proto::v1;
use fila_proto::v1::ErrorCode;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

use super::broker::SharedBroker;
use super::queues::Queues;
use super::streams::{Answer, Responses, Streams};

/// How many messages may be unanswered on a produce stream, as the real server has it.
const WINDOW: u32 = 16_384;

#[derive(Clone)]
pub(super) struct Service(pub(super) Arc<SharedBroker>);

impl Service {
    /// Does something with the queues.
    pub(super) fn queues<T>(&self, act: impl FnOnce(&mut Queues) -> T) -> T {
        self.0.act(|state| act(&mut state.queues))
    }
}

pub(super) fn refused(code: ErrorCode, message: String) -> Status {
    let mut status = match code {
        ErrorCode::QueueNotFound | ErrorCode::ConfigNotFound => Status::not_found(message),
        ErrorCode::ConfigChanged => Status::aborted(message),
        _ => Status::failed_precondition(message),
    };
    let name = MetadataValue::from_static(code.name());
    status.metadata_mut().insert("fila-error", name);
    status
}

pub(super) fn answer<T>(value: T) -> Answer<T> {
    Ok(Response::new(value))
}

impl Streams for Service {
    fn produce(
        &self,
        request: Request<Streaming<v1::ProduceRequest>>,
    ) -> Answer<Responses<v1::ProduceResponse>> {
        let mut frames = request.into_inner();
        let (responses, outgoing) = mpsc::unbounded_channel();
        let _ = responses.send(Ok(v1::ProduceResponse {
            window: WINDOW,
            ..v1::ProduceResponse::default()
        }));
        let shared = self.0.clone();
        tokio::spawn(async move {
            loop {
                let frame = match frames.message().await {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(status) => {
                        let _ = responses.send(Err(status));
                        break;
                    }
                };
                let Some(results) = shared.act(|state| {
                    let batch = frame.batch_id.as_ref();
                    state.take(&frame.queue, batch, &frame.messages)
                }) else {
                    break;
                };
                let _ = responses.send(Ok(v1::ProduceResponse {
                    frame_id: frame.frame_id,
                    results,
                    window: 0,
                }));
            }
        });
        answer(Box::pin(UnboundedReceiverStream::new(outgoing)))
    }

    fn work(
        &self,
        request: Request<Streaming<v1::WorkRequest>>,
    ) -> Answer<Responses<v1::WorkResponse>> {
        let mut requests = request.into_inner();
        let (responses, outgoing) = mpsc::unbounded_channel();
        let service = self.clone();
        tokio::spawn(async move {
            let Ok(Some(first)) = requests.message().await else {
                return;
            };
            let subscribed = service.queues(|queues| queues.subscribe(&first, &responses));
            let consumer = match subscribed {
                Ok(consumer) => consumer,
                Err(status) => {
                    let _ = responses.send(Err(status));
                    return;
                }
            };
            // The stream ends when the consumer is dismissed.
            drop(responses);
            service.queues(|queues| queues.report(consumer, first));
            let departure = loop {
                match requests.message().await {
                    Ok(Some(request)) => service.queues(|queues| queues.report(consumer, request)),
                    Ok(None) => break Departure::Closed,
                    Err(_) => break Departure::Lost,
                }
            };
            service.queues(|queues| queues.unsubscribe(consumer, departure));
        });
        answer(Box::pin(UnboundedReceiverStream::new(outgoing)))
    }

    async fn receive(&self, request: v1::ReceiveRequest) -> Answer<v1::ReceiveResponse> {
        let (responses, mut incoming) = mpsc::unbounded_channel();
        let consumer = self.queues(|queues| queues.receive(&request, &responses))?;
        drop(responses);
        let mut call = ReceivingCall {
            service: self,
            consumer,
            departure: Departure::Closed,
        };
        let mut wait = pin!(sleep(Duration::from_millis(request.wait_ms)));
        let (mut deliveries, mut is_waiting) = (Vec::new(), true);
        loop {
            tokio::select! {
                response = incoming.recv() => match response {
                    Some(response) => deliveries.append(&mut response?.deliveries),
                    None => break,
                },
                () = &mut wait, if is_waiting => {
                    is_waiting = false;
                    self.queues(|queues| queues.drain(consumer));
                }
            }
        }
        call.departure = Departure::Answered;
        answer(v1::ReceiveResponse { deliveries })
    }

    fn settle(
        &self,
        queue: &str,
        request: v1::WorkRequest,
    ) -> Result<Vec<v1::LeaseRefusal>, Status> {
        self.queues(|queues| queues.settle(queue, request))
    }
}

/// A call that takes messages. They go back if it is dropped before its answer.
struct ReceivingCall<'a> {
    service: &'a Service,
    consumer: ConsumerId,
    departure: Departure,
}

impl Drop for ReceivingCall<'_> {
    fn drop(&mut self) {
        let (consumer, departure) = (self.consumer, self.departure);
        self.service
            .queues(|queues| queues.unsubscribe(consumer, departure));
    }
}
