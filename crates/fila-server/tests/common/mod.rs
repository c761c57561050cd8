//! A server, its clients, and the words that tests are written in.

pub(crate) mod basics;
pub(crate) mod pipes;

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    AckRequest, BatchId, ConsumeRequest, ConsumeResponse, CreateQueueRequest, Delivery,
    EnqueueBatchRequest, EnqueueRequest, EnqueueResult, InspectQueueRequest, Message, NackRequest,
    QueueInfo, QueueSettings, QueueStats, SetConfigRequest,
};
use fila_server::Server;
use fila_server::config::Config;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

#[allow(unused_imports, reason = "each test program uses some of it")]
pub(crate) use basics::{PATIENCE, eventually, in_memory, on_disk, soon};

/// A server and a connection to it.
pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) messages: FilaServiceClient<Channel>,
    pub(crate) admin: FilaAdminClient<Channel>,
}

impl Rig {
    /// Starts a server in memory.
    pub(crate) async fn start() -> Self {
        Self::with(in_memory()).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        Self::of(soon(Server::start(config)).await.unwrap()).await
    }

    pub(crate) async fn of(server: Server) -> Self {
        let channel = connect(&server).await;
        Self {
            messages: messages(channel.clone()),
            admin: FilaAdminClient::new(channel),
            server,
        }
    }

    /// Opens another connection.
    pub(crate) async fn another(&self) -> FilaServiceClient<Channel> {
        messages(connect(&self.server).await)
    }

    pub(crate) async fn create(&mut self, name: &str) {
        self.create_with(name, QueueSettings::default()).await;
    }

    pub(crate) async fn create_with(&mut self, name: &str, settings: QueueSettings) {
        let request = CreateQueueRequest {
            name: name.to_owned(),
            settings: Some(settings),
        };
        soon(self.admin.create_queue(request)).await.unwrap();
    }

    /// Enqueues a message of a key, and returns its id.
    pub(crate) async fn enqueue(&mut self, queue: &str, key: &str, payload: &str) -> String {
        self.send(queue, message(key, payload)).await.unwrap()
    }

    /// Enqueues any message, and returns its id.
    pub(crate) async fn send(&mut self, queue: &str, message: Message) -> Result<String, Status> {
        let request = EnqueueRequest {
            queue: queue.to_owned(),
            message: Some(message),
        };
        let stored = soon(self.messages.enqueue(request)).await?;
        Ok(stored.into_inner().message_id)
    }

    /// Sets an entry of the runtime configuration.
    pub(crate) async fn configure(&mut self, key: &str, value: &str) {
        let request = SetConfigRequest {
            key: key.to_owned(),
            value: value.to_owned(),
            version: None,
        };
        soon(self.admin.set_config(request)).await.unwrap();
    }

    /// Enqueues a batch with an id.
    pub(crate) async fn enqueue_batch(
        &mut self,
        batch_id: BatchId,
        queue: &str,
        messages: Vec<Message>,
    ) -> Result<Vec<EnqueueResult>, Status> {
        let request = EnqueueBatchRequest {
            queue: queue.to_owned(),
            messages,
            batch_id: Some(batch_id),
        };
        let answer = soon(self.messages.enqueue_batch(request)).await?;
        Ok(answer.into_inner().results)
    }

    pub(crate) async fn consume(&mut self, queue: &str, prefetch: u32) -> Deliveries {
        consume(&mut self.messages, queue, prefetch).await
    }

    pub(crate) async fn ack(&mut self, queue: &str, delivery: &Delivery) -> Result<(), Status> {
        let request = AckRequest {
            queue: queue.to_owned(),
            message_id: delivery.message_id.clone(),
            lease_id: delivery.lease_id,
        };
        soon(self.messages.ack(request)).await.map(drop)
    }

    pub(crate) async fn nack(&mut self, queue: &str, delivery: &Delivery) -> Result<(), Status> {
        let request = NackRequest {
            queue: queue.to_owned(),
            message_id: delivery.message_id.clone(),
            lease_id: delivery.lease_id,
            error: "as planned".to_owned(),
            delay_ms: Some(0),
        };
        soon(self.messages.nack(request)).await.map(drop)
    }

    pub(crate) async fn inspect(&mut self, queue: &str) -> QueueInfo {
        let request = InspectQueueRequest {
            name: queue.to_owned(),
        };
        let shown = soon(self.admin.inspect_queue(request)).await.unwrap();
        shown.into_inner().queue.unwrap()
    }

    pub(crate) async fn stats(&mut self, queue: &str) -> QueueStats {
        self.inspect(queue).await.stats.unwrap()
    }
}

pub(crate) async fn connect(server: &Server) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    soon(endpoint.connect()).await.unwrap()
}

fn messages(channel: Channel) -> FilaServiceClient<Channel> {
    FilaServiceClient::new(channel).max_encoding_message_size(usize::MAX)
}

pub(crate) async fn consume(
    messages: &mut FilaServiceClient<Channel>,
    queue: &str,
    prefetch: u32,
) -> Deliveries {
    let request = ConsumeRequest {
        queue: queue.to_owned(),
        prefetch,
    };
    let stream = soon(messages.consume(request)).await.unwrap();
    Deliveries {
        stream: stream.into_inner(),
        waiting: Vec::new(),
    }
}

/// Deliveries one by one, however many come in a frame.
pub(crate) struct Deliveries {
    stream: Streaming<ConsumeResponse>,
    waiting: Vec<Delivery>,
}

impl Deliveries {
    pub(crate) async fn next(&mut self) -> Delivery {
        soon(self.try_next()).await.unwrap().unwrap()
    }

    pub(crate) async fn try_next(&mut self) -> Result<Option<Delivery>, Status> {
        while self.waiting.is_empty() {
            match self.stream.message().await? {
                None => return Ok(None),
                Some(frame) => self.waiting = frame.deliveries,
            }
        }
        Ok(Some(self.waiting.remove(0)))
    }

    /// Tells that nothing has come. What would come has been asked about before.
    pub(crate) fn is_silent(&mut self) -> bool {
        use futures_util::FutureExt;
        self.try_next().now_or_never().is_none()
    }
}

/// A plain message.
pub(crate) fn message(key: &str, payload: &str) -> Message {
    Message {
        fairness_key: key.to_owned(),
        payload: payload.to_owned().into(),
        ..Message::default()
    }
}

/// Names a batch of the producer that most tests know.
pub(crate) fn batch(sequence: u64) -> BatchId {
    BatchId {
        producer: vec![7; 16].into(),
        sequence,
        ..BatchId::default()
    }
}

/// Returns what became of each message, in a word, and its id.
pub(crate) fn outcomes(results: &[EnqueueResult]) -> Vec<(&'static str, &str)> {
    let outcome = |result: &EnqueueResult| match &result.error {
        Some(error) => error.code().name(),
        None if result.deduplicated => "duplicate",
        None => "stored",
    };
    let outcomes = results
        .iter()
        .map(|it| (outcome(it), it.message_id.as_str()));
    outcomes.collect()
}

/// Returns the same with duplicates in place of what was stored.
pub(crate) fn again<'a>(outcomes: &[(&'static str, &'a str)]) -> Vec<(&'static str, &'a str)> {
    let again = outcomes.iter().map(|(outcome, id)| match *outcome {
        "stored" => ("duplicate", *id),
        other => (other, *id),
    });
    again.collect()
}

/// Returns the code that a refused call names.
pub(crate) fn code(status: &Status) -> &str {
    let code = status.metadata().get("fila-error");
    code.map_or("none", |code| code.to_str().unwrap())
}

/// Checks that a call was refused with a status, a code, and a text that says something.
#[track_caller]
pub(crate) fn assert_refused<T: std::fmt::Debug>(
    result: Result<T, Status>,
    status: Code,
    name: &str,
) {
    let refused = result.unwrap_err();
    assert_eq!(
        (refused.code(), code(&refused)),
        (status, name),
        "{refused}"
    );
    assert!(refused.message().len() > 10, "{refused}");
}

/// Sends bytes to the port, and returns all that comes back until the server hangs up.
pub(crate) async fn raw(server: &Server, bytes: &[u8]) -> Vec<u8> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    soon(async {
        let mut stream = tokio::net::TcpStream::connect(server.address())
            .await
            .unwrap();
        // The server may hang up before it has read all.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    })
    .await
}

/// Asks for a page over HTTP/1, and returns its status and its text.
pub(crate) async fn get(server: &Server, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n");
    let answer = raw(server, request.as_bytes()).await;
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}
