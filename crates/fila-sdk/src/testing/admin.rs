//! The test broker as an operator sees it: as much of `fila.v1` as this crate uses.

use fila_proto::v1;
use fila_proto::v1::ErrorCode;
use fila_proto::v1::fila_admin_server::FilaAdmin;
use tonic::{Request, Status};

use super::broker::not_found;
use super::service::{Service, answer, refused};
use super::streams::{Answer, Responses, unknown};

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

#[tonic::async_trait]
impl FilaAdmin for Service {
    type RedriveStream = Responses<v1::RedriveResponse>;

    async fn redrive(&self, _: Request<v1::RedriveRequest>) -> Answer<Self::RedriveStream> {
        unknown::<Self, _>()
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
        unknown::<Self, _>()
    }

    async fn list_keys(&self, _: Request<v1::ListKeysRequest>) -> Answer<v1::ListKeysResponse> {
        unknown::<Self, _>()
    }

    async fn update_key(&self, _: Request<v1::UpdateKeyRequest>) -> Answer<v1::UpdateKeyResponse> {
        unknown::<Self, _>()
    }

    async fn explain_key(
        &self,
        _: Request<v1::ExplainKeyRequest>,
    ) -> Answer<v1::ExplainKeyResponse> {
        unknown::<Self, _>()
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
