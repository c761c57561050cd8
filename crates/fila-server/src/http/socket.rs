//! A connection's socket, with an eye on clients that send or read nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A socket that fails when its client reads nothing for too long while there is something to write.
#[derive(Debug)]
pub(super) struct Socket<S> {
    stream: S,
    write_max: Duration,
    seen: Arc<Seen>,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

/// What a socket has seen of its client.
#[derive(Debug, Default)]
pub(super) struct Seen {
    received: AtomicUsize,
    is_unread: AtomicBool,
}

impl Seen {
    /// Returns how many bytes the client has sent.
    pub(super) fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }

    /// Tells whether the socket has failed because the client reads nothing.
    pub(super) fn is_unread(&self) -> bool {
        self.is_unread.load(Ordering::Relaxed)
    }
}

impl<S> Socket<S> {
    pub(super) fn new(stream: S, write_max: Duration) -> Self {
        Self {
            stream,
            write_max,
            seen: Arc::default(),
            waiting: None,
        }
    }

    pub(super) fn seen(&self) -> Arc<Seen> {
        self.seen.clone()
    }

    /// Bounds the time that a write waits.
    fn bound(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let write_max = self.write_max;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(sleep(write_max)));
        ready!(waiting.as_mut().poll(context));
        self.seen.is_unread.store(true, Ordering::Relaxed);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let received = buffer.filled().len() - before;
        self.seen.received.fetch_add(received, Ordering::Relaxed);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bound(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bound(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_fails_the_socket_and_a_slow_one_does_not() {
        let (near, mut far) = duplex(16);
        let mut socket = Socket::new(near, Duration::from_secs(30));
        let seen = socket.seen();
        far.write_all(b"hello").await.unwrap();
        socket.read_exact(&mut [0; 5]).await.unwrap();
        assert_eq!(seen.received(), 5);

        let slow = tokio::spawn(async move {
            for _ in 0..10 {
                sleep(Duration::from_secs(29)).await;
                far.read_exact(&mut [0; 16]).await.unwrap();
            }
            far
        });
        socket.write_all(&[0; 160]).await.unwrap();
        let _far = slow.await.unwrap();
        assert!(!seen.is_unread());

        socket.write_all(&[0; 16]).await.unwrap();
        let failed = socket.write_all(&[0; 1]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert!(seen.is_unread());
    }
}
