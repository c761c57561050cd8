//! The first request over a new connection, which shows whether both sides speak the same protocol.
//!
//! A connection is open before that is known. With TLS 1.3 the server looks at the client's certificate after the client's
//! side of the handshake has ended, and without TLS the client just sends. A later call would find a closed connection,
//! without the reason.

use std::future::poll_fn;
use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::http::{Request, Uri};
use tonic::transport::Channel;

use crate::Error;
use crate::client::Options;
use crate::error::describe;
use crate::tls_fault::TlsFault;

/// How often the client asks. If the server closes the connection before it has read the request, the system may throw
/// away the alert with the reason; the channel opens another connection for the next request.
const TRIES: u32 = 3;

/// The first bytes of HTTP/2: as many as TLS needs to see that they are not TLS, so that the server has read everything
/// when it closes the connection, and its alert arrives.
const PREFACE: &[u8; 5] = b"PRI *";

/// The first bytes of an alert of TLS: its type, and the version of all versions.
const ALERT: [u8; 2] = [21, 3];

/// Sends a request, and fails if the two sides cannot agree on TLS. Every answer will do, and so will none: calls have
/// deadlines of their own, and repeat what can be repeated.
pub(crate) async fn probe(channel: &Channel, options: &Options) -> Result<(), Error> {
    let tries = async {
        let mut broken = None;
        for _ in 0..TRIES {
            let Err(error) = ask(channel.clone()).await else {
                return Ok(());
            };
            if let Some(fault) = TlsFault::find(&error) {
                return Err(options.tls_error(fault, describe(&error)));
            }
            broken = Some(error);
        }
        match broken {
            Some(error) => explain(&error, options).await,
            None => Ok(()),
        }
    };
    timeout(options.connect_timeout, tries)
        .await
        .unwrap_or(Ok(()))
}

/// Asks whether the server is alive, which needs no permission and is cheap.
async fn ask(mut channel: Channel) -> Result<(), tonic::transport::Error> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = Uri::from_static("/healthz");
    poll_fn(|context| channel.poll_ready(context)).await?;
    channel.call(request).await?;
    Ok(())
}

/// Looks for the reason why the server ended every connection without an answer. An unknown one is left to the calls.
async fn explain(error: &tonic::transport::Error, options: &Options) -> Result<(), Error> {
    let cause = describe(error);
    let fault = if options.is_secure() {
        // The handshakes have succeeded, so the server is one, and it still does not want this client.
        match options.tls.identity {
            _ if is_refused(error) => return Ok(()),
            Some(_) => TlsFault::ClientCertificateRefused,
            None => TlsFault::ClientCertificateMissing,
        }
    } else if answers_with_alert(&options.address).await.unwrap_or(false) {
        TlsFault::ServerIsTls
    } else {
        return Ok(());
    };
    Err(options.tls_error(fault, cause))
}

/// Tells whether nothing listens at the address any more.
fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
    })
}

/// Tells whether the server at this address answers the beginning of HTTP/2 with an alert of TLS.
async fn answers_with_alert(address: &str) -> io::Result<bool> {
    let uri = address.parse::<Uri>().map_err(io::Error::other)?;
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().unwrap_or(80);
    let mut stream = TcpStream::connect(format!("{host}:{port}")).await?;
    stream.write_all(PREFACE).await?;
    let mut answer = [0; ALERT.len()];
    stream.read_exact(&mut answer).await?;
    Ok(answer == ALERT)
}
