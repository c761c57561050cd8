//! The test broker as an operator sees it: as much of `fila.v1` as this crate uses.

use fila_core::Delivering;
use fila_proto::v1;
use fila_proto::v1::ErrorCode;
use fila_proto::v1::fila_admin_server::FilaAdmin;
use tonic::{Request, Status};

use super::service::{Service, answer, refused};
use super::streams::{Answer, Responses, unknown};

fn config_not_found(key: &str) -> Status {
    refused(ErrorCode::ConfigNotFound, format!("`{key}` is not set"))
}

fn config_changed(key: &str) -> Status {
    let text = format!("`{key}` has another version by now");
    refused(ErrorCode::ConfigChanged, text)
}

#[tonic::async_trait]
impl FilaAdmin for Service {
    async fn list_groups(
        &self,
        _: Request<v1::ListGroupsRequest>,
    ) -> Answer<v1::ListGroupsResponse> {
        unknown()
    }

    async fn update_keys(
        &self,
        _: Request<v1::UpdateKeysRequest>,
    ) -> Answer<v1::UpdateKeysResponse> {
        unknown()
    }

    async fn what_if(&self, _: Request<v1::WhatIfRequest>) -> Answer<v1::WhatIfResponse> {
        unknown()
    }

    type RedriveStream = Responses<v1::RedriveResponse>;

    async fn redrive(&self, _: Request<v1::RedriveRequest>) -> Answer<Self::RedriveStream> {
        unknown()
    }

    async fn create_queue(
        &self,
        request: Request<v1::CreateQueueRequest>,
    ) -> Answer<v1::CreateQueueResponse> {
        let v1::CreateQueueRequest { name, settings } = request.into_inner();
        let queue = self.queues(|queues| {
            queues.create(&name, settings.unwrap_or_default())?;
            queues.info(&name)
        })?;
        answer(v1::CreateQueueResponse { queue: Some(queue) })
    }

    async fn delete_queue(
        &self,
        request: Request<v1::DeleteQueueRequest>,
    ) -> Answer<v1::DeleteQueueResponse> {
        let name = request.into_inner().name;
        self.queues(|queues| queues.delete(&name))?;
        answer(v1::DeleteQueueResponse {})
    }

    async fn list_queues(
        &self,
        request: Request<v1::ListQueuesRequest>,
    ) -> Answer<v1::ListQueuesResponse> {
        let prefix = request.into_inner().prefix;
        answer(v1::ListQueuesResponse {
            queues: self.queues(|queues| queues.infos(&prefix)),
            next_page_token: String::new(),
        })
    }

    async fn inspect_queue(
        &self,
        request: Request<v1::InspectQueueRequest>,
    ) -> Answer<v1::InspectQueueResponse> {
        let name = request.into_inner().name;
        let queue = self.queues(|queues| queues.info(&name))?;
        answer(v1::InspectQueueResponse { queue: Some(queue) })
    }

    async fn pause_queue(
        &self,
        request: Request<v1::PauseQueueRequest>,
    ) -> Answer<v1::PauseQueueResponse> {
        let name = request.into_inner().name;
        self.queues(|queues| queues.set_delivery(&name, Delivering::Paused))?;
        answer(v1::PauseQueueResponse {})
    }

    async fn resume_queue(
        &self,
        request: Request<v1::ResumeQueueRequest>,
    ) -> Answer<v1::ResumeQueueResponse> {
        let name = request.into_inner().name;
        self.queues(|queues| queues.set_delivery(&name, Delivering::Running))?;
        answer(v1::ResumeQueueResponse {})
    }

    async fn purge_queue(
        &self,
        request: Request<v1::PurgeQueueRequest>,
    ) -> Answer<v1::PurgeQueueResponse> {
        let name = request.into_inner().name;
        let purged = self.queues(|queues| queues.purge(&name))?;
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
        let entry = self.0.act(|state| {
            let found = state.config.get(&key);
            let present = found.map_or(0, |entry| entry.version);
            if version.is_some_and(|version| version != present) {
                return Err(config_changed(&key));
            }
            if let Some(found) = found.filter(|entry| entry.value == value) {
                return Ok(found.clone());
            }
            state.config_version += 1;
            let version = state.config_version;
            let entry = v1::ConfigEntry {
                key,
                value,
                version,
            };
            state.config.insert(entry.key.clone(), entry.clone());
            Ok(entry)
        })?;
        answer(v1::SetConfigResponse { entry: Some(entry) })
    }

    async fn get_config(
        &self,
        request: Request<v1::GetConfigRequest>,
    ) -> Answer<v1::GetConfigResponse> {
        let key = request.into_inner().key;
        let entry = self.0.state().config.get(&key).cloned();
        let entry = entry.ok_or_else(|| config_not_found(&key))?;
        answer(v1::GetConfigResponse { entry: Some(entry) })
    }

    async fn list_config(
        &self,
        request: Request<v1::ListConfigRequest>,
    ) -> Answer<v1::ListConfigResponse> {
        let prefix = request.into_inner().prefix;
        let state = self.0.state();
        let entries = state.config.values();
        let entries = entries.filter(|entry| entry.key.starts_with(&prefix));
        answer(v1::ListConfigResponse {
            entries: entries.cloned().collect(),
            next_page_token: String::new(),
        })
    }

    async fn delete_config(
        &self,
        request: Request<v1::DeleteConfigRequest>,
    ) -> Answer<v1::DeleteConfigResponse> {
        let v1::DeleteConfigRequest { key, version } = request.into_inner();
        let config = &mut self.0.state().config;
        let found = config.get(&key).ok_or_else(|| config_not_found(&key))?;
        if version.is_some_and(|version| version != found.version) {
            return Err(config_changed(&key));
        }
        config.remove(&key);
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
