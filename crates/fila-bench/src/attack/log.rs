//! A reader of the log that stops reading, and calls that the server logs.

use fila_proto::v1::SetConfigRequest;
use fila_proto::v1::fila_admin_client::FilaAdminClient;

use super::trial::{Victim, count};
use crate::client;

/// Changes the configuration again and again: the server writes a line for every change.
pub(super) async fn many_changes(victim: &Victim) -> anyhow::Result<()> {
    let channel = client::connect(&victim.address).await?;
    count(&victim.counts.connections, 1);
    let mut admin = FilaAdminClient::new(channel);
    for number in 0..5_000 {
        let request = SetConfigRequest {
            key: "noise".to_owned(),
            value: format!("{number} {}", "x".repeat(200)),
            version: None,
        };
        count(&victim.counts.calls, 1);
        if admin.set_config(request).await.is_ok() {
            count(&victim.counts.answered, 1);
        }
    }
    Ok(())
}
