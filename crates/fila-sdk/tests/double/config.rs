//! The runtime configuration of the test broker.

use fila_sdk::testing::Broker;
use fila_sdk::{ErrorCode, Expected};

#[tokio::test(start_paused = true)]
async fn the_double_keeps_a_runtime_configuration() {
    let admin = Broker::new().client().admin();
    let first = admin
        .set_config("flag", "on", Expected::Absent)
        .await
        .unwrap();
    let again = admin.set_config("flag", "on", Expected::Any).await.unwrap();
    assert_eq!(first, again);
    let refused = admin.set_config("flag", "off", Expected::Absent).await;
    assert_eq!(refused.unwrap_err().code(), Some(ErrorCode::ConfigChanged));
    assert_eq!(admin.config("flag").await.unwrap(), Some(first.clone()));
    assert_eq!(admin.configs("f").await.unwrap().len(), 1);
    let stale = admin.delete_config("flag", Some(first.version + 1)).await;
    assert_eq!(stale.unwrap_err().code(), Some(ErrorCode::ConfigChanged));
    admin.delete_config("flag", None).await.unwrap();
    assert_eq!(admin.config("flag").await.unwrap(), None);
    let gone = admin.delete_config("flag", None).await;
    assert_eq!(gone.unwrap_err().code(), Some(ErrorCode::ConfigNotFound));
}
