//! A wire that can be cut: a TCP proxy in front of a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes bytes on until it has passed as many as it may; then all connections end, in the middle of whatever it was.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    wire: Arc<Wire>,
}

#[derive(Debug)]
struct Wire {
    server: SocketAddr,
    /// Bytes until the next cut; any number if negative.
    left: AtomicI64,
    cuts: AtomicU64,
    generation: watch::Sender<u64>,
}

impl Proxy {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let wire = Arc::new(Wire {
            server,
            left: AtomicI64::new(-1),
            cuts: AtomicU64::new(0),
            generation: watch::Sender::new(0),
        });
        let shared = wire.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(shared.clone().join(client));
            }
        });
        Self { address, wire }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Cuts all connections after this many more bytes, in both directions together.
    pub(crate) fn cut_after(&self, bytes: u32) {
        self.wire.left.store(bytes.into(), Ordering::SeqCst);
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.wire.cuts.load(Ordering::SeqCst)
    }
}

impl Wire {
    fn cut(&self) {
        self.left.store(-1, Ordering::SeqCst);
        self.cuts.fetch_add(1, Ordering::SeqCst);
        self.generation.send_modify(|generation| *generation += 1);
    }

    async fn join(self: Arc<Self>, client: TcpStream) {
        let mut cut = self.generation.subscribe();
        cut.mark_unchanged();
        let Ok(server) = TcpStream::connect(self.server).await else {
            return;
        };
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            () = self.pass(from_client, to_server) => {}
            () = self.pass(from_server, to_client) => {}
            _ = cut.changed() => {}
        }
    }

    async fn pass(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let left = self.left.load(Ordering::SeqCst);
            let is_last = left >= 0 && left < count as i64;
            let passed = if is_last { left as usize } else { count };
            if to.write_all(&buffer[..passed]).await.is_err() {
                return;
            }
            if is_last {
                return self.cut();
            }
            if left >= 0 {
                self.left.fetch_sub(count as i64, Ordering::SeqCst);
            }
        }
    }
}
