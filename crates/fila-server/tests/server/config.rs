//! The runtime configuration: durable, checked, bounded, and in effect at once.

use std::sync::Arc;

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::{
    ConfigEntry, DeleteConfigRequest, GetConfigRequest, ListConfigRequest, SetConfigRequest,
};
use fila_server::Server;
use fila_server::config::Config;
use fila_server::runtime::Stopped;
use fila_store::{Accident, MemoryDisk, MemoryEngine};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::common::{Rig, assert_refused, code, connect, get, in_memory, on_disk, soon};

type Admin = FilaAdminClient<Channel>;

async fn set_if(
    admin: &mut Admin,
    key: &str,
    value: &str,
    version: Option<u64>,
) -> Result<ConfigEntry, Status> {
    let request = SetConfigRequest {
        key: key.to_owned(),
        value: value.to_owned(),
        version,
    };
    let answer = soon(admin.set_config(request)).await?;
    Ok(answer.into_inner().entry.unwrap())
}

async fn set(admin: &mut Admin, key: &str, value: &str) -> Result<ConfigEntry, Status> {
    set_if(admin, key, value, None).await
}

async fn read(admin: &mut Admin, key: &str) -> Result<ConfigEntry, Status> {
    let key = key.to_owned();
    let answer = soon(admin.get_config(GetConfigRequest { key })).await?;
    Ok(answer.into_inner().entry.unwrap())
}

async fn delete(admin: &mut Admin, key: &str, version: Option<u64>) -> Result<(), Status> {
    let key = key.to_owned();
    let request = DeleteConfigRequest { key, version };
    soon(admin.delete_config(request)).await.map(drop)
}

/// Returns all keys, page by page, and how many pages there were.
async fn keys(admin: &mut Admin, prefix: &str, page_size: u32) -> (Vec<String>, usize) {
    let (mut keys, mut pages, mut page_token) = (Vec::new(), 0, String::new());
    loop {
        let request = ListConfigRequest {
            prefix: prefix.to_owned(),
            page_size,
            page_token,
        };
        let page = soon(admin.list_config(request)).await.unwrap().into_inner();
        pages += 1;
        keys.extend(page.entries.into_iter().map(|entry| entry.key));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return (keys, pages);
        }
    }
}

fn small(limit: impl FnOnce(&mut Config)) -> Config {
    let mut config = in_memory();
    limit(&mut config);
    config
}

#[tokio::test]
async fn an_entry_is_what_it_was_set_to_until_it_is_deleted() {
    let mut rig = Rig::start().await;
    let admin = &mut rig.admin;
    let first = set(admin, "feature:new_flow", "enabled").await.unwrap();
    assert_eq!(first.value, "enabled");
    assert_eq!(read(admin, "feature:new_flow").await.unwrap(), first);
    let second = set(admin, "feature:new_flow", "").await.unwrap();
    assert!(second.version > first.version);
    assert_eq!(read(admin, "feature:new_flow").await.unwrap(), second);
    delete(admin, "feature:new_flow", None).await.unwrap();
    let gone = read(admin, "feature:new_flow").await;
    assert_refused(gone, Code::NotFound, "CONFIG_NOT_FOUND");
    let gone = delete(admin, "feature:new_flow", None).await;
    assert_refused(gone, Code::NotFound, "CONFIG_NOT_FOUND");
    let third = set(admin, "feature:new_flow", "enabled").await.unwrap();
    assert!(third.version > second.version);
}

#[tokio::test]
async fn to_set_what_is_set_changes_nothing() {
    let mut rig = Rig::start().await;
    let first = set(&mut rig.admin, "a", "1").await.unwrap();
    let handle = rig.server.handle();
    let before = handle.config();
    assert_eq!(set(&mut rig.admin, "a", "1").await.unwrap(), first);
    assert!(Arc::ptr_eq(&before, &handle.config()));
    set(&mut rig.admin, "a", "2").await.unwrap();
    assert_eq!(handle.config().get("a"), Some("2"));
}

#[tokio::test]
async fn a_change_is_seen_by_everybody_when_it_is_answered() {
    let mut rig = Rig::start().await;
    let handle = rig.server.handle();
    for rate in ["10", "20", "0"] {
        set(&mut rig.admin, "throttle:api:rate", rate)
            .await
            .unwrap();
        let seen = handle.config();
        let throttle = seen.throttles().get("api").unwrap();
        assert_eq!(throttle.rate.per_second(), rate.parse::<f64>().unwrap());
    }
    let before = handle.config();
    delete(&mut rig.admin, "throttle:api:rate", None)
        .await
        .unwrap();
    assert!(handle.config().throttles().is_empty());
    assert!(before.throttles().get("api").unwrap().is_closed());
}

#[tokio::test]
async fn what_is_no_setting_is_refused_and_the_old_value_stays() {
    let mut rig = Rig::start().await;
    let admin = &mut rig.admin;
    set(admin, "throttle:api:rate", "10").await.unwrap();
    set(admin, "throttle:api:burst", "20").await.unwrap();
    for (key, value) in [
        ("throttle:api:rate", "ten"),
        ("throttle:api:rate", "-1"),
        ("throttle:api:rate", "inf"),
        ("throttle:api:burst", "0.5"),
        ("throttle:api:burst", "NaN"),
        ("throttle:api:rat", "10"),
        ("throttle:api", "10"),
        ("throttle::rate", "10"),
        ("", "x"),
        (" a", "x"),
        ("a\nb", "x"),
    ] {
        let refused = set(admin, key, value).await;
        assert_refused(refused, Code::InvalidArgument, "INVALID_CONFIG");
    }
    let suggestion = set(admin, "throttle:a:b:bust", "2").await.unwrap_err();
    assert!(
        suggestion.message().contains("`throttle:a:b:burst`"),
        "{suggestion}"
    );
    assert_eq!(
        keys(admin, "", 0).await.0,
        ["throttle:api:burst", "throttle:api:rate"]
    );
    let throttle = rig.server.handle().config().throttles().get("api").unwrap();
    let (rate, burst) = (throttle.rate.per_second(), throttle.burst.tokens());
    assert_eq!((rate, burst), (10.0, 20.0));
}

#[tokio::test]
async fn keys_and_values_have_limits_that_refusals_name() {
    let mut rig = Rig::start().await;
    let admin = &mut rig.admin;
    set(admin, &"k".repeat(256), &"v".repeat(64 << 10))
        .await
        .unwrap();
    let long = set(admin, &"k".repeat(257), "v").await.unwrap_err();
    assert_eq!(code(&long), "CONFIG_TOO_LARGE");
    assert_eq!(
        long.message(),
        "the key has 257 bytes, 256 are allowed; shorten it, or raise limits.config_key_bytes"
    );
    let large = set(admin, "k", &"v".repeat((64 << 10) + 1))
        .await
        .unwrap_err();
    assert_eq!(code(&large), "CONFIG_TOO_LARGE");
    assert!(
        large.message().contains("limits.config_value_bytes"),
        "{large}"
    );
    let huge = "k".repeat(1 << 20);
    let odd = read(admin, &huge).await.unwrap_err();
    assert_eq!(code(&odd), "CONFIG_NOT_FOUND");
    assert!(odd.message().len() < 1_000);
}

#[tokio::test]
async fn there_are_no_more_entries_than_the_limit() {
    let mut rig = Rig::with(small(|config| config.limits.runtime_config.entries = 2)).await;
    let admin = &mut rig.admin;
    set(admin, "a", "1").await.unwrap();
    set(admin, "b", "1").await.unwrap();
    let refused = set(admin, "c", "1").await.unwrap_err();
    assert_eq!(
        (refused.code(), code(&refused)),
        (Code::ResourceExhausted, "CONFIG_FULL")
    );
    assert!(
        refused.message().contains("limits.config_entries"),
        "{refused}"
    );
    set(admin, "b", "changed").await.unwrap();
    delete(admin, "a", None).await.unwrap();
    set(admin, "c", "1").await.unwrap();
}

#[tokio::test]
async fn all_entries_together_have_a_size_and_what_shrinks_always_fits() {
    let mut rig = Rig::with(small(|config| {
        config.limits.runtime_config.bytes = "10 B".parse().unwrap();
    }))
    .await;
    let admin = &mut rig.admin;
    set(admin, "a", "1234").await.unwrap();
    set(admin, "b", "1234").await.unwrap();
    let refused = set(admin, "b", "12345").await.unwrap_err();
    assert_eq!(code(&refused), "CONFIG_FULL");
    assert!(
        refused.message().contains("limits.config_bytes"),
        "{refused}"
    );
    set(admin, "b", "123").await.unwrap();
    set(admin, "a", "12345").await.unwrap();
    assert_eq!(rig.server.handle().config().bytes(), 10);
}

#[tokio::test]
async fn a_change_with_a_version_happens_only_if_no_other_came_first() {
    let mut rig = Rig::start().await;
    let admin = &mut rig.admin;
    let absent = set_if(admin, "a", "1", Some(7)).await;
    assert_refused(absent, Code::Aborted, "CONFIG_CHANGED");
    let first = set_if(admin, "a", "1", Some(0)).await.unwrap();
    let present = set_if(admin, "a", "1", Some(0)).await;
    assert_refused(present, Code::Aborted, "CONFIG_CHANGED");
    let second = set_if(admin, "a", "2", Some(first.version)).await.unwrap();
    let stale = set_if(admin, "a", "3", Some(first.version)).await;
    assert_refused(stale, Code::Aborted, "CONFIG_CHANGED");
    let stale = delete(admin, "a", Some(first.version)).await;
    assert_refused(stale, Code::Aborted, "CONFIG_CHANGED");
    assert_eq!(read(admin, "a").await.unwrap(), second);
    delete(admin, "a", Some(second.version)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_compare_and_set_at_once_one_wins_each_round() {
    const CLIENTS: u64 = 8;
    const ROUNDS: u64 = 25;
    let mut rig = Rig::start().await;
    set(&mut rig.admin, "counter", "0").await.unwrap();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let mut admin = FilaAdminClient::new(connect(&rig.server).await);
        clients.spawn(async move {
            let mut lost = 0_u64;
            for _ in 0..ROUNDS {
                loop {
                    let seen = read(&mut admin, "counter").await.unwrap();
                    let next = seen.value.parse::<u64>().unwrap() + 1;
                    let next = next.to_string();
                    match set_if(&mut admin, "counter", &next, Some(seen.version)).await {
                        Ok(_) => break,
                        Err(refused) => assert_eq!(code(&refused), "CONFIG_CHANGED"),
                    }
                    lost += 1;
                }
            }
            lost
        });
    }
    let lost: u64 = soon(clients.join_all()).await.into_iter().sum();
    let counter = read(&mut rig.admin, "counter").await.unwrap();
    assert_eq!(
        counter.value,
        (CLIENTS * ROUNDS).to_string(),
        "{lost} lost races"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_sets_are_all_kept_and_readers_see_whole_states() {
    let mut rig = Rig::start().await;
    let handle = rig.server.handle();
    let mut setters = JoinSet::new();
    for client in 0..8 {
        let mut admin = FilaAdminClient::new(connect(&rig.server).await);
        setters.spawn(async move {
            for number in 0..50 {
                let key = format!("{client}:{number:02}");
                set(&mut admin, &key, &key).await.unwrap();
            }
        });
    }
    let reader = tokio::task::spawn_blocking(move || {
        let mut seen = 0;
        while seen < 400 {
            let state = handle.config();
            assert!(
                state.len() >= seen,
                "a state is never older than one before"
            );
            seen = state.len();
            let bytes: usize = state.range("", "").map(|entry| entry.bytes()).sum();
            assert_eq!(bytes, state.bytes());
        }
    });
    soon(setters.join_all()).await;
    soon(reader).await.unwrap();
    let (all, pages) = keys(&mut rig.admin, "", 7).await;
    assert_eq!((all.len(), pages), (400, 58));
    assert!(all.is_sorted());
    assert_eq!(
        keys(&mut rig.admin, "3:", 0).await,
        (all[150..200].to_vec(), 1)
    );
}

#[tokio::test]
async fn a_page_ends_before_it_is_too_large_to_receive() {
    let mut rig = Rig::start().await;
    let value = "v".repeat(64 << 10);
    for number in 0..80 {
        set(&mut rig.admin, &format!("{number:02}"), &value)
            .await
            .unwrap();
    }
    let (all, pages) = keys(&mut rig.admin, "", 1_000).await;
    assert_eq!((all.len(), pages), (80, 5));
}

#[tokio::test]
async fn the_runtime_configuration_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    let kept = set(&mut rig.admin, "throttle:api:rate", "10")
        .await
        .unwrap();
    set(&mut rig.admin, "gone", "x").await.unwrap();
    delete(&mut rig.admin, "gone", None).await.unwrap();
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);

    let mut rig = Rig::with(on_disk(directory.path())).await;
    assert_eq!(
        read(&mut rig.admin, "throttle:api:rate").await.unwrap(),
        kept
    );
    assert_eq!(keys(&mut rig.admin, "", 0).await.0, ["throttle:api:rate"]);
    let throttles = rig.server.handle().config().throttles().clone();
    assert_eq!(throttles.len(), 1);
    let next = set_if(
        &mut rig.admin,
        "throttle:api:rate",
        "20",
        Some(kept.version),
    )
    .await;
    assert!(next.unwrap().version > kept.version);
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
}

#[tokio::test]
async fn what_was_not_stored_is_not_in_effect() {
    for accident in [Accident::Stored, Accident::Lost] {
        let disk = MemoryDisk::default();
        let on = async |disk: &MemoryDisk| {
            let engine = MemoryEngine::open(disk).unwrap();
            Rig::of(soon(Server::start_on(in_memory(), engine)).await.unwrap()).await
        };
        let mut rig = on(&disk).await;
        set(&mut rig.admin, "a", "before").await.unwrap();
        disk.fail_next_write(accident);
        let unknown = set(&mut rig.admin, "a", "after").await;
        assert_refused(unknown, Code::Unknown, "OUTCOME_UNKNOWN");
        assert_eq!(read(&mut rig.admin, "a").await.unwrap().value, "before");
        let refused = set(&mut rig.admin, "b", "x").await;
        assert_refused(refused, Code::Unavailable, "STORE_UNAVAILABLE");
        let refused = set(&mut rig.admin, "a", "again").await;
        assert_refused(refused, Code::Unavailable, "STORE_UNAVAILABLE");
        let refused = delete(&mut rig.admin, "a", None).await;
        assert_refused(refused, Code::Unavailable, "STORE_UNAVAILABLE");
        let _ = soon(rig.server.shutdown()).await;

        let mut rig = on(&disk).await;
        let found = read(&mut rig.admin, "a").await.unwrap().value;
        let expected = match accident {
            Accident::Stored => "after",
            Accident::Lost => "before",
        };
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn metrics_count_entries_bytes_and_changes() {
    let mut rig = Rig::start().await;
    set(&mut rig.admin, "a", "secret").await.unwrap();
    set(&mut rig.admin, "b", "22").await.unwrap();
    set(&mut rig.admin, "b", "22").await.unwrap();
    delete(&mut rig.admin, "b", None).await.unwrap();
    let _ = set(&mut rig.admin, "", "refused").await;
    let page = get(&rig.server, "/metrics").await.1;
    for line in [
        "fila_config_entries 1\n",
        "fila_config_size_bytes 7\n",
        "fila_config_changes_total 3\n",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    assert!(!page.contains("secret"));
}
