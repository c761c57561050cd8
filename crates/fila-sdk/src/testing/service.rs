//! The test broker as a client sees it: as much of `fila.v1` as this crate uses.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fila_proto::v1;
use fila_proto::v1::ErrorCode;
use fila_proto::v1::fila_admin_server::FilaAdmin;
use fila_proto::v1::fila_service_server::FilaService;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::Stream;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

use super::broker::{Shared, State, not_found};
use super::queue::{Queue, Said, VISIBILITY};

/// How many messages may be unanswered on a produce stream, as the real server has it.
const WINDOW: u32 = 16_384;

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

#[derive(Clone)]
pub(super) struct Service {
    shared: Arc<Shared>,
}

impl Service {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    fn queue<T>(
        &self,
        name: &str,
        act: impl FnOnce(&mut Queue, Instant) -> T,
    ) -> Result<T, Status> {
        self.shared
            .act(|state, now| match state.queues.get_mut(name) {
                Some(queue) => Ok(act(queue, now)),
                None => Err(refused(ErrorCode::QueueNotFound, not_found(name))),
            })
    }
}

fn refused(code: ErrorCode, message: String) -> Status {
    let mut status = match code {
        ErrorCode::QueueNotFound | ErrorCode::ConfigNotFound => Status::not_found(message),
        ErrorCode::ConfigChanged => Status::aborted(message),
        _ => Status::failed_precondition(message),
    };
    let name = MetadataValue::from_static(code.as_str_name());
    status.metadata_mut().insert("fila-error", name);
    status
}

fn config_not_found(key: &str) -> Status {
    refused(ErrorCode::ConfigNotFound, format!("`{key}` is not set"))
}

fn config_changed(key: &str) -> Status {
    let text = format!("`{key}` has another version by now");
    refused(ErrorCode::ConfigChanged, text)
}

fn config_entry(key: &str, (value, version): &(String, u64)) -> v1::ConfigEntry {
    v1::ConfigEntry {
        key: key.to_owned(),
        value: value.clone(),
        version: *version,
    }
}

fn unknown<T>() -> Answer<T> {
    Err(Status::unimplemented(
        "the test broker does not know this call",
    ))
}

fn answer<T>(value: T) -> Answer<T> {
    Ok(Response::new(value))
}

#[tonic::async_trait]
impl FilaService for Service {
    type ProduceStream = Responses<v1::ProduceResponse>;
    type ConsumeStream = Responses<v1::ConsumeResponse>;
    type WorkStream = Responses<v1::WorkResponse>;

    async fn produce(
        &self,
        request: Request<Streaming<v1::ProduceRequest>>,
    ) -> Answer<Self::ProduceStream> {
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

    async fn work(&self, request: Request<Streaming<v1::WorkRequest>>) -> Answer<Self::WorkStream> {
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

    async fn enqueue(&self, _: Request<v1::EnqueueRequest>) -> Answer<v1::EnqueueResponse> {
        unknown()
    }

    async fn enqueue_batch(
        &self,
        _: Request<v1::EnqueueBatchRequest>,
    ) -> Answer<v1::EnqueueBatchResponse> {
        unknown()
    }

    async fn consume(&self, _: Request<v1::ConsumeRequest>) -> Answer<Self::ConsumeStream> {
        unknown()
    }

    async fn peek(&self, _: Request<v1::PeekRequest>) -> Answer<v1::PeekResponse> {
        unknown()
    }

    async fn ack(&self, _: Request<v1::AckRequest>) -> Answer<v1::AckResponse> {
        unknown()
    }

    async fn ack_batch(&self, _: Request<v1::AckBatchRequest>) -> Answer<v1::AckBatchResponse> {
        unknown()
    }

    async fn nack(&self, _: Request<v1::NackRequest>) -> Answer<v1::NackResponse> {
        unknown()
    }

    async fn nack_batch(&self, _: Request<v1::NackBatchRequest>) -> Answer<v1::NackBatchResponse> {
        unknown()
    }

    async fn extend(&self, _: Request<v1::ExtendRequest>) -> Answer<v1::ExtendResponse> {
        unknown()
    }
}

/// Takes what a consumer says, and returns what became of it.
fn report(queue: &mut Queue, now: Instant, id: u64, request: v1::WorkRequest) -> v1::WorkResponse {
    let acks = request.acks.into_iter().map(|lease| (lease, Said::Ack));
    let nacks = request.nacks.into_iter().map(|nack| {
        // There is no retry policy here: what nobody asks to wait does not.
        let delay = Duration::from_millis(nack.delay_ms.unwrap_or_default());
        (nack.lease_id, Said::Nack(delay))
    });
    let time = queue.settings.visibility_timeout_ms;
    let time = time.map_or(VISIBILITY, Duration::from_millis);
    let extensions = request.extensions.into_iter().map(|extension| {
        let time = match extension.lease_ms {
            0 => time,
            given => Duration::from_millis(given),
        };
        (extension.lease_id, Said::Extend(time))
    });
    let releases = request
        .releases
        .into_iter()
        .map(|lease| (lease, Said::Release));
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

#[tonic::async_trait]
impl FilaAdmin for Service {
    type RedriveStream = Responses<v1::RedriveResponse>;

    async fn redrive(&self, _: Request<v1::RedriveRequest>) -> Answer<Self::RedriveStream> {
        unknown()
    }

    async fn create_queue(
        &self,
        request: Request<v1::CreateQueueRequest>,
    ) -> Answer<v1::CreateQueueResponse> {
        let v1::CreateQueueRequest { name, settings } = request.into_inner();
        self.shared.act(|state, _| {
            if state.queues.contains_key(&name) {
                let text = format!("queue `{name}` exists already");
                return Err(refused(ErrorCode::QueueExists, text));
            }
            state.create(&name, settings.unwrap_or_default());
            Ok(())
        })?;
        let queue = self.queue(&name, |queue, _| queue.info())?;
        answer(v1::CreateQueueResponse { queue: Some(queue) })
    }

    async fn delete_queue(
        &self,
        request: Request<v1::DeleteQueueRequest>,
    ) -> Answer<v1::DeleteQueueResponse> {
        let name = request.into_inner().name;
        let deleted = self.shared.act(|state, _| state.queues.remove(&name));
        match deleted {
            Some(_) => answer(v1::DeleteQueueResponse {}),
            None => Err(refused(ErrorCode::QueueNotFound, not_found(&name))),
        }
    }

    async fn list_queues(
        &self,
        request: Request<v1::ListQueuesRequest>,
    ) -> Answer<v1::ListQueuesResponse> {
        let prefix = request.into_inner().prefix;
        let queues = self.shared.act(|state, _| {
            let queues = state.queues.iter();
            let queues = queues.filter(|(name, _)| name.starts_with(&prefix));
            queues.map(|(_, queue)| queue.info()).collect()
        });
        answer(v1::ListQueuesResponse {
            queues,
            next_page_token: String::new(),
        })
    }

    async fn inspect_queue(
        &self,
        request: Request<v1::InspectQueueRequest>,
    ) -> Answer<v1::InspectQueueResponse> {
        let name = request.into_inner().name;
        let queue = self.queue(&name, |queue, _| queue.info())?;
        answer(v1::InspectQueueResponse { queue: Some(queue) })
    }

    async fn pause_queue(
        &self,
        request: Request<v1::PauseQueueRequest>,
    ) -> Answer<v1::PauseQueueResponse> {
        let name = request.into_inner().name;
        self.queue(&name, |queue, _| queue.paused = true)?;
        answer(v1::PauseQueueResponse {})
    }

    async fn resume_queue(
        &self,
        request: Request<v1::ResumeQueueRequest>,
    ) -> Answer<v1::ResumeQueueResponse> {
        let name = request.into_inner().name;
        self.queue(&name, |queue, now| {
            queue.paused = false;
            queue.dispatch(now);
        })?;
        answer(v1::ResumeQueueResponse {})
    }

    async fn purge_queue(
        &self,
        request: Request<v1::PurgeQueueRequest>,
    ) -> Answer<v1::PurgeQueueResponse> {
        let name = request.into_inner().name;
        let purged = self.queue(&name, |queue, _| queue.purge())?;
        answer(v1::PurgeQueueResponse { purged })
    }

    async fn update_queue(
        &self,
        _: Request<v1::UpdateQueueRequest>,
    ) -> Answer<v1::UpdateQueueResponse> {
        unknown()
    }

    async fn list_keys(&self, _: Request<v1::ListKeysRequest>) -> Answer<v1::ListKeysResponse> {
        unknown()
    }

    async fn update_key(&self, _: Request<v1::UpdateKeyRequest>) -> Answer<v1::UpdateKeyResponse> {
        unknown()
    }

    async fn explain_key(
        &self,
        _: Request<v1::ExplainKeyRequest>,
    ) -> Answer<v1::ExplainKeyResponse> {
        unknown()
    }

    async fn set_config(
        &self,
        request: Request<v1::SetConfigRequest>,
    ) -> Answer<v1::SetConfigResponse> {
        let v1::SetConfigRequest {
            key,
            value,
            version,
        } = request.into_inner();
        let entry = self.shared.act(|state, _| {
            let found = state.config.get(&key);
            let present = found.map_or(0, |(_, version)| *version);
            if version.is_some_and(|version| version != present) {
                return Err(config_changed(&key));
            }
            if found.is_none_or(|(found, _)| *found != value) {
                state.config_version += 1;
                let set = (value, state.config_version);
                state.config.insert(key.clone(), set);
            }
            Ok(config_entry(&key, &state.config[&key]))
        })?;
        answer(v1::SetConfigResponse { entry: Some(entry) })
    }

    async fn get_config(
        &self,
        request: Request<v1::GetConfigRequest>,
    ) -> Answer<v1::GetConfigResponse> {
        let key = request.into_inner().key;
        let entry = self.shared.act(|state, _| {
            let found = state.config.get(&key);
            found.map(|found| config_entry(&key, found))
        });
        match entry {
            Some(entry) => answer(v1::GetConfigResponse { entry: Some(entry) }),
            None => Err(config_not_found(&key)),
        }
    }

    async fn list_config(
        &self,
        request: Request<v1::ListConfigRequest>,
    ) -> Answer<v1::ListConfigResponse> {
        let prefix = request.into_inner().prefix;
        let entries = self.shared.act(|state, _| {
            let entries = state.config.iter();
            let entries = entries.filter(|(key, _)| key.starts_with(&prefix));
            entries
                .map(|(key, found)| config_entry(key, found))
                .collect()
        });
        answer(v1::ListConfigResponse {
            entries,
            next_page_token: String::new(),
        })
    }

    async fn delete_config(
        &self,
        request: Request<v1::DeleteConfigRequest>,
    ) -> Answer<v1::DeleteConfigResponse> {
        let v1::DeleteConfigRequest { key, version } = request.into_inner();
        self.shared.act(|state, _| {
            let Some((_, present)) = state.config.get(&key) else {
                return Err(config_not_found(&key));
            };
            if version.is_some_and(|version| version != *present) {
                return Err(config_changed(&key));
            }
            state.config.remove(&key);
            Ok(())
        })?;
        answer(v1::DeleteConfigResponse {})
    }

    async fn server_info(
        &self,
        _: Request<v1::ServerInfoRequest>,
    ) -> Answer<v1::ServerInfoResponse> {
        answer(v1::ServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            durability: "memory".to_owned(),
            writable: true,
            ..v1::ServerInfoResponse::default()
        })
    }
}
