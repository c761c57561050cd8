//! The test broker as a client sees it that sends and consumes: its two streams.

use std::sync::Arc;
use std::time::Duration;

use fila_proto::v1;
use fila_proto::v1::ErrorCode;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

use super::broker::{SharedBroker, State, not_found};
use super::queue::{TestQueue, TestReport, VISIBILITY};
use super::streams::{Answer, Responses, Streams};

/// How many messages may be unanswered on a produce stream, as the real server has it.
const WINDOW: u32 = 16_384;

#[derive(Clone)]
pub(super) struct Service {
    pub(super) shared: Arc<SharedBroker>,
}

impl Service {
    pub(super) fn new(shared: Arc<SharedBroker>) -> Self {
        Self { shared }
    }

    pub(super) fn queue<T>(
        &self,
        name: &str,
        act: impl FnOnce(&mut TestQueue, Instant) -> T,
    ) -> Result<T, Status> {
        self.shared
            .act(|state, now| match state.queues.get_mut(name) {
                Some(queue) => Ok(act(queue, now)),
                None => Err(refused(ErrorCode::QueueNotFound, not_found(name))),
            })
    }
}

pub(super) fn refused(code: ErrorCode, message: String) -> Status {
    let mut status = match code {
        ErrorCode::QueueNotFound | ErrorCode::ConfigNotFound => Status::not_found(message),
        ErrorCode::ConfigChanged => Status::aborted(message),
        _ => Status::failed_precondition(message),
    };
    let name = MetadataValue::from_static(code.as_str_name());
    status.metadata_mut().insert("fila-error", name);
    status
}

pub(super) fn answer<T>(value: T) -> Answer<T> {
    Ok(Response::new(value))
}

impl Streams for Service {
    const NAME: &'static str = "the test broker";

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
        let shared = self.shared.clone();
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
                let take = |state: &mut State, now| {
                    state.take(now, &frame.queue, frame.batch_id, frame.messages)
                };
                let Some(results) = shared.act(take) else {
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
            let name = first.queue;
            let id = service.shared.act(|state, _| {
                state.consumers_ever += 1;
                state.consumers_ever
            });
            let subscribed = service.queue(&name, |queue, now| {
                queue.subscribe(now, id, first.credit.into(), responses.clone());
            });
            if let Err(status) = subscribed {
                let _ = responses.send(Err(status));
                return;
            }
            while let Ok(Some(request)) = requests.message().await {
                let response = service.queue(&name, |queue, now| {
                    let response = report(queue, now, id, request);
                    (response, queue.is_drained(id))
                });
                let Ok((response, is_drained)) = response else {
                    let text = format!("queue `{name}` was deleted");
                    let _ = responses.send(Err(refused(ErrorCode::QueueDeleted, text)));
                    return;
                };
                let _ = responses.send(Ok(response));
                if is_drained {
                    break;
                }
            }
            let _ = service.queue(&name, |queue, now| queue.unsubscribe(now, id));
        });
        answer(Box::pin(UnboundedReceiverStream::new(outgoing)))
    }
}

/// Takes what a consumer says, and returns what became of it.
fn report(
    queue: &mut TestQueue,
    now: Instant,
    id: u64,
    request: v1::WorkRequest,
) -> v1::WorkResponse {
    let acks = request
        .acks
        .into_iter()
        .map(|lease| (lease, TestReport::Ack));
    let nacks = request.nacks.into_iter().map(|nack| {
        // There is no retry policy here: what nobody asks to wait does not.
        let delay = Duration::from_millis(nack.delay_ms.unwrap_or_default());
        (nack.lease_id, TestReport::Nack(delay))
    });
    let time = queue.settings.visibility_timeout_ms;
    let time = time.map_or(VISIBILITY, Duration::from_millis);
    let extensions = request.extensions.into_iter().map(|extension| {
        let time = match extension.lease_ms {
            0 => time,
            given => Duration::from_millis(given),
        };
        (extension.lease_id, TestReport::Extend(time))
    });
    let releases = request
        .releases
        .into_iter()
        .map(|lease| (lease, TestReport::Release));
    let mut response = v1::WorkResponse::default();
    for (lease_id, said) in acks.chain(nacks).chain(extensions).chain(releases) {
        match queue.settle(now, lease_id, said) {
            Ok(()) => response.confirmed.push(lease_id),
            Err(error) => response.refused.push(v1::LeaseRefusal {
                lease_id,
                error: Some(error),
            }),
        }
    }
    if request.drain {
        queue.drain(id);
    }
    queue.credit(now, id, request.credit.into());
    response
}
