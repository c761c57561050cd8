//! Requests on their way, and their streams.

use std::time::{Duration, Instant};

use bytes::Bytes;
use fila_proto::v1::{
    AckBatchRequest, AckBatchResponse, AckRequest, ConsumeRequest, ConsumeResponse,
    CreateQueueRequest, EnqueueBatchRequest, EnqueueBatchResponse, EnqueueRequest, EnqueueResponse,
    ExtendBatchRequest, ExtendBatchResponse, ExtendRequest, ListConfigRequest, ListConfigResponse,
    ListKeysRequest, ListKeysResponse, ListQueuesRequest, ListQueuesResponse, NackBatchRequest,
    NackBatchResponse, NackRequest, PeekRequest, PeekResponse, ProduceRequest, ProduceResponse,
    ReceiveRequest, ReceiveResponse, ReleaseRequest, ReleaseResponse, WorkRequest, WorkResponse,
};
use futures_util::FutureExt;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Streaming};

use super::ledger::Ledger;
use super::wire::{Raw, Step, Stream};
use super::{Router, bytes, inspect, soon};

/// Both ends of a stream.
struct Pipe {
    /// None if the client has said that no more come.
    requests: Option<mpsc::UnboundedSender<Bytes>>,
    responses: Streaming<Bytes>,
    queue: String,
}

pub(super) struct Calls {
    router: Router,
    ledger: Ledger,
    produce: Option<Pipe>,
    consume: Option<Pipe>,
    work: Option<Pipe>,
    /// The token of the last page.
    page_token: String,
    /// How long deliveries may still be waited for: some never come.
    patience: Duration,
}

impl Calls {
    pub(super) fn new(router: Router, patience: Duration) -> Self {
        Self {
            router,
            ledger: Ledger::default(),
            produce: None,
            consume: None,
            work: None,
            page_token: String::new(),
            patience,
        }
    }

    /// Hangs up.
    pub(super) fn end(self) -> Ledger {
        self.ledger
    }

    pub(super) async fn take(&mut self, step: Step, request: Bytes) {
        self.listen().await;
        match step {
            Step::Call(path) => self.call(path, request).await,
            Step::Produce => self.produce(request).await,
            Step::Consume => self.consume(request).await,
            Step::Work => self.work(request).await,
            Step::Redrive => self.redrive(request).await,
            Step::HangUp(Stream::Produce) => self.produce = None,
            Step::HangUp(Stream::Consume) => self.consume = None,
            Step::HangUp(Stream::Work) => self.work = None,
            Step::Finish(Stream::Produce) => finish(&mut self.produce, &mut self.ledger).await,
            Step::Finish(Stream::Work) => finish(&mut self.work, &mut self.ledger).await,
            Step::Finish(Stream::Consume) => {}
            Step::Listen => self.wait().await,
        }
    }

    async fn unary(&mut self, path: &str, request: Bytes) -> Option<Bytes> {
        let mut grpc = Grpc::new(self.router.clone());
        let (request, path) = (Request::new(request), full(path));
        let answer = soon(grpc.unary(request, path, Raw)).await;
        match answer {
            Ok(answer) => Some(answer.into_inner()),
            Err(status) => {
                self.ledger.status(&status);
                None
            }
        }
    }

    async fn call(&mut self, path: &'static str, request: Bytes) {
        let request = self.named(path, request);
        let Some(answer) = self.unary(path, request.clone()).await else {
            return;
        };
        let ledger = &mut self.ledger;
        match path {
            "FilaService/Enqueue" => {
                let (asked, said): (EnqueueRequest, EnqueueResponse) = both(&request, &answer);
                ledger.stored(&asked.queue, &said.message_id, said.deduplicated);
            }
            "FilaService/EnqueueBatch" => {
                let both: (EnqueueBatchRequest, EnqueueBatchResponse) = both(&request, &answer);
                let (asked, said) = both;
                ledger.enqueued(&asked.queue, &said.results, asked.messages.len());
            }
            "FilaService/Ack" => ledger.acked(read::<AckRequest>(&request).lease_id),
            "FilaService/AckBatch" => {
                let (asked, said): (AckBatchRequest, AckBatchResponse) = both(&request, &answer);
                let refused = said.refused.iter().map(|refusal| refusal.lease_id);
                let refused: Vec<u64> = refused.collect();
                let taken = asked.lease_ids.iter();
                for lease in taken.filter(|lease| !refused.contains(lease)) {
                    ledger.acked(*lease);
                }
                ledger.lease_refusals(&said.refused);
            }
            "FilaService/NackBatch" => {
                ledger.lease_refusals(&read::<NackBatchResponse>(&answer).refused);
            }
            "FilaService/Release" => {
                ledger.lease_refusals(&read::<ReleaseResponse>(&answer).refused);
            }
            "FilaService/ExtendBatch" => {
                ledger.lease_refusals(&read::<ExtendBatchResponse>(&answer).refused);
            }
            "FilaService/Receive" => {
                let (asked, said): (ReceiveRequest, ReceiveResponse) = both(&request, &answer);
                ledger.delivered(&asked.queue, &said.deliveries);
            }
            "FilaService/Peek" => {
                self.page_token = read::<PeekResponse>(&answer).next_page_token;
            }
            "FilaAdmin/ListQueues" => {
                self.page_token = read::<ListQueuesResponse>(&answer).next_page_token;
            }
            "FilaAdmin/ListKeys" => {
                self.page_token = read::<ListKeysResponse>(&answer).next_page_token;
            }
            "FilaAdmin/ListConfig" => {
                self.page_token = read::<ListConfigResponse>(&answer).next_page_token;
            }
            "FilaAdmin/CreateQueue" => {
                ledger.created(&read::<CreateQueueRequest>(&request).name);
            }
            _ => {}
        }
    }

    /// Replaces placeholders by ids that an input cannot guess.
    fn named(&self, path: &str, request: Bytes) -> Bytes {
        let (ledger, page) = (&self.ledger, &self.page_token);
        match path {
            "FilaService/Ack" => changed(request, |it: &mut AckRequest| {
                it.lease_id = ledger.lease(it.lease_id);
                it.message_id = ledger.message(&it.message_id);
            }),
            "FilaService/Nack" => changed(request, |it: &mut NackRequest| {
                it.lease_id = ledger.lease(it.lease_id);
                it.message_id = ledger.message(&it.message_id);
            }),
            "FilaService/Extend" => changed(request, |it: &mut ExtendRequest| {
                it.lease_id = ledger.lease(it.lease_id);
                it.message_id = ledger.message(&it.message_id);
            }),
            "FilaService/AckBatch" => changed(request, |it: &mut AckBatchRequest| {
                for lease in &mut it.lease_ids {
                    *lease = ledger.lease(*lease);
                }
            }),
            "FilaService/NackBatch" => changed(request, |it: &mut NackBatchRequest| {
                for nack in &mut it.nacks {
                    nack.lease_id = ledger.lease(nack.lease_id);
                }
            }),
            "FilaService/Release" => changed(request, |it: &mut ReleaseRequest| {
                for lease in &mut it.lease_ids {
                    *lease = ledger.lease(*lease);
                }
            }),
            "FilaService/ExtendBatch" => changed(request, |it: &mut ExtendBatchRequest| {
                for extension in &mut it.extensions {
                    extension.lease_id = ledger.lease(extension.lease_id);
                }
            }),
            // A wait that is allowed would hold the input up.
            "FilaService/Receive" => changed(request, |it: &mut ReceiveRequest| {
                if it.wait_ms <= 60_000 {
                    it.wait_ms = it.wait_ms.min(1);
                }
            }),
            "FilaService/Peek" => changed(request, |it: &mut PeekRequest| {
                turned(&mut it.page_token, page);
            }),
            "FilaAdmin/ListQueues" => changed(request, |it: &mut ListQueuesRequest| {
                turned(&mut it.page_token, page);
            }),
            "FilaAdmin/ListKeys" => changed(request, |it: &mut ListKeysRequest| {
                turned(&mut it.page_token, page);
            }),
            "FilaAdmin/ListConfig" => changed(request, |it: &mut ListConfigRequest| {
                turned(&mut it.page_token, page);
            }),
            _ => request,
        }
    }

    async fn open(&mut self, path: &str) -> Option<Pipe> {
        let (requests, receiver) = mpsc::unbounded_channel();
        let stream = Request::new(UnboundedReceiverStream::new(receiver));
        let mut grpc = Grpc::new(self.router.clone());
        match soon(grpc.streaming(stream, full(path), Raw)).await {
            Ok(answer) => Some(Pipe {
                requests: Some(requests),
                responses: answer.into_inner(),
                queue: String::new(),
            }),
            Err(status) => {
                self.ledger.status(&status);
                None
            }
        }
    }

    /// Sends a frame, and waits for its answer.
    async fn produce(&mut self, request: Bytes) {
        if self.produce.is_none() {
            self.produce = self.open("FilaService/Produce").await;
            let Some(pipe) = &mut self.produce else {
                return;
            };
            let first = soon(pipe.responses.message()).await;
            let first = first.ok().flatten().expect("the window comes first");
            assert!(read::<ProduceResponse>(&first).window > 0);
        }
        let pipe = self.produce.as_mut().expect("it is open");
        let frame = ProduceRequest::decode(request.clone());
        if !pipe.send(request) {
            self.produce = None;
            return;
        }
        let answer = soon(pipe.responses.message()).await;
        match (frame, answer) {
            (Ok(frame), Ok(Some(answer))) => {
                let answer: ProduceResponse = read(&answer);
                if !frame.queue.is_empty() {
                    pipe.queue = frame.queue;
                }
                assert_eq!(answer.frame_id, frame.frame_id);
                let ledger = &mut self.ledger;
                ledger.enqueued(&pipe.queue, &answer.results, frame.messages.len());
            }
            (Err(_), Err(status)) => {
                self.ledger.status(&status);
                self.produce = None;
            }
            (frame, answer) => panic!("{frame:?} was answered by {answer:?}"),
        }
    }

    async fn consume(&mut self, request: Bytes) {
        self.consume = None;
        let mut grpc = Grpc::new(self.router.clone());
        let path = full("FilaService/Consume");
        let call = grpc.server_streaming(Request::new(request.clone()), path, Raw);
        match soon(call).await {
            Ok(answer) => {
                self.consume = Some(Pipe {
                    requests: None,
                    responses: answer.into_inner(),
                    queue: read::<ConsumeRequest>(&request).queue,
                });
            }
            Err(status) => self.ledger.status(&status),
        }
    }

    /// Sends a request, and waits until each result in it is confirmed or refused.
    async fn work(&mut self, request: Bytes) {
        if self.work.is_none() {
            self.work = self.open("FilaService/Work").await;
        }
        let Some(mut pipe) = self.work.take() else {
            return;
        };
        let request = changed(request, |it: &mut WorkRequest| {
            let nacks = it.nacks.iter_mut().map(|nack| &mut nack.lease_id);
            let extensions = it.extensions.iter_mut().map(|it| &mut it.lease_id);
            let others = it.acks.iter_mut().chain(&mut it.releases);
            for lease in others.chain(nacks).chain(extensions) {
                *lease = self.ledger.lease(*lease);
            }
        });
        let decoded = WorkRequest::decode(request.clone());
        if !pipe.send(request) {
            return;
        }
        let Ok(asked) = decoded else {
            // It ends, but deliveries may come before that.
            return drain(pipe, &mut self.ledger).await;
        };
        if !asked.queue.is_empty() && pipe.queue.is_empty() {
            pipe.queue.clone_from(&asked.queue);
        }
        let mut unanswered = leases(&asked);
        while !unanswered.is_empty() {
            match soon(pipe.responses.message()).await {
                Ok(Some(frame)) => self.worked(&pipe.queue, &frame, &asked, &mut unanswered),
                Ok(None) => return,
                Err(status) => return self.ledger.status(&status),
            }
        }
        self.work = Some(pipe);
    }

    fn worked(&mut self, queue: &str, frame: &Bytes, asked: &WorkRequest, due: &mut Vec<u64>) {
        let frame: WorkResponse = read(frame);
        self.ledger.delivered(queue, &frame.deliveries);
        let all = leases(asked);
        let refused = frame.refused.iter().map(|refusal| refusal.lease_id);
        for lease in frame.confirmed.iter().copied().chain(refused) {
            let place = due.iter().position(|it| *it == lease);
            due.swap_remove(place.expect("an answer to what was asked"));
        }
        for lease in frame.confirmed {
            // If the request named the lease twice, the answer does not say which of the two it means.
            let times = all.iter().filter(|it| **it == lease).count();
            if times == 1 && asked.acks.contains(&lease) {
                self.ledger.acked(lease);
            }
        }
        self.ledger.lease_refusals(&frame.refused);
    }

    async fn redrive(&mut self, request: Bytes) {
        self.ledger.redriven = true;
        let mut grpc = Grpc::new(self.router.clone());
        let path = full("FilaAdmin/Redrive");
        let call = grpc.server_streaming(Request::new(request), path, Raw);
        let mut progress = match soon(call).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return self.ledger.status(&status),
        };
        // As far as it goes at once; at a slow rate it would last.
        let patience = Duration::from_millis(5);
        while let Ok(next) = tokio::time::timeout(patience, progress.message()).await {
            match next {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(status) => return self.ledger.status(&status),
            }
        }
    }

    /// Takes the deliveries so far. Two queries to each queue make sure that all possible ones are there: after the first
    /// the queue knows the credit, and after the second it has delivered.
    async fn listen(&mut self) {
        self.hear();
        for _ in 0..2 {
            let pipes = [&self.work, &self.consume].into_iter().flatten();
            let queues: Vec<String> = pipes.map(|pipe| pipe.queue.clone()).collect();
            for queue in queues {
                inspect(&self.router, &queue).await;
            }
            self.hear();
        }
    }

    /// Waits until something is delivered, for as long as there is patience.
    async fn wait(&mut self) {
        let begun = Instant::now();
        let before = self.ledger.leases.len();
        let is_open = |calls: &Self| calls.work.is_some() || calls.consume.is_some();
        while is_open(self) && self.ledger.leases.len() == before && begun.elapsed() < self.patience
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.listen().await;
        }
        self.patience = self.patience.saturating_sub(begun.elapsed());
    }

    fn hear(&mut self) {
        let (work, consume) = (self.work.take(), self.consume.take());
        let asked = WorkRequest::default();
        self.work = self.heard(work, |this, queue, frame| {
            this.worked(queue, &frame, &asked, &mut Vec::new());
        });
        self.consume = self.heard(consume, |this, queue, frame| {
            let deliveries = read::<ConsumeResponse>(&frame).deliveries;
            this.ledger.delivered(queue, &deliveries);
        });
    }

    /// Takes what is there. Returns the stream unless it has ended.
    fn heard(&mut self, pipe: Option<Pipe>, take: impl Fn(&mut Self, &str, Bytes)) -> Option<Pipe> {
        let mut pipe = pipe?;
        loop {
            match pipe.responses.message().now_or_never() {
                None => return Some(pipe),
                Some(Ok(Some(frame))) => take(self, &pipe.queue, frame),
                Some(Ok(None)) => return None,
                Some(Err(status)) => {
                    self.ledger.status(&status);
                    return None;
                }
            }
        }
    }
}

impl Pipe {
    fn send(&self, request: Bytes) -> bool {
        let requests = self.requests.as_ref();
        requests.is_some_and(|requests| requests.send(request).is_ok())
    }
}

/// Says that no more requests come, and waits until the server has no more to say either.
async fn finish(pipe: &mut Option<Pipe>, ledger: &mut Ledger) {
    if let Some(mut pipe) = pipe.take() {
        pipe.requests = None;
        drain(pipe, ledger).await;
    }
}

/// Takes all responses to the end. Deliveries count as given back, since the consumer is gone.
async fn drain(mut pipe: Pipe, ledger: &mut Ledger) {
    loop {
        match soon(pipe.responses.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(status) => return ledger.status(&status),
        }
    }
}

fn leases(asked: &WorkRequest) -> Vec<u64> {
    let nacks = asked.nacks.iter().map(|nack| nack.lease_id);
    let extensions = asked.extensions.iter().map(|it| it.lease_id);
    let others = asked.acks.iter().chain(&asked.releases).copied();
    others.chain(nacks).chain(extensions).collect()
}

fn full(path: &str) -> PathAndQuery {
    let path = format!("/fila.v1.{path}");
    path.parse().expect("a path")
}

/// Reads what is known to be readable.
fn read<T: Message + Default>(answer: &Bytes) -> T {
    T::decode(answer.clone()).expect("what was taken or answered can be read")
}

fn both<A: Message + Default, B: Message + Default>(asked: &Bytes, said: &Bytes) -> (A, B) {
    (read(asked), read(said))
}

/// Changes a request, if it is one.
fn changed<T: Message + Default>(request: Bytes, change: impl FnOnce(&mut T)) -> Bytes {
    match T::decode(request.clone()) {
        Ok(mut decoded) => {
            change(&mut decoded);
            bytes(&decoded)
        }
        Err(_) => request,
    }
}

fn turned(token: &mut String, page: &str) {
    if token == "#" {
        *token = page.to_owned();
    }
}
