//! HTTP/2 by hand, for clients that break its manners: calls that stall, resets, floods of small frames.
//!
//! Libraries do not let a program do these things. This client knows just enough of [RFC 9113] to keep a connection
//! alive: it obeys the server's windows, answers settings and pings, and notices the end of calls.
//!
//! [RFC 9113]: https://www.rfc-editor.org/rfc/rfc9113

use std::collections::HashMap;
use std::io;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// The first bytes of a client, before its settings.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The size of a frame's header.
const HEAD: usize = 9;

/// The largest frame that every server accepts, and the windows that every connection begins with.
const FRAME_MAX: usize = 16 << 10;
const WINDOW: i64 = 65_535;

/// A setting: how many bytes of a call's body the client may send before the server allows more.
const INITIAL_WINDOW: u16 = 4;

const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// The types of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Data = 0,
    Headers = 1,
    Reset = 3,
    Settings = 4,
    Ping = 6,
    GoAway = 7,
    WindowUpdate = 8,
}

impl FrameKind {
    const ALL: [Self; 7] = [
        Self::Data,
        Self::Headers,
        Self::Reset,
        Self::Settings,
        Self::Ping,
        Self::GoAway,
        Self::WindowUpdate,
    ];
}

/// A connection, with its windows and the calls under way.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
    window: i64,
    initial_window: i64,
    /// The window of each call under way. A call that the server has answered is gone.
    calls: HashMap<u32, i64>,
    next_call: u32,
}

impl Wire {
    /// Connects and sends the preface and empty settings.
    pub(crate) async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut wire = Self {
            stream,
            unread: Vec::new(),
            window: WINDOW,
            initial_window: WINDOW,
            calls: HashMap::new(),
            next_call: 1,
        };
        wire.stream.write_all(PREFACE).await?;
        wire.frame(FrameKind::Settings, 0, 0, &[]).await?;
        Ok(wire)
    }

    /// Begins a call of gRPC and returns its number. Its body is open.
    pub(crate) async fn begin(&mut self, path: &str) -> io::Result<u32> {
        let call = self.next_call;
        self.next_call += 2;
        self.calls.insert(call, self.initial_window);
        self.frame(FrameKind::Headers, END_HEADERS, call, &headers(path))
            .await?;
        Ok(call)
    }

    /// Sends zeros as a part of a call's body, as many as the windows and one frame allow; at most `left`.
    pub(crate) async fn send_zeros(&mut self, call: u32, left: usize) -> io::Result<usize> {
        static ZEROS: [u8; FRAME_MAX] = [0; FRAME_MAX];
        let count = self.room(call).min(left).min(FRAME_MAX);
        if count > 0 {
            self.send(call, &ZEROS[..count]).await?;
        }
        Ok(count)
    }

    /// Sends a part of a call's body that fits into its window.
    pub(crate) async fn send(&mut self, call: u32, bytes: &[u8]) -> io::Result<()> {
        self.window -= bytes.len() as i64;
        if let Some(window) = self.calls.get_mut(&call) {
            *window -= bytes.len() as i64;
        }
        self.frame(FrameKind::Data, 0, call, bytes).await
    }

    /// Returns how many bytes the server lets this call send.
    pub(crate) fn room(&self, call: u32) -> usize {
        let window = self.calls.get(&call).copied().unwrap_or(0);
        usize::try_from(window.min(self.window)).unwrap_or(0)
    }

    /// Tells whether the server has not answered this call.
    pub(crate) fn is_under_way(&self, call: u32) -> bool {
        self.calls.contains_key(&call)
    }

    /// Forgets a call that the client has reset.
    pub(crate) fn forget(&mut self, call: u32) {
        self.calls.remove(&call);
    }

    /// Sends any frame.
    pub(crate) async fn frame(
        &mut self,
        kind: FrameKind,
        flags: u8,
        call: u32,
        body: &[u8],
    ) -> io::Result<()> {
        let mut head = [0; HEAD];
        head[..3].copy_from_slice(&(body.len() as u32).to_be_bytes()[1..]);
        head[3] = kind as u8;
        head[4] = flags;
        head[5..].copy_from_slice(&call.to_be_bytes());
        self.write(&[&head, body].concat()).await
    }

    /// Sends any bytes.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Waits until the server sends something or hangs up.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.stream.readable().await
    }

    /// Handles the frames that have arrived. Returns whether there were any.
    ///
    /// # Errors
    /// If the server has closed the connection.
    pub(crate) async fn attend(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let mut any = false;
        loop {
            match self.stream.try_read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::ConnectionReset.into()),
                Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            any = true;
            while let Some(length) = self.frame_length() {
                let frame: Vec<u8> = self.unread.drain(..length).collect();
                self.handle(&frame).await?;
            }
        }
        Ok(any)
    }

    /// Returns the length of the first frame, if it is complete.
    fn frame_length(&self) -> Option<usize> {
        let head = self.unread.get(..HEAD)?;
        let body = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let length = HEAD + body;
        (self.unread.len() >= length).then_some(length)
    }

    async fn handle(&mut self, frame: &[u8]) -> io::Result<()> {
        let (head, body) = frame.split_at(HEAD);
        let call = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut kinds = FrameKind::ALL.into_iter();
        let Some(kind) = kinds.find(|kind| *kind as u8 == head[3]) else {
            return Ok(());
        };
        match kind {
            FrameKind::Ping if head[4] & ACK == 0 => self.frame(kind, ACK, 0, body).await,
            FrameKind::Settings if head[4] & ACK == 0 => {
                self.settle(body);
                self.frame(kind, ACK, 0, &[]).await
            }
            FrameKind::WindowUpdate => {
                let more = i64::from(number(body));
                match (call, self.calls.get_mut(&call)) {
                    (0, _) => self.window += more,
                    (_, Some(window)) => *window += more,
                    (_, None) => {}
                }
                Ok(())
            }
            // An answer before the end of the body is a refusal.
            FrameKind::Headers | FrameKind::Reset => {
                self.calls.remove(&call);
                Ok(())
            }
            FrameKind::GoAway => Err(io::ErrorKind::ConnectionAborted.into()),
            FrameKind::Data | FrameKind::Ping | FrameKind::Settings => Ok(()),
        }
    }

    /// Applies the server's settings.
    fn settle(&mut self, settings: &[u8]) {
        for setting in settings.chunks_exact(6) {
            if u16::from_be_bytes([setting[0], setting[1]]) == INITIAL_WINDOW {
                let window = i64::from(number(&setting[2..]));
                for open in self.calls.values_mut() {
                    *open += window - self.initial_window;
                }
                self.initial_window = window;
            }
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    let bytes = bytes.first_chunk().copied().unwrap_or_default();
    u32::from_be_bytes(bytes)
}

/// Returns the headers of a call of gRPC, in HPACK without compression.
fn headers(path: &str) -> Vec<u8> {
    const METHOD_POST: u8 = 0x83;
    const SCHEME_HTTP: u8 = 0x86;
    let mut headers = vec![METHOD_POST, SCHEME_HTTP];
    let mut add = |name: &[u8], value: &str| {
        headers.extend_from_slice(name);
        headers.push(value.len() as u8);
        headers.extend_from_slice(value.as_bytes());
    };
    // Names by their places in the static table: `:path`, `:authority`, `content-type`; `te` has none.
    add(&[0x04], path);
    add(&[0x01], "fila");
    add(&[0x0f, 0x10], "application/grpc");
    add(b"\x00\x02te", "trailers");
    headers
}

/// Returns the head of a message of gRPC: uncompressed, of this many bytes.
pub(crate) fn message_head(bytes: u32) -> [u8; 5] {
    let [a, b, c, d] = bytes.to_be_bytes();
    [0, a, b, c, d]
}
