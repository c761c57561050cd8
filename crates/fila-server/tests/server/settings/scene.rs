//! A queue with messages in every state, and what can be seen of it from outside.

use std::collections::BTreeMap;

use fila_proto::v1::{
    DeleteConfigRequest, Delivery, InspectQueueRequest, Message, NackRequest, PauseQueueRequest,
    PeekRequest, PeekedMessage, PurgeQueueRequest, QueueSettings, QueueStats, ResumeQueueRequest,
    UpdateKeyRequest, UpdateQueueRequest,
};
use fila_server::runtime::Stopped;
use tempfile::TempDir;

use crate::common::{Deliveries, Rig, eventually, message, on_disk, soon};

pub(super) const QUEUE: &str = "orders";
pub(super) const LETTERS: &str = "orders.dlq";

/// The states, which are also the fairness keys of the messages in them.
pub(super) const STATES: [&str; 4] = ["waiting", "delayed", "leased", "throttled"];

/// The states whose messages are in memory.
pub(super) const IN_MEMORY: [&str; 2] = ["waiting", "throttled"];

/// How many messages are in each state, and in all of them.
pub(super) const EACH: usize = 6;
pub(super) const ALL: usize = EACH * STATES.len();

/// One in eleven days: none comes while a test runs.
pub(super) const HARDLY_EVER: &str = "0.000001";

/// Long enough that the messages are still delayed when the setting changes.
const DELAY_MS: u64 = 4_000;

pub(super) struct Scene {
    pub(super) rig: Rig,
    pub(super) restarts: bool,
    name: &'static str,
    directory: TempDir,
    /// The consumer of the leased messages, and what it holds. The leases outlive it, and a planned stop.
    holder: Option<Deliveries>,
    held: Vec<Delivery>,
}

impl Scene {
    /// Starts a server whose queue has messages in every state. All of them name the throttle key `api`, which has no rate.
    pub(super) async fn set_up(name: &'static str, restarts: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut rig = Rig::with(on_disk(directory.path())).await;
        rig.create(QUEUE).await;
        rig.configure("throttle:gate:rate", "0").await;
        // The consumer looks at the throttled messages first, and has no room for others when it holds the leased ones.
        let mut deliveries = rig.consume(QUEUE, EACH as u32).await;
        for number in 0..EACH {
            let mut held_up = numbered("throttled", number);
            held_up.throttle_keys.push("gate".to_owned());
            rig.send(QUEUE, held_up).await.unwrap();
        }
        let mut held = Vec::new();
        for number in 0..EACH {
            rig.send(QUEUE, numbered("leased", number)).await.unwrap();
            held.push(deliveries.next().await);
        }
        for number in 0..EACH {
            let delayed = Message {
                delay_ms: DELAY_MS,
                ..numbered("delayed", number)
            };
            rig.send(QUEUE, delayed).await.unwrap();
            rig.send(QUEUE, numbered("waiting", number)).await.unwrap();
        }
        assert_eq!(rig.stats(QUEUE).await.throttled, EACH as u64);
        Self {
            rig,
            restarts,
            name,
            directory,
            holder: Some(deliveries),
            held,
        }
    }

    /// Changes settings of the queue.
    pub(super) async fn set(&mut self, settings: QueueSettings) {
        let request = UpdateQueueRequest {
            name: QUEUE.to_owned(),
            settings: Some(settings),
            version: None,
        };
        soon(self.rig.admin.update_queue(request)).await.unwrap();
        self.changed().await;
    }

    /// Changes settings of the fairness keys of all states.
    pub(super) async fn set_keys(&mut self, settings: UpdateKeyRequest) {
        self.update_keys(settings).await;
        self.changed().await;
    }

    pub(super) async fn update_keys(&mut self, settings: UpdateKeyRequest) {
        for state in STATES {
            let request = UpdateKeyRequest {
                queue: QUEUE.to_owned(),
                fairness_key: state.to_owned(),
                ..settings.clone()
            };
            soon(self.rig.admin.update_key(request)).await.unwrap();
        }
    }

    /// Restarts the server if this scene does. Until then the messages are in their states.
    pub(super) async fn changed(&mut self) {
        let stats = self.rig.stats(QUEUE).await;
        let found = (stats.ready, stats.delayed, stats.leased);
        let each = EACH as u64;
        assert_eq!(found, (2 * each, each, each), "{}", self.name);
        if self.restarts {
            let between = Rig::start().await;
            let before = std::mem::replace(&mut self.rig, between);
            assert_eq!(soon(before.server.shutdown()).await, Stopped::Complete);
            self.holder = None;
            self.rig = Rig::with(on_disk(self.directory.path())).await;
        }
    }

    /// Lets all messages become ready. The leases end as failures; returns how many have failed.
    pub(super) async fn release(&mut self, delay_ms: Option<u64>) -> usize {
        let request = DeleteConfigRequest {
            key: "throttle:gate:rate".to_owned(),
            version: None,
        };
        soon(self.rig.admin.delete_config(request)).await.unwrap();
        // A stream that is still open would get other messages for those that fail.
        self.holder = None;
        self.until(QUEUE, |stats| stats.consumers == 0).await;
        let held = std::mem::take(&mut self.held);
        for delivery in &held {
            self.nack(delivery, delay_ms).await;
        }
        held.len()
    }

    pub(super) async fn nack(&mut self, delivery: &Delivery, delay_ms: Option<u64>) {
        let request = NackRequest {
            queue: QUEUE.to_owned(),
            message_id: delivery.message_id.clone(),
            lease_id: delivery.lease_id,
            error: "as planned".to_owned(),
            delay_ms,
        };
        soon(self.rig.messages.nack(request)).await.unwrap();
    }

    /// Waits until the statistics of a queue are so.
    pub(super) async fn until(&self, queue: &str, is_so: impl Fn(&QueueStats) -> bool) {
        eventually(|| {
            let (mut admin, name) = (self.rig.admin.clone(), queue.to_owned());
            let is_so = &is_so;
            async move {
                let shown = admin.inspect_queue(InspectQueueRequest { name }).await;
                let shown = shown.unwrap().into_inner().queue.unwrap();
                is_so(&shown.stats.unwrap())
            }
        })
        .await;
    }

    /// Releases all messages, and waits until they are ready.
    pub(super) async fn make_ready(&mut self) {
        self.release(Some(0)).await;
        self.until(QUEUE, |stats| stats.ready >= ALL as u64).await;
    }

    /// Lets every message fail once, without a word of how long it should wait.
    pub(super) async fn fail_all(&mut self) {
        let failed = self.release(None).await;
        let mut deliveries = self.rig.consume(QUEUE, ALL as u32).await;
        for _ in failed..ALL {
            let delivery = deliveries.next().await;
            self.nack(&delivery, None).await;
        }
    }

    /// Fails all, and returns how long each message waits for its next attempt.
    pub(super) async fn waits_after_failure(&mut self) -> Vec<u64> {
        self.fail_all().await;
        let peeked = self.peek(QUEUE).await;
        assert_eq!(peeked.len(), ALL);
        let wait = |it: &PeekedMessage| {
            let failed_at = it.history.as_ref().unwrap().last_failed_at_ms;
            assert_eq!(it.attempts, 1);
            it.deliver_after_ms.unwrap() - failed_at
        };
        peeked.iter().map(wait).collect()
    }

    pub(super) async fn peek(&mut self, queue: &str) -> Vec<PeekedMessage> {
        let request = PeekRequest {
            queue: queue.to_owned(),
            page_size: 1000,
            ..PeekRequest::default()
        };
        let peeked = soon(self.rig.messages.peek(request)).await.unwrap();
        peeked.into_inner().messages
    }

    /// Lets all fail, and waits until they are dead letters.
    pub(super) async fn all_die(&mut self) {
        self.fail_all().await;
        self.until(LETTERS, |stats| stats.depth == ALL as u64).await;
    }

    /// Takes deliveries until a message that is sent now is among them; returns the others.
    pub(super) async fn until_marker(&mut self, deliveries: &mut Deliveries) -> Vec<Delivery> {
        self.rig.enqueue(QUEUE, "marker", "marker").await;
        let mut seen = Vec::new();
        loop {
            let delivery = deliveries.next().await;
            if delivery.fairness_key == "marker" {
                self.rig.ack(QUEUE, &delivery).await.unwrap();
                return seen;
            }
            seen.push(delivery);
        }
    }

    /// Fails if a key has more than one lease at a time; returns the payloads of each key in their order.
    pub(super) async fn one_of_each_key_at_a_time(&mut self) -> BTreeMap<String, Vec<u32>> {
        self.make_ready().await;
        let mut deliveries = self.rig.consume(QUEUE, 100).await;
        let mut seen: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for _ in 0..EACH {
            let mut now = Vec::new();
            while now.len() < STATES.len() {
                now.push(deliveries.next().await);
            }
            let others = self.until_marker(&mut deliveries).await;
            assert!(others.is_empty(), "{}: {others:?} at once", self.name);
            let keys = now.iter().map(|it| it.fairness_key.as_str());
            assert_eq!(
                keys.collect::<std::collections::BTreeSet<_>>(),
                STATES.into()
            );
            for delivery in now {
                let number = String::from_utf8_lossy(&delivery.payload[..1])
                    .parse()
                    .unwrap();
                seen.entry(delivery.fairness_key.clone())
                    .or_default()
                    .push(number);
                self.rig.ack(QUEUE, &delivery).await.unwrap();
            }
        }
        seen
    }

    /// Delivers the waiting and the throttled messages beside many small ones of a rival, and returns how many of those come
    /// before the last of the others. All are in memory: the broker has to read those that were delayed, leased or here
    /// before a restart, and delivers others meanwhile.
    pub(super) async fn rivals_before_the_last(&mut self) -> usize {
        const RIVALS: usize = 60;
        let name = || QUEUE.to_owned();
        let pause = PauseQueueRequest { name: name() };
        soon(self.rig.admin.pause_queue(pause)).await.unwrap();
        if self.restarts {
            let purge = PurgeQueueRequest { name: name() };
            soon(self.rig.admin.purge_queue(purge)).await.unwrap();
            for number in 0..EACH {
                for key in IN_MEMORY {
                    let again = numbered(key, number);
                    self.rig.send(QUEUE, again).await.unwrap();
                }
            }
        } else {
            self.make_ready().await;
        }
        for _ in 0..RIVALS {
            self.rig.enqueue(QUEUE, "rival", "r").await;
        }
        let mut deliveries = self.rig.consume(QUEUE, 1000).await;
        let resume = ResumeQueueRequest { name: name() };
        soon(self.rig.admin.resume_queue(resume)).await.unwrap();
        let (mut others, mut rivals) = (0, 0);
        while others < IN_MEMORY.len() * EACH {
            let delivery = deliveries.next().await;
            others += usize::from(IN_MEMORY.contains(&delivery.fairness_key.as_str()));
            rivals += usize::from(delivery.fairness_key == "rival");
        }
        rivals
    }
}

/// A message of 4 KiB that begins with its number.
fn numbered(key: &str, number: usize) -> Message {
    Message {
        throttle_keys: vec!["api".to_owned()],
        ..message(key, &format!("{number}{}", " ".repeat(4095)))
    }
}
