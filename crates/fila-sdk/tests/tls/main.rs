//! Secure connections, and what the client says when there is none.
#![cfg(test)] // helpers may unwrap, as tests do

mod authority;
#[path = "../../../fila-server/tests/common/basics.rs"]
#[expect(
    dead_code,
    reason = "other tests share these helpers and use more of them"
)]
mod basics;
mod front;

use std::path::PathBuf;

use fila_sdk::{Client, ClientBuilder, Error, QueueSettings, Settings, SettingsFlags, TlsFault};
use fila_server::Server;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use authority::Authority;
use basics::{in_memory, soon};
use front::Front;

const HOST: &str = "127.0.0.1";

/// Connects, which must fail because of TLS, and returns the reason and the text of the error.
async fn fault(builder: ClientBuilder) -> (TlsFault, String) {
    let error = soon(builder.connect()).await.unwrap_err();
    let text = error.to_string();
    match error {
        Error::Tls { fault, .. } => (fault, text),
        other => panic!("{other:?}"),
    }
}

/// Writes a file into a folder, and returns its path.
fn write(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Sends a message over a connection that must work.
async fn send(builder: ClientBuilder) {
    let client = soon(builder.connect()).await.unwrap();
    let created = client
        .admin()
        .create_queue("orders", QueueSettings::new())
        .await;
    created.unwrap();
    soon(client.queue("orders").send("7")).await.unwrap();
}

#[tokio::test]
async fn a_server_of_a_trusted_authority_is_trusted() {
    let authority = Authority::new();
    let front = Front::start(&authority.server(HOST)).await;
    send(front.client(&authority)).await;
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_trusted() {
    let front = Front::start(&Authority::new().server(HOST)).await;
    let (fault, text) = fault(front.client(&Authority::named("another"))).await;
    assert_eq!(fault, TlsFault::UnknownIssuer);
    assert!(text.contains("set `ca_file`"), "{text}");
}

#[tokio::test]
async fn a_server_of_an_older_authority_of_the_same_name_is_not_trusted() {
    let front = Front::start(&Authority::new().server(HOST)).await;
    let (fault, text) = fault(front.client(&Authority::new())).await;
    assert_eq!(fault, TlsFault::UnknownIssuer);
    assert!(text.contains("set `ca_file`"), "{text}");
}

#[tokio::test]
async fn the_authorities_of_the_system_are_not_enough_for_a_private_one() {
    let front = Front::start(&Authority::new().server(HOST)).await;
    let builder = Client::builder(format!("https://{}", front.address()));
    match soon(builder.connect()).await.unwrap_err() {
        Error::Tls { fault, .. } => assert_eq!(fault, TlsFault::UnknownIssuer),
        // A machine may have none at all.
        other => assert!(matches!(other, Error::InvalidTls { .. }), "{other:?}"),
    }
}

#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let authority = Authority::new();
    let front = Front::start(&authority.expired_server(HOST)).await;
    let (fault, text) = fault(front.client(&authority)).await;
    assert_eq!(fault, TlsFault::Expired);
    assert!(text.contains("renew"), "{text}");
}

#[tokio::test]
async fn a_certificate_of_the_future_is_refused() {
    let authority = Authority::new();
    let front = Front::start(&authority.future_server(HOST)).await;
    let (fault, text) = fault(front.client(&authority)).await;
    assert_eq!(fault, TlsFault::NotYetValid);
    assert!(text.contains("clock"), "{text}");
}

#[tokio::test]
async fn a_certificate_of_another_name_is_refused() {
    let authority = Authority::new();
    let front = Front::start(&authority.server("broker.example")).await;
    let (fault, text) = fault(front.client(&authority)).await;
    assert_eq!(fault, TlsFault::NameMismatch);
    assert!(text.contains("broker.example"), "{text}");
    send(front.client(&authority).server_name("broker.example")).await;
}

#[tokio::test]
async fn a_client_proves_itself_with_its_certificate() {
    let authority = Authority::new();
    let front = Front::start_for(&authority.server(HOST), &authority).await;
    let own = authority.client();
    send(
        front
            .client(&authority)
            .client_certificate(own.certificate, own.key),
    )
    .await;
}

#[tokio::test]
async fn the_files_of_settings_are_enough_for_both_sides() {
    let authority = Authority::new();
    let front = Front::start_for(&authority.server(HOST), &authority).await;
    let own = authority.client();
    let folder = tempfile::tempdir().unwrap();
    let mut flags = SettingsFlags::default();
    flags.address = Some(format!("https://{}", front.address()));
    flags.ca_file = Some(write(&folder, "ca.pem", &authority.pem()));
    flags.cert_file = Some(write(&folder, "own.pem", &own.certificate));
    flags.cert_key_file = Some(write(&folder, "own.key", &own.key));
    let settings = Settings::resolve(&flags, |_| None).unwrap();
    send(settings.builder().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_the_required_certificate_hears_so() {
    let authority = Authority::new();
    let front = Front::start_for(&authority.server(HOST), &authority).await;
    let (fault, text) = fault(front.client(&authority)).await;
    assert_eq!(fault, TlsFault::ClientCertificateMissing);
    assert!(text.contains("`cert_file`"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_the_certificate_of_another_authority_hears_so() {
    let authority = Authority::new();
    let front = Front::start_for(&authority.server(HOST), &authority).await;
    let own = Authority::named("another").client();
    let builder = front.client(&authority);
    let (fault, text) = fault(builder.client_certificate(own.certificate, own.key)).await;
    assert_eq!(fault, TlsFault::ClientCertificateRefused);
    assert!(text.contains("`cert_file`"), "{text}");
}

#[tokio::test]
async fn a_client_with_tls_of_a_plain_port_hears_so() {
    let server = soon(Server::start(in_memory())).await.unwrap();
    let address = format!("https://{}", server.address());
    let builder = Client::builder(address).ca_certificate(Authority::new().pem());
    let (fault, text) = fault(builder).await;
    assert_eq!(fault, TlsFault::ServerIsPlain);
    assert!(text.contains("http://"), "{text}");
}

#[tokio::test]
async fn a_server_that_hangs_up_during_the_handshake_is_told_from_one_that_is_away() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let server = async {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut hello = [0; 4096];
        let read = client.read(&mut hello).await.unwrap();
        assert!((1..hello.len()).contains(&read), "the whole hello");
    };
    let builder = Client::builder(address).ca_certificate(Authority::new().pem());
    let ((), (fault, text)) = tokio::join!(server, fault(builder));
    assert_eq!(fault, TlsFault::Handshake);
    assert!(text.contains("check that the port"), "{text}");
}

#[tokio::test]
async fn a_call_of_a_client_that_connects_late_has_the_same_error() {
    let front = Front::start(&Authority::new().server(HOST)).await;
    let client = front.client(&Authority::new()).connect_lazy().unwrap();
    let admin = client.admin();
    let error = soon(admin.queues("")).await.unwrap_err();
    let fault = TlsFault::UnknownIssuer;
    assert!(
        matches!(error, Error::Tls { fault: found, .. } if found == fault),
        "{error:?}"
    );
    let created = admin.create_queue("orders", QueueSettings::new());
    let error = soon(created).await.unwrap_err();
    assert!(
        matches!(error, Error::Tls { fault: found, .. } if found == fault),
        "{error:?}"
    );
}

#[tokio::test]
async fn certificates_for_an_address_without_tls_are_refused() {
    let builder = Client::builder("127.0.0.1:1").ca_certificate(Authority::new().pem());
    let error = builder.connect_lazy().unwrap_err();
    assert!(matches!(error, Error::InvalidTls { .. }), "{error:?}");
    assert!(
        error.to_string().contains("write it with https://"),
        "{error}"
    );
}

#[tokio::test]
async fn a_key_of_another_certificate_is_refused() {
    let authority = Authority::new();
    let (one, other) = (authority.client(), authority.client());
    let builder = Client::builder("https://127.0.0.1:1").ca_certificate(authority.pem());
    let builder = builder.client_certificate(one.certificate, other.key);
    let error = builder.connect_lazy().unwrap_err();
    assert!(matches!(error, Error::InvalidTls { .. }), "{error:?}");
}
