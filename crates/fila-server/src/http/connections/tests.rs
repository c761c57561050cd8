use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio_util::sync::DropGuard;

use super::*;
use crate::metrics::Metrics;

/// Longer than anything takes that works.
const SOON: Duration = Duration::from_secs(20);
/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(50);
const PATIENT: ClientPatience = ClientPatience {
    hello: LONG,
    ping: LONG,
    read: LONG,
    crowded: LONG,
    turned_away: LONG,
};

/// The preface of HTTP/2, empty settings, and headers that do not end.
const ENDLESS_HEADERS: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\0\0\0\0\x01\x82";

/// A port with nothing behind it.
struct Port {
    address: SocketAddr,
    counts: Arc<ConnectionCounts>,
    serving: JoinHandle<()>,
    _guards: (DropGuard, DropGuard),
}

impl Port {
    async fn open(patience: ClientPatience, places: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(ConnectionCounts::default());
        let connections = Connections {
            threads: IoThreads::start(1).unwrap(),
            site: Site::starting(),
            tls: None,
            receiving: Arc::new(Receiving::new(1 << 20, 1 << 20)),
            places: Places::new(places),
            patience,
            counts: counts.clone(),
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
        };
        let kill = connections.kill.clone().drop_guard();
        let stop = connections.stop.clone().drop_guard();
        Self {
            address,
            counts,
            serving: tokio::spawn(connections.serve(listener)),
            _guards: (stop, kill),
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes and then nothing, and returns what comes until the server closes the connection.
    async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        until_closed(&mut stream).await
    }

    fn timed_out(&self) -> u64 {
        self.counts.timed_out.load(Ordering::Relaxed)
    }

    /// Waits until this many connections have timed out. The thread of a connection closes it first, and then counts it.
    async fn wait_for_timed_out(&self, expected: u64) {
        let counted = async {
            while self.timed_out() < expected {
                tokio::task::yield_now().await;
            }
        };
        let counted = tokio::time::timeout(SOON, counted).await;
        counted.expect("the server counts the connection");
        assert_eq!(self.timed_out(), expected);
    }
}

async fn until_closed(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A connection that was reset is closed, too.
    let closed = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await;
    let _ = closed.expect("the server closes the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn connections_are_counted_that_were_there_before_anything_else() {
    let port = Port::open(PATIENT, 10).await;
    let _client = port.connect().await;
    while port.counts.open.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let metrics = Metrics::new();
    metrics.count_connections(port.counts.clone());
    assert_eq!(metrics.connections(), 1);
    drop(port._guards);
    port.serving.await.unwrap();
    assert_eq!(metrics.connections(), 0);
}

#[tokio::test]
async fn the_begin_of_a_connection_and_headers_over_http_1_must_arrive_in_time() {
    let patience = ClientPatience {
        hello: SHORT,
        ..PATIENT
    };
    let port = Port::open(patience, 10).await;
    let beginnings = [
        "",
        "P",
        "PRI * HTTP/2.0\r\n",
        "GET /hea",
        "GET /healthz HTTP/1.1\r\nhost: fila\r\nx-slow: ",
    ];
    for (before, begin) in (0..).zip(beginnings) {
        assert_eq!(port.timed_out(), before);
        port.send(begin.as_bytes()).await;
        port.wait_for_timed_out(before + 1).await;
    }
    // A body that does not arrive holds nothing up: no page reads it.
    let request = "POST /healthz HTTP/1.1\r\nhost: fila\r\ncontent-length: 10\r\n\r\nhalf";
    let answer = port.send(request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
}

#[tokio::test]
async fn headers_over_http_2_that_do_not_end_are_silence() {
    let patience = ClientPatience {
        ping: SHORT,
        ..PATIENT
    };
    let port = Port::open(patience, 10).await;
    port.send(ENDLESS_HEADERS).await;
    port.wait_for_timed_out(1).await;

    // One that adds a byte now and then is not better off.
    let (mut reader, mut writer) = port.connect().await.into_split();
    writer.write_all(ENDLESS_HEADERS).await.unwrap();
    let dribble = async move {
        let more = b"\0\0\x01\x09\0\0\0\0\x01\x84";
        while writer.write_all(more).await.is_ok() {
            sleep(SHORT / 2).await;
        }
    };
    let mut answer = Vec::new();
    let closed = async {
        tokio::select! {
            _ = reader.read_to_end(&mut answer) => {}
            () = dribble => {}
        }
    };
    tokio::time::timeout(SOON, closed).await.unwrap();
}

#[tokio::test]
async fn a_client_that_reads_nothing_loses_its_connection() {
    let patience = ClientPatience {
        read: SHORT,
        ..PATIENT
    };
    let port = Port::open(patience, 10).await;
    let mut stream = port.connect().await;
    let requests = "GET /healthz HTTP/1.1\r\nhost: fila\r\n\r\n".repeat(1_000);
    let asking = async { while stream.write_all(requests.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(SOON, asking).await.unwrap();
    port.wait_for_timed_out(1).await;
}

#[tokio::test]
async fn a_connection_without_a_place_is_told_why_and_others_go_on() {
    let port = Port::open(PATIENT, 1).await;
    let mut first = port.connect().await;
    let request = "GET /healthz HTTP/1.1\r\nhost: fila\r\n\r\n";
    let answer = port.send(request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("limits.connections"), "{answer}");
    assert_eq!(port.counts.refused.load(Ordering::Relaxed), 1);

    let last = "GET /healthz HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n";
    first.write_all(last.as_bytes()).await.unwrap();
    assert!(until_closed(&mut first).await.ends_with("alive\n"));
}

#[tokio::test]
async fn a_connection_without_a_place_that_asks_nothing_is_closed() {
    let patience = ClientPatience {
        turned_away: SHORT,
        ..PATIENT
    };
    let port = Port::open(patience, 1).await;
    let _first = port.connect().await;
    assert_eq!(port.send(b"").await, "");
    assert_eq!(port.send(b"PRI").await, "");
}
