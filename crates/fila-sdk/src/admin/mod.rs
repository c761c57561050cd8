//! The calls of an operator: create, inspect and change queues and their fairness keys.

mod hooks;
mod keys;
mod queues;
mod server;
mod settings;
mod stats;

use std::future::Future;

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::{Client, Error};

pub use hooks::{HookInfo, HookState};
pub(crate) use keys::to_wire;
pub use keys::{GroupInfo, KeyChange, KeyInfo, KeySettings};
pub use queues::QueueInfo;
pub use server::ServerInfo;
pub use settings::{
    Charge, DeduplicationScope, HookFallback, Ordering, QueueSettings, Setting, SettingKind,
    SettingValue, SettingWord,
};
pub use stats::{QueueStats, QueueTotals, Statistic, StatisticUnit};

/// How many queues, keys or entries one request asks for.
pub(crate) const PAGE: u32 = 1000;

/// The calls of an operator. From [`Client::admin`].
///
/// Every call has the client's [deadline](crate::ClientBuilder::deadline). If the connection breaks, the client repeats
/// calls that only read until then. It does not repeat calls that change something, because the server may have carried
/// them out.
///
/// # Cancel safety
/// A call whose future is dropped may or may not have taken effect.
#[derive(Clone, Debug)]
pub struct Admin {
    client: Client,
}

impl Admin {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Makes a call that must not run twice.
    pub(crate) async fn once<Q, A, F>(
        &self,
        request: Q,
        call: impl FnOnce(FilaAdminClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let admin = FilaAdminClient::new(self.client.channel());
        // The future of a call with settings is large, and callers nest it.
        let made = Box::pin(call(admin, Request::new(request)));
        self.client.call(made).await
    }

    /// Makes a call that changes nothing, and repeats it if the connection breaks.
    pub(crate) async fn look<Q: Clone, A, F>(
        &self,
        request: Q,
        call: impl Fn(FilaAdminClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let attempt = || {
            let admin = FilaAdminClient::new(self.client.channel());
            call(admin, Request::new(request.clone()))
        };
        self.client.call_again(attempt).await
    }
}
