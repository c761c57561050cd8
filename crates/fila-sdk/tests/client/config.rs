//! The runtime configuration.

use fila_sdk::{ErrorCode, Expected};

use crate::rig::{Rig, soon};

#[tokio::test]
async fn an_entry_is_set_read_listed_and_deleted() {
    let rig = Rig::start().await;
    let admin = rig.client.admin();
    assert_eq!(soon(admin.config("throttle:api:rate")).await, Ok(None));
    let set = admin.set_config("throttle:api:rate", 10, Expected::Any);
    let set = soon(set).await.unwrap();
    assert_eq!(
        (set.key.as_str(), set.value.as_str()),
        ("throttle:api:rate", "10")
    );
    assert_eq!(set.parse(), Ok(10.0));
    let found = soon(admin.config("throttle:api:rate")).await.unwrap();
    assert_eq!(found, Some(set.clone()));
    let flag = admin.set_config("feature:new_flow", true, Expected::Any);
    let flag = soon(flag).await.unwrap();
    assert_eq!(flag.parse(), Ok(true));
    assert_eq!(soon(admin.configs("")).await.unwrap(), [flag, set.clone()]);
    assert_eq!(soon(admin.configs("thr")).await.unwrap(), [set]);
    soon(admin.delete_config("throttle:api:rate", None))
        .await
        .unwrap();
    let gone = soon(admin.delete_config("throttle:api:rate", None)).await;
    assert_eq!(gone.unwrap_err().code(), Some(ErrorCode::ConfigNotFound));
}

#[tokio::test]
async fn a_change_depends_on_what_was_seen() {
    let rig = Rig::start().await;
    let admin = rig.client.admin();
    let set = async |value: &str, expected| {
        let set = soon(admin.set_config("leader", value, expected)).await;
        set.map(|entry| entry.version).map_err(|error| error.code())
    };
    let first = set("a", Expected::Absent).await.unwrap();
    assert_eq!(
        set("b", Expected::Absent).await,
        Err(Some(ErrorCode::ConfigChanged))
    );
    let second = set("b", Expected::Version(first)).await.unwrap();
    assert!(second > first);
    assert_eq!(
        set("c", Expected::Version(first)).await,
        Err(Some(ErrorCode::ConfigChanged))
    );
    let stale = soon(admin.delete_config("leader", Some(first))).await;
    assert_eq!(stale.unwrap_err().code(), Some(ErrorCode::ConfigChanged));
    soon(admin.delete_config("leader", Some(second)))
        .await
        .unwrap();
}

#[tokio::test]
async fn all_pages_are_read() {
    let rig = Rig::start().await;
    let admin = rig.client.admin();
    let value = "x".repeat(60 << 10);
    for number in 0..40 {
        let key = format!("large:{number:02}");
        let set = admin.set_config(&key, &value, Expected::Any);
        soon(set).await.unwrap();
    }
    let entries = soon(admin.configs("large:")).await.unwrap();
    assert_eq!(entries.len(), 40);
    assert!(entries.windows(2).all(|pair| pair[0].key < pair[1].key));
}
