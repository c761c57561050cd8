//! `FilaAdmin`: queues and their fairness keys, and the runtime configuration.

use std::pin::Pin;

use fila_core::{KeyCursor, QueueSettings};
use fila_proto::v1::fila_admin_server::FilaAdmin;
use fila_proto::v1::{
    CreateQueueRequest, CreateQueueResponse, DeleteConfigRequest, DeleteConfigResponse,
    DeleteQueueRequest, DeleteQueueResponse, ErrorCode, ExplainKeyRequest, ExplainKeyResponse,
    GetConfigRequest, GetConfigResponse, InspectQueueRequest, InspectQueueResponse,
    ListConfigRequest, ListConfigResponse, ListGroupsRequest, ListGroupsResponse, ListKeysRequest,
    ListKeysResponse, ListQueuesRequest, ListQueuesResponse, PauseQueueRequest, PauseQueueResponse,
    PurgeQueueRequest, PurgeQueueResponse, RedriveRequest, RedriveResponse, ResumeQueueRequest,
    ResumeQueueResponse, ServerInfoRequest, ServerInfoResponse, SetConfigRequest,
    SetConfigResponse, UpdateKeyRequest, UpdateKeyResponse, UpdateKeysRequest, UpdateKeysResponse,
    UpdateQueueRequest, UpdateQueueResponse, WhatIfRequest, WhatIfResponse,
};
use fila_store::Version;
use futures_util::{Stream, stream};
use tonic::{Request, Response, Status};

use super::config;
use super::explain;
use super::message::fairness_key;
use super::page_token;
use super::redrive::Redrive;
use super::refusal::Refusal;
use super::settings::{Detail, KeyChange, apply, delivering, key_info, key_settings, queue_info};
use crate::runtime::{Handle, State};

/// The most entries of one page, and the default.
const PAGE: u32 = 1_000;

/// Serves operators.
#[derive(Clone, Debug)]
pub(super) struct Admin {
    pub(super) handle: Handle,
}

impl Admin {
    async fn pause(&self, queue: String, paused: bool) -> Result<(), Status> {
        let change = move |definition: &mut QueueSettings| {
            definition.delivery = delivering(paused);
            Ok(())
        };
        self.handle.update_queue(queue, None, change).await?;
        Ok(())
    }

    /// Refuses a fairness key that no message can have.
    fn check_key(&self, key: &str) -> Result<(), Refusal> {
        let max = self.handle.limits().message.fairness_key_bytes.as_usize();
        let found = key.len();
        if found > max {
            let text = format!("the fairness key has {found} bytes, {max} are allowed");
            return Err(Refusal::new(ErrorCode::FairnessKeyTooLong, text));
        }
        Ok(())
    }
}

fn page_size(asked: u32) -> usize {
    match asked {
        0 => PAGE as usize,
        asked => asked.min(PAGE) as usize,
    }
}

#[tonic::async_trait]
impl FilaAdmin for Admin {
    async fn create_queue(
        &self,
        request: Request<CreateQueueRequest>,
    ) -> Result<Response<CreateQueueResponse>, Status> {
        let CreateQueueRequest { name, settings } = request.into_inner();
        let mut definition = QueueSettings::default();
        let longest = self.handle.limits().delay;
        apply(&settings.unwrap_or_default(), longest, &mut definition)?;
        let queue = self.handle.create_queue(&name, definition).await?;
        let queue = queue_info(&queue, &queue.stats(), Detail::Full);
        Ok(Response::new(CreateQueueResponse { queue: Some(queue) }))
    }

    async fn delete_queue(
        &self,
        request: Request<DeleteQueueRequest>,
    ) -> Result<Response<DeleteQueueResponse>, Status> {
        self.handle.delete_queue(request.into_inner().name).await?;
        Ok(Response::new(DeleteQueueResponse {}))
    }

    async fn update_queue(
        &self,
        request: Request<UpdateQueueRequest>,
    ) -> Result<Response<UpdateQueueResponse>, Status> {
        let UpdateQueueRequest {
            name,
            settings,
            version,
        } = request.into_inner();
        let settings = settings.unwrap_or_default();
        let longest = self.handle.limits().delay;
        let change = move |definition: &mut QueueSettings| apply(&settings, longest, definition);
        let expected = version.map(Version::new);
        let queue = self.handle.update_queue(name, expected, change).await?;
        let stats = self.handle.inspect(&queue).await?;
        let queue = queue_info(&queue, &stats, Detail::Full);
        Ok(Response::new(UpdateQueueResponse { queue: Some(queue) }))
    }

    async fn list_queues(
        &self,
        request: Request<ListQueuesRequest>,
    ) -> Result<Response<ListQueuesResponse>, Status> {
        let ListQueuesRequest {
            prefix,
            page_size: size,
            page_token,
        } = request.into_inner();
        let size = page_size(size);
        let after = page_token::name(&page_token)?;
        let mut found = self.handle.queues(&prefix, &after, size + 1);
        let more = found.len() > size;
        found.truncate(size);
        let last = found.last();
        let last = last.map(|queue| page_token::encode(queue.name.as_str().as_bytes()));
        let queues = found.iter().zip(self.handle.figures(&found));
        let queues = queues.map(|(queue, stats)| queue_info(queue, &stats, Detail::Summary));
        Ok(Response::new(ListQueuesResponse {
            queues: queues.collect(),
            next_page_token: last.filter(|_| more).unwrap_or_default(),
        }))
    }

    async fn inspect_queue(
        &self,
        request: Request<InspectQueueRequest>,
    ) -> Result<Response<InspectQueueResponse>, Status> {
        let queue = self.handle.queue(&request.into_inner().name)?;
        let stats = self.handle.inspect(&queue).await?;
        let queue = queue_info(&queue, &stats, Detail::Full);
        Ok(Response::new(InspectQueueResponse { queue: Some(queue) }))
    }

    async fn pause_queue(
        &self,
        request: Request<PauseQueueRequest>,
    ) -> Result<Response<PauseQueueResponse>, Status> {
        self.pause(request.into_inner().name, true).await?;
        Ok(Response::new(PauseQueueResponse {}))
    }

    async fn resume_queue(
        &self,
        request: Request<ResumeQueueRequest>,
    ) -> Result<Response<ResumeQueueResponse>, Status> {
        self.pause(request.into_inner().name, false).await?;
        Ok(Response::new(ResumeQueueResponse {}))
    }

    async fn purge_queue(
        &self,
        request: Request<PurgeQueueRequest>,
    ) -> Result<Response<PurgeQueueResponse>, Status> {
        let queue = self.handle.queue(&request.into_inner().name)?;
        let purged = self.handle.purge(&queue).await?;
        Ok(Response::new(PurgeQueueResponse { purged }))
    }

    type RedriveStream = Pin<Box<dyn Stream<Item = Result<RedriveResponse, Status>> + Send>>;

    async fn redrive(
        &self,
        request: Request<RedriveRequest>,
    ) -> Result<Response<Self::RedriveStream>, Status> {
        let redrive = Redrive::begin(&self.handle, request.into_inner()).await?;
        let steps = stream::unfold(redrive, |mut redrive| async move {
            let step = redrive.next().await?;
            Some((step, redrive))
        });
        Ok(Response::new(Box::pin(steps)))
    }

    async fn list_keys(
        &self,
        request: Request<ListKeysRequest>,
    ) -> Result<Response<ListKeysResponse>, Status> {
        let ListKeysRequest {
            queue,
            page_size: size,
            page_token,
            within: _,
        } = request.into_inner();
        let queue = self.handle.queue(&queue)?;
        let after = match page_token.as_str() {
            "" => KeyCursor::start(),
            text => {
                let number = text.parse().map_err(|_| page_token::invalid())?;
                KeyCursor::from_number(number)
            }
        };
        let (keys, next) = self.handle.keys(&queue, after, page_size(size)).await?;
        let next = next.map(|next| next.get().to_string());
        Ok(Response::new(ListKeysResponse {
            keys: keys.iter().map(key_info).collect(),
            next_page_token: next.unwrap_or_default(),
        }))
    }

    async fn update_key(
        &self,
        request: Request<UpdateKeyRequest>,
    ) -> Result<Response<UpdateKeyResponse>, Status> {
        let UpdateKeyRequest {
            queue,
            fairness_key: key,
            paused,
            weight,
            concurrency,
            depth_max,
        } = request.into_inner();
        let limits = self.handle.limits();
        self.check_key(&key)?;
        let (found, max) = (weight.unwrap_or(0), drr::Weight::MAX.value());
        if found > max {
            let text = format!("weight {found} is out of range; 1 to {max} are allowed");
            return Err(Refusal::new(ErrorCode::InvalidWeight, text).into());
        }
        let key = fairness_key(key)?;
        let change = KeyChange {
            paused,
            weight,
            concurrency,
            depth_max,
        };
        let (of, max) = (key.clone(), limits.key_settings_per_queue);
        let change = move |definition: &mut QueueSettings| change.apply(of, max, definition);
        let queue = self.handle.update_queue(queue, None, change).await?;
        let settings = queue.definition.keys.get(&key).copied().unwrap_or_default();
        let key = key_settings(&key, &settings);
        Ok(Response::new(UpdateKeyResponse { key: Some(key) }))
    }

    async fn list_groups(
        &self,
        _: Request<ListGroupsRequest>,
    ) -> Result<Response<ListGroupsResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn update_keys(
        &self,
        _: Request<UpdateKeysRequest>,
    ) -> Result<Response<UpdateKeysResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn what_if(&self, _: Request<WhatIfRequest>) -> Result<Response<WhatIfResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn explain_key(
        &self,
        request: Request<ExplainKeyRequest>,
    ) -> Result<Response<ExplainKeyResponse>, Status> {
        let ExplainKeyRequest {
            queue,
            fairness_key: key,
        } = request.into_inner();
        self.check_key(&key)?;
        let queue = self.handle.queue(&queue)?;
        let explanation = self.handle.explain(&queue, fairness_key(key)?).await?;
        Ok(Response::new(explain::to_wire(&explanation)))
    }

    async fn set_config(
        &self,
        request: Request<SetConfigRequest>,
    ) -> Result<Response<SetConfigResponse>, Status> {
        config::set(&self.handle, request).await.map(Response::new)
    }

    async fn get_config(
        &self,
        request: Request<GetConfigRequest>,
    ) -> Result<Response<GetConfigResponse>, Status> {
        config::get(&self.handle, &request.into_inner()).map(Response::new)
    }

    async fn list_config(
        &self,
        request: Request<ListConfigRequest>,
    ) -> Result<Response<ListConfigResponse>, Status> {
        let request = request.into_inner();
        let size = page_size(request.page_size);
        let page = config::page(&self.handle.config(), &request, size)?;
        Ok(Response::new(page))
    }

    async fn delete_config(
        &self,
        request: Request<DeleteConfigRequest>,
    ) -> Result<Response<DeleteConfigResponse>, Status> {
        config::delete(&self.handle, request)
            .await
            .map(Response::new)
    }

    async fn server_info(
        &self,
        _: Request<ServerInfoRequest>,
    ) -> Result<Response<ServerInfoResponse>, Status> {
        let info = self.handle.info();
        Ok(Response::new(ServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            durability: info.durability.to_string(),
            writable: info.state == State::Ready,
            queues: info.queues as u64,
            consumers: info.consumers as u64,
            connections: self.handle.metrics().connections(),
            memory_budget_bytes: info.memory_budget,
            memory_used_bytes: info.memory_used,
            started_at_ms: info.started_at.as_millis(),
        }))
    }
}
