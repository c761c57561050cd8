//! The weights of groups that a hook has named, under `kill -9`: they are part of the messages that wait.

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    AckRequest, ConsumeRequest, CreateQueueRequest, EnqueueBatchRequest, Message, QueueSettings,
};
use tempfile::TempDir;

use super::process::Server;
use super::{runtime, traffic};

const QUEUE: &str = "weighed";

/// The weight of a tenant is in a header of its messages.
const SCRIPT: &str = "function on_enqueue(msg)
  local tenant = msg.headers['tenant']
  return {
    fairness_key = tenant .. '/' .. msg.headers['user'],
    weights = { [tenant] = tonumber(msg.headers['weight']) },
  }
end";

fn of(tenant: &str, weight: u32, user: usize) -> Message {
    let weight = weight.to_string();
    let user = user.to_string();
    let headers = [("tenant", tenant), ("weight", &weight), ("user", &user)];
    Message {
        headers: headers
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..Message::default()
    }
}

/// Creates the queue, and sends 100 messages of a heavy tenant in the name of 50 users, and as many of a light one.
async fn fill(address: &str) {
    let channel = traffic::connect(address).await;
    let settings = QueueSettings {
        script: Some(SCRIPT.to_owned()),
        ..QueueSettings::default()
    };
    let create = CreateQueueRequest {
        name: QUEUE.to_owned(),
        settings: Some(settings),
    };
    let mut admin = FilaAdminClient::new(channel.clone());
    admin.create_queue(create).await.unwrap();
    // Earlier weights are the opposite: the last ones count.
    let early = [of("heavy", 1, 0), of("light", 3, 0)];
    let late = (0..100).flat_map(|user| [of("heavy", 3, user % 50), of("light", 1, user % 2)]);
    let request = EnqueueBatchRequest {
        queue: QUEUE.to_owned(),
        messages: early.into_iter().chain(late).collect(),
        batch_id: None,
    };
    let sent = FilaServiceClient::new(channel).enqueue_batch(request).await;
    let results = sent.unwrap().into_inner().results;
    assert!(results.iter().all(|it| it.error.is_none()));
}

/// Takes this many messages one by one, and returns how many of them the heavy tenant got.
async fn take(address: &str, count: usize) -> usize {
    let mut service = FilaServiceClient::new(traffic::connect(address).await);
    let request = ConsumeRequest {
        queue: QUEUE.to_owned(),
        prefetch: 1,
    };
    let mut stream = service.consume(request).await.unwrap().into_inner();
    let mut heavy = 0;
    for _ in 0..count {
        let frame = tokio::time::timeout(traffic::PATIENCE, stream.message()).await;
        let frame = frame.expect("work goes on").unwrap().unwrap();
        for delivery in frame.deliveries {
            heavy += usize::from(delivery.fairness_key.starts_with("heavy/"));
            let ack = AckRequest {
                queue: QUEUE.to_owned(),
                message_id: delivery.message_id,
                lease_id: delivery.lease_id,
            };
            service.ack(ack).await.unwrap();
        }
    }
    heavy
}

#[test]
fn the_weights_of_groups_that_a_hook_names_survive_kill_9() {
    let directory = TempDir::new().unwrap();
    runtime().block_on(async {
        let mut server = Server::start(directory.path());
        fill(&server.address).await;
        server.kill();
        for _ in 0..2 {
            let mut server = Server::start(directory.path());
            let heavy = take(&server.address, 40).await;
            assert!(
                heavy.abs_diff(30) <= 2,
                "{heavy} of 40, by weights of 3 and 1"
            );
            server.kill();
        }
    });
}
