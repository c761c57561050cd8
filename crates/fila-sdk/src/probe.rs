//! The first request over a new connection with TLS, which shows whether the server accepts the client.
//!
//! A connection is open before that is known: with TLS 1.3 the server looks at the client's certificate after the client's
//! side of the handshake has ended. A later call would find a closed connection, without the reason.

use std::future::poll_fn;
use std::io;

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
            Some(error) => explain(&error, options),
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

/// Returns why the server ended every connection without an answer. The handshakes have succeeded, so the server speaks TLS,
/// and still does not want this client. A server that is gone is left to the calls.
fn explain(error: &tonic::transport::Error, options: &Options) -> Result<(), Error> {
    let fault = match options.tls.identity {
        _ if is_refused(error) => return Ok(()),
        Some(_) => TlsFault::ClientCertificateRefused,
        None => TlsFault::ClientCertificateMissing,
    };
    Err(options.tls_error(fault, describe(error)))
}

/// Tells whether nothing listens at the address any more.
fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
    })
}
