//! Producers and consumers that work until the server is gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    CreateQueueRequest, Delivery, InspectQueueRequest, Ordering, QueueSettings, WorkRequest,
    WorkResponse,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::ledger::{Ledger, Name};
use super::outbox::Outbox;

pub(crate) type Books = Arc<Mutex<Ledger>>;
pub(crate) type Producer = Arc<tokio::sync::Mutex<Outbox>>;

pub(crate) const QUEUE: &str = "orders";
const PRODUCERS: u64 = 2;
const CONSUMERS: u64 = 2;
pub(crate) const KEYS: u64 = 8;

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Connects to a server that may be gone.
pub(crate) async fn reach(address: &str) -> Result<Channel, Status> {
    let endpoint = Endpoint::from_shared(address.to_owned()).unwrap();
    let connected = endpoint.tcp_nodelay(true).connect().await;
    connected.map_err(|error| Status::unavailable(error.to_string()))
}

pub(crate) async fn connect(address: &str) -> Channel {
    reach(address).await.unwrap()
}

pub(crate) async fn create(channel: &Channel, ordering: &str) {
    let ordering = match ordering {
        "key" => Ordering::Key,
        _ => Ordering::None,
    };
    let request = CreateQueueRequest {
        name: QUEUE.to_owned(),
        settings: Some(QueueSettings {
            ordering: Some(ordering.into()),
            ..QueueSettings::default()
        }),
    };
    let mut admin = FilaAdminClient::new(channel.clone());
    admin.create_queue(request).await.unwrap();
}

pub(crate) fn producers() -> Vec<Producer> {
    let outboxes = (0..PRODUCERS).map(Outbox::new);
    outboxes.map(|it| Arc::new(it.into())).collect()
}

/// Sends all that has no answer again, until it has.
pub(crate) async fn finish(address: &str, books: &Books, outboxes: &[Producer]) {
    for outbox in outboxes {
        let mut outbox = outbox.lock().await;
        let finished = produce(address, books, &mut outbox, false);
        let finished = tokio::time::timeout(PATIENCE, finished).await;
        finished.expect("all of it is answered").unwrap();
    }
}

/// Starts all clients, each on a connection of its own.
pub(crate) fn start(address: &str, books: &Books, outboxes: &[Producer]) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for outbox in outboxes {
        let (address, books, outbox) = (address.to_owned(), books.clone(), outbox.clone());
        tasks.spawn(async move {
            // The server's death is how this ends.
            let _ = produce(&address, &books, &mut *outbox.lock().await, true).await;
        });
    }
    for _ in 0..CONSUMERS {
        let (address, books) = (address.to_owned(), books.clone());
        tasks.spawn(async move {
            let _ = consume(&address, &books, |_| false).await;
        });
    }
    tasks
}

/// Waits until so much has happened.
pub(crate) async fn until_done(books: &Books, work: u64) {
    let goal = books.lock().unwrap().events + work;
    let wait = async {
        while books.lock().unwrap().events < goal {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("work goes on");
}

/// Waits until all clients have noticed, and passes on what they found wrong.
pub(crate) async fn ended(mut tasks: JoinSet<()>) {
    let wait = async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("nothing hangs");
}

/// Takes and acknowledges everything that is there.
pub(crate) async fn drain(address: &str, books: &Books) {
    let channel = connect(address).await;
    let mut admin = FilaAdminClient::new(channel);
    let request = InspectQueueRequest {
        name: QUEUE.to_owned(),
    };
    let answer = admin.inspect_queue(request.clone()).await.unwrap();
    let depth = answer.into_inner().queue.unwrap().stats.unwrap().depth;
    if depth > 0 {
        let drained = consume(address, books, |confirmed| confirmed == depth);
        let drained = tokio::time::timeout(PATIENCE, drained).await;
        drained.expect("all of it comes").unwrap();
    }
    let answer = admin.inspect_queue(request).await.unwrap();
    let stats = answer.into_inner().queue.unwrap().stats.unwrap();
    assert_eq!((stats.depth, stats.damaged_total), (0, 0), "{stats:?}");
}

/// Sends what has no answer again and then more, or nothing more, until all has been answered or the server is gone.
pub(crate) async fn produce(
    address: &str,
    books: &Books,
    outbox: &mut Outbox,
    goes_on: bool,
) -> Result<(), Status> {
    let mut service = FilaServiceClient::new(reach(address).await?);
    let (sender, frames) = mpsc::channel(64);
    let call = service.produce(ReceiverStream::new(frames)).await?;
    let mut responses = call.into_inner();
    responses.message().await?;
    let mut frames = outbox.open();
    loop {
        while goes_on && outbox.is_due() {
            frames.push(outbox.next(books));
        }
        for frame in frames.drain(..) {
            if sender.send(frame).await.is_err() {
                return Ok(());
            }
        }
        if outbox.is_empty() && !goes_on {
            return Ok(());
        }
        let response = tokio::select! {
            response = responses.message() => response?,
            () = tokio::time::sleep_until(outbox.due()), if goes_on && !outbox.is_full() => continue,
        };
        let Some(response) = response else {
            return Ok(());
        };
        outbox.answered(response, books);
    }
}

/// Takes messages and acknowledges them, until the server is gone or `is_enough` have been.
async fn consume(
    address: &str,
    books: &Books,
    is_enough: impl Fn(u64) -> bool,
) -> Result<(), Status> {
    let mut service = FilaServiceClient::new(connect(address).await);
    let (sender, requests) = mpsc::channel(64);
    let first = WorkRequest {
        queue: QUEUE.to_owned(),
        credit: 64,
        ..WorkRequest::default()
    };
    if sender.send(first).await.is_err() {
        return Ok(());
    }
    let call = service.work(ReceiverStream::new(requests)).await?;
    let mut responses = call.into_inner();
    let mut leases: HashMap<u64, Name> = HashMap::new();
    let mut confirmed = 0;
    while let Some(response) = responses.message().await? {
        let acks = take(&response, books, &mut leases, &mut confirmed);
        if is_enough(confirmed) {
            return Ok(());
        }
        if !acks.is_empty() {
            let report = WorkRequest {
                credit: acks.len() as u32,
                acks,
                ..WorkRequest::default()
            };
            if sender.send(report).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Writes down what a response says, and returns the leases to acknowledge.
fn take(
    response: &WorkResponse,
    books: &Books,
    leases: &mut HashMap<u64, Name>,
    confirmed: &mut u64,
) -> Vec<u64> {
    let mut ledger = books.lock().unwrap();
    assert!(response.refused.is_empty(), "{:?}", response.refused);
    for lease in &response.confirmed {
        ledger.ack_confirmed(leases.remove(lease).expect("confirmed once"));
        *confirmed += 1;
    }
    let mut acks = Vec::new();
    for delivery in &response.deliveries {
        let name = name(delivery);
        ledger.delivered(name, delivery.attempt);
        ledger.acked(name);
        leases.insert(delivery.lease_id, name);
        acks.push(delivery.lease_id);
    }
    acks
}

fn name(delivery: &Delivery) -> Name {
    let name = name_in(&delivery.payload);
    assert_eq!(delivery.fairness_key, name.0.to_string());
    name
}

/// Returns which message has this payload.
pub(crate) fn name_in(payload: &[u8]) -> Name {
    let text = std::str::from_utf8(payload).unwrap();
    let mut words = text.split(' ');
    let mut number = || words.next().unwrap().parse().unwrap();
    (number(), number())
}
