//! A load generator: connections that are kept alive, each with one request at a time.
//!
//! It implements just enough HTTP to measure the servers of this bench: from a response it reads the status, the
//! `Retry-After` and the length of the body. A complete client would mostly measure itself.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The reply of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<u64>,
    pub(crate) took: Duration,
}

/// One connection, of one tenant.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(server: SocketAddr, tenant: u64) -> io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let request = format!("GET / HTTP/1.1\r\nhost: bench\r\nx-tenant-id: {tenant}\r\n\r\n");
        Ok(Self {
            stream,
            request: request.into_bytes(),
            buffer: Vec::with_capacity(1024),
        })
    }

    /// Sends the request and reads the response to its end.
    pub(crate) async fn get(&mut self) -> io::Result<Reply> {
        let begun = Instant::now();
        self.stream.write_all(&self.request).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some((status, retry_after)) = parse(&self.buffer)? {
                return Ok(Reply {
                    status,
                    retry_after,
                    took: begun.elapsed(),
                });
            }
        }
    }
}

/// Returns the status and the wait of a response, if it is complete.
fn parse(bytes: &[u8]) -> io::Result<Option<(u16, Option<u64>)>> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| bad())?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status
        .and_then(|status| status.parse().ok())
        .ok_or_else(bad)?;
    let (mut length, mut retry_after) = (0_usize, None);
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or_else(bad)?;
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().map_err(|_| bad())?;
        } else if name.eq_ignore_ascii_case("retry-after") {
            retry_after = value.parse().ok();
        }
    }
    Ok((bytes.len() >= end + 4 + length).then_some((status, retry_after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_to_its_end() {
        let response =
            b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\ncontent-length: 3\r\n\r\nno!";
        for part in 0..response.len() {
            assert!(matches!(parse(&response[..part]), Ok(None)), "{part}");
        }
        assert!(matches!(parse(response), Ok(Some((429, Some(7))))));
        assert!(parse(b"nonsense\r\n\r\n").is_err());
    }
}
