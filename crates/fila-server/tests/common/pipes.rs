//! Both ends of the two streams.

use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    BatchId, Delivery, Message, ProduceRequest, ProduceResponse, WorkRequest, WorkResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::{Rig, soon};

/// Both directions of a produce stream.
pub(crate) struct Producer {
    pub(crate) frames: mpsc::Sender<ProduceRequest>,
    pub(crate) answers: Streaming<ProduceResponse>,
    pub(crate) window: u32,
}

impl Producer {
    pub(crate) async fn open(rig: &Rig) -> Self {
        let (frames, requests) = mpsc::channel(1_024);
        let mut messages = rig.messages.clone();
        let answers = messages.produce(ReceiverStream::new(requests));
        let mut answers = soon(answers).await.unwrap().into_inner();
        // It comes before any frame is sent.
        let first = soon(answers.message()).await.unwrap().unwrap();
        Self {
            frames,
            answers,
            window: first.window,
        }
    }

    pub(crate) async fn send(&self, frame_id: u64, queue: &str, messages: Vec<Message>) {
        self.send_as(None, frame_id, queue, messages).await;
    }

    pub(crate) async fn send_as(
        &self,
        batch_id: Option<BatchId>,
        frame_id: u64,
        queue: &str,
        messages: Vec<Message>,
    ) {
        let frame = ProduceRequest {
            frame_id,
            queue: queue.to_owned(),
            messages,
            batch_id,
        };
        soon(self.frames.send(frame)).await.unwrap();
    }

    pub(crate) async fn answer(&mut self) -> ProduceResponse {
        soon(self.answers.message()).await.unwrap().unwrap()
    }
}

/// Both directions of a work stream.
pub(crate) struct Worker {
    pub(crate) requests: mpsc::Sender<WorkRequest>,
    pub(crate) frames: Streaming<WorkResponse>,
}

impl Worker {
    pub(crate) async fn open(rig: &Rig, queue: &str, credit: u32) -> Self {
        let first = WorkRequest {
            queue: queue.to_owned(),
            credit,
            ..WorkRequest::default()
        };
        Self::over(rig.messages.clone(), first).await
    }

    /// Opens a stream over this connection with this first request.
    pub(crate) async fn over(mut messages: FilaServiceClient<Channel>, first: WorkRequest) -> Self {
        let (sender, requests) = mpsc::channel(1_024);
        let frames = messages.work(ReceiverStream::new(requests));
        let frames = soon(frames).await.unwrap().into_inner();
        let worker = Self {
            requests: sender,
            frames,
        };
        worker.send(first).await;
        worker
    }

    /// Takes deliveries until there are this many.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<Delivery> {
        let mut taken = Vec::new();
        while taken.len() < count {
            taken.extend(self.frame().await.deliveries);
        }
        taken
    }

    pub(crate) async fn send(&self, request: WorkRequest) {
        soon(self.requests.send(request)).await.unwrap();
    }

    pub(crate) async fn frame(&mut self) -> WorkResponse {
        soon(self.frames.message()).await.unwrap().unwrap()
    }

    pub(crate) async fn end(&mut self) -> Result<Option<WorkResponse>, Status> {
        soon(self.frames.message()).await
    }
}
