//! The runtime configuration under `kill -9`: it has every confirmed entry, and none that was never sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::{ConfigEntry, DeleteConfigRequest, ListConfigRequest, SetConfigRequest};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::Status;

use super::account::Account;
use super::process::Server;
use super::{number, runtime, traffic};

pub(crate) const WRITERS: u64 = 4;

/// The entries as their writers know them: a value, or none.
pub(crate) type Books = Arc<Mutex<BTreeMap<u64, Account<Option<String>>>>>;

/// Sets an entry to one number after the other, and deletes it at every seventh, until the server is gone.
pub(crate) async fn write(address: &str, books: &Books, writer: u64) -> Result<(), Status> {
    let mut admin = FilaAdminClient::new(traffic::reach(address).await?);
    let key = format!("writer:{writer}");
    loop {
        let next = {
            let mut books = books.lock().unwrap();
            let account = books.entry(writer).or_default();
            let change = account.changes + 1;
            // Not all of them at once.
            let deletes = (change + 2 * writer).is_multiple_of(7);
            let deletes = deletes && account.confirmed.is_some();
            let next = (!deletes).then(|| change.to_string());
            account.begin(next.clone());
            next
        };
        match next {
            Some(value) => {
                let (key, version) = (key.clone(), None);
                let request = SetConfigRequest {
                    key,
                    value,
                    version,
                };
                admin.set_config(request).await.map(drop)?;
            }
            None => {
                let (key, version) = (key.clone(), None);
                let request = DeleteConfigRequest { key, version };
                admin.delete_config(request).await.map(drop)?;
            }
        }
        books.lock().unwrap().entry(writer).or_default().confirm();
    }
}

pub(crate) async fn entries(address: &str) -> Vec<ConfigEntry> {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    let request = ListConfigRequest::default();
    let answer = admin.list_config(request).await.unwrap();
    answer.into_inner().entries
}

pub(crate) fn audit(books: &Books, entries: &[ConfigEntry]) {
    for (writer, account) in books.lock().unwrap().iter_mut() {
        let key = format!("writer:{writer}");
        let found = entries.iter().find(|entry| entry.key == key);
        let found = found.map(|entry| entry.value.clone());
        account.audit(&key, found);
    }
}

#[test]
fn a_confirmed_change_of_the_runtime_configuration_survives_kill_9() {
    let directory = TempDir::new().unwrap();
    let books = Books::default();
    let changes = |books: &Books| -> u64 {
        let books = books.lock().unwrap();
        books.values().map(|account| account.changes).sum()
    };
    let mut version = None;
    for _ in 0..number("FILA_KILL_ROUNDS", 3) {
        let runtime = runtime();
        runtime.block_on(async {
            let mut server = Server::start(directory.path());
            let goal = changes(&books) + 100;
            let mut writers = JoinSet::new();
            for writer in 0..WRITERS {
                let (address, books) = (server.address.clone(), books.clone());
                writers.spawn(async move {
                    // The server's death is how this ends.
                    let _ = write(&address, &books, writer).await;
                });
            }
            let progress = async {
                while changes(&books) < goal {
                    tokio::task::yield_now().await;
                }
            };
            let progress = tokio::time::timeout(traffic::PATIENCE, progress).await;
            progress.expect("work goes on");
            server.kill();
            traffic::ended(writers).await;

            let server = Server::start(directory.path());
            let entries = entries(&server.address).await;
            audit(&books, &entries);
            let newest = entries.iter().map(|entry| entry.version).max();
            assert!(newest > version, "versions grow, over restarts too");
            version = newest;
        });
    }
}
