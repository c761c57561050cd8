//! The runtime configuration on the wire.

use std::net::SocketAddr;

use fila_proto::v1::{
    ConfigEntry, DeleteConfigRequest, DeleteConfigResponse, GetConfigRequest, GetConfigResponse,
    ListConfigRequest, ListConfigResponse, SetConfigRequest, SetConfigResponse,
};
use fila_store::{Expected, Version};
use tonic::{Request, Status};

use super::page_token;
use super::refusal::Refusal;
use crate::http::ClientAddress;
use crate::runtime::{CallError, Handle};
use crate::runtime_config::{Entries, Entry};

/// A page ends with the entry that exceeds this size.
const PAGE_BYTES: usize = 1 << 20;

/// Sets an entry.
pub(super) async fn set(
    handle: &Handle,
    request: Request<SetConfigRequest>,
) -> Result<SetConfigResponse, Status> {
    let client = client(&request);
    let SetConfigRequest {
        key,
        value,
        version,
    } = request.into_inner();
    let expected = match version {
        None => Expected::Any,
        Some(0) => Expected::Absent,
        Some(version) => Expected::Version(Version::new(version)),
    };
    let entry = handle.set_config(key, value, expected, client).await?;
    Ok(SetConfigResponse {
        entry: Some(config_entry(&entry)),
    })
}

/// Returns an entry.
pub(super) fn get(
    handle: &Handle,
    request: &GetConfigRequest,
) -> Result<GetConfigResponse, Status> {
    let config = handle.config();
    let entry = config.entry(&request.key);
    let entry = entry.ok_or_else(|| CallError::unknown_config(&request.key))?;
    Ok(GetConfigResponse {
        entry: Some(config_entry(entry)),
    })
}

/// Returns a page of up to `size` entries.
pub(super) fn page(
    config: &Entries,
    request: &ListConfigRequest,
    size: usize,
) -> Result<ListConfigResponse, Refusal> {
    let after = page_token::name(&request.page_token)?;
    let mut page = ListConfigResponse::default();
    let mut bytes = 0;
    for entry in config.range(&request.prefix, &after) {
        if page.entries.len() == size || bytes > PAGE_BYTES {
            let last = page.entries.last();
            let token = last.map(|last| page_token::encode(last.key.as_bytes()));
            page.next_page_token = token.unwrap_or_default();
            break;
        }
        bytes += entry.bytes();
        page.entries.push(config_entry(entry));
    }
    Ok(page)
}

/// Removes an entry.
pub(super) async fn delete(
    handle: &Handle,
    request: Request<DeleteConfigRequest>,
) -> Result<DeleteConfigResponse, Status> {
    let client = client(&request);
    let DeleteConfigRequest { key, version } = request.into_inner();
    let expected = version.map(Version::new);
    handle.delete_config(key, expected, client).await?;
    Ok(DeleteConfigResponse {})
}

fn config_entry(entry: &Entry) -> ConfigEntry {
    ConfigEntry {
        key: entry.key.to_string(),
        value: entry.value.clone(),
        version: entry.version.get(),
    }
}

/// Returns the address of the client.
fn client<T>(request: &Request<T>) -> Option<SocketAddr> {
    let address = request.extensions().get::<ClientAddress>();
    address.map(|ClientAddress(address)| *address)
}
