//! `FilaAdmin`: queues and their fairness keys, and the runtime configuration.

use std::pin::Pin;
use std::sync::Arc;

use fila_core::{QueueSettings, QueueStats};
use fila_proto::v1::fila_admin_server::FilaAdmin;
use fila_proto::v1::{
    CreateQueueRequest, CreateQueueResponse, DeleteConfigRequest, DeleteConfigResponse,
    DeleteQueueRequest, DeleteQueueResponse, ExplainKeyRequest, ExplainKeyResponse,
    GetConfigRequest, GetConfigResponse, InspectQueueRequest, InspectQueueResponse, KeyChange,
    ListConfigRequest, ListConfigResponse, ListGroupsRequest, ListGroupsResponse, ListKeysRequest,
    ListKeysResponse, ListQueuesRequest, ListQueuesResponse, PauseQueueRequest, PauseQueueResponse,
    PurgeQueueRequest, PurgeQueueResponse, QueueInfo, RedriveRequest, RedriveResponse,
    ResumeQueueRequest, ResumeQueueResponse, ServerInfoRequest, ServerInfoResponse,
    SetConfigRequest, SetConfigResponse, UpdateKeyRequest, UpdateKeyResponse, UpdateKeysRequest,
    UpdateKeysResponse, UpdateQueueRequest, UpdateQueueResponse, WhatIfRequest, WhatIfResponse,
};
use fila_store::{FairnessKey, Version};
use futures_util::{Stream, stream};
use tonic::{Request, Response, Status};

use super::config;
use super::explain;
use super::keys::{KeyRules, check_length, cursor, next_page};
use super::message::fairness_key;
use super::page_token;
use super::redrive::Redrive;
use super::refusal::Refusal;
use super::settings::{
    self, Detail, apply, apply_keys, delivering, group_info, key_info, key_settings, queue_info,
};
use super::whatif;
use crate::runtime::{Handle, QueueEntry, State};

/// The most entries of one page, and the default.
const PAGE: u32 = 1_000;

/// Serves operators.
#[derive(Clone, Debug)]
pub(super) struct Admin {
    pub(super) handle: Handle,
}

impl Admin {
    /// Changes the settings of keys and groups: all of them, or none.
    async fn change_keys(
        &self,
        queue: String,
        changes: Vec<(FairnessKey, settings::KeyChange)>,
        version: Option<u64>,
    ) -> Result<Arc<QueueEntry>, Status> {
        let max = self.handle.limits().key_settings_per_queue;
        let change = move |definition: &mut QueueSettings| apply_keys(changes, max, definition);
        let expected = version.map(Version::new);
        Ok(self.handle.update_queue(queue, expected, change).await?)
    }

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
        check_length(key, max)
    }

    /// Returns a queue for the wire. One of dead letters shows the separator that it has from its queue.
    fn info(&self, queue: &QueueEntry, stats: &QueueStats, detail: Detail) -> QueueInfo {
        let separator = self.handle.key_separator(queue);
        queue_info(queue, separator, stats, detail)
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
        let queue = self.info(&queue, &queue.stats(), Detail::Full);
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
        let queue = self.info(&queue, &stats, Detail::Full);
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
        let queues = queues.map(|(queue, stats)| self.info(queue, &stats, Detail::Summary));
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
        let queue = self.info(&queue, &stats, Detail::Full);
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
            within,
        } = request.into_inner();
        let queue = self.handle.queue(&queue)?;
        let within = KeyRules::of(&self.handle, &queue).within(within)?;
        let after = cursor(&page_token)?;
        let (keys, next) = self.handle.keys(&queue, after, page_size(size)).await?;
        let keys = keys.iter().filter(|key| within.contains(&key.fairness_key));
        Ok(Response::new(ListKeysResponse {
            keys: keys.map(key_info).collect(),
            next_page_token: next_page(next),
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
        let entry = self.handle.queue(&queue)?;
        let (key, change) = KeyRules::of(&self.handle, &entry).change(KeyChange {
            fairness_key: key,
            paused,
            weight,
            concurrency,
            depth_max,
        })?;
        let changes = vec![(key.clone(), change)];
        let queue = self.change_keys(queue, changes, None).await?;
        let settings = queue.definition.keys.get(&key).copied().unwrap_or_default();
        let key = key_settings(&key, &settings);
        Ok(Response::new(UpdateKeyResponse { key: Some(key) }))
    }

    async fn list_groups(
        &self,
        request: Request<ListGroupsRequest>,
    ) -> Result<Response<ListGroupsResponse>, Status> {
        let ListGroupsRequest {
            queue,
            page_size: size,
            page_token,
            within,
        } = request.into_inner();
        let queue = self.handle.queue(&queue)?;
        let within = KeyRules::of(&self.handle, &queue).within(within)?;
        let after = cursor(&page_token)?;
        let (groups, next) = self.handle.groups(&queue, after, page_size(size)).await?;
        let groups = groups.iter().filter(|group| within.contains(&group.path));
        Ok(Response::new(ListGroupsResponse {
            groups: groups.map(group_info).collect(),
            next_page_token: next_page(next),
        }))
    }

    async fn update_keys(
        &self,
        request: Request<UpdateKeysRequest>,
    ) -> Result<Response<UpdateKeysResponse>, Status> {
        let UpdateKeysRequest {
            queue,
            changes,
            version,
        } = request.into_inner();
        let entry = self.handle.queue(&queue)?;
        let changes = KeyRules::of(&self.handle, &entry).changes(changes)?;
        let queue = self.change_keys(queue, changes, version).await?;
        let version = queue.version.get();
        Ok(Response::new(UpdateKeysResponse { version }))
    }

    async fn what_if(
        &self,
        request: Request<WhatIfRequest>,
    ) -> Result<Response<WhatIfResponse>, Status> {
        let answer = whatif::answer(&self.handle, request.into_inner());
        answer.await.map(Response::new)
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
