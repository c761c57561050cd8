//! HTTP/2 connections that are open and only answer pings.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

/// The first bytes of a client: the preface, and an empty frame of settings.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The size of a frame's header.
const HEAD: usize = 9;

/// The type of a ping frame, and the flag of its answer.
const PING: u8 = 6;
const ACK: u8 = 1;

/// One connection, and the received part of a frame.
#[derive(Debug)]
pub(super) struct Idle {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Idle {
    pub(super) fn open(address: &str) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(address).context("a connection within the limit")?;
        stream.write_all(HELLO)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            unread: Vec::new(),
        })
    }

    /// Answers the pings that have arrived.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub(super) fn answer(&mut self) -> anyhow::Result<()> {
        let mut bytes = [0; 256];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => anyhow::bail!("an idle connection was closed"),
                Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("an idle connection was closed"),
            }
        }
        while let Some(length) = self.frame_length() {
            let mut frame: Vec<u8> = self.unread.drain(..length).collect();
            if frame[3] == PING && frame[4] & ACK == 0 {
                frame[4] |= ACK;
                let written = self.stream.write(&frame)?;
                ensure!(written == length, "there is no room for an answer");
            }
        }
        Ok(())
    }

    /// Returns the length of the first frame, if it is complete.
    fn frame_length(&self) -> Option<usize> {
        let head = self.unread.get(..HEAD)?;
        let body = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let length = HEAD + body;
        (self.unread.len() >= length).then_some(length)
    }
}

/// Tells whether the server turns a new connection away: it may say why, and closes it soon.
pub(super) fn is_closed(address: &str) -> bool {
    const PATIENCE: Duration = Duration::from_secs(3);
    let Ok(mut stream) = TcpStream::connect(address) else {
        return true;
    };
    if stream.set_read_timeout(Some(PATIENCE)).is_err() || stream.write_all(HELLO).is_err() {
        return true;
    }
    let ends = Instant::now() + PATIENCE;
    loop {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => return true,
            Ok(_) if Instant::now() < ends => {}
            Ok(_) => return false,
            Err(error) => {
                return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    }
}
