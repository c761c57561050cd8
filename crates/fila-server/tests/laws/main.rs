//! Every law of fairness, on the real server over gRPC: from a producer's call to a consumer's stream.
//!
//! The queue charges by bytes, so that a piece of work can cost what the law says. A wire is slow beside a call, so
//! fewer worlds are tried than of the core; the schedule is the same. Keys are paths, and an operator sets the weights,
//! pauses and caps of groups.
//!
//! The laws of settlement are not here: a queue settles time by its own clock, and a law needs exact costs. They run on
//! `fila-core`, which the server runs, with a clock of the law's.

#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "every test uses a part of it")]
mod common;
mod noisy;

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZeroU64;
use std::sync::LazyLock;

use fairness_laws::{BoundDriver, CapDriver, Dispatched, Driver, Paths, TreeDriver};
use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    Charge, CreateQueueRequest, Delivery, EnqueueBatchRequest, ExplainKeyRequest, Message,
    QueueSettings, UpdateKeyRequest, WorkRequest, WorkResponse,
};
use fila_server::Server;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use common::{connect, in_memory, soon};

/// The dearest message that the driver sends. Laws that ask for the largest numbers there are get a dear one
/// instead, and are told so.
const COST_MAX: u64 = 10_000_000;
const DEAR: u64 = 60_000;

const WEIGHT_MAX: u32 = 65_536;
const QUANTUM_MAX: u64 = 1_000_000_000;
const QUEUE: &str = "laws";
/// Messages of one request, and their bytes, about.
const BATCH: usize = 2_000;
const BATCH_BYTES: usize = 4 << 20;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

struct Wire {
    server: Option<Server>,
    service: FilaServiceClient<Channel>,
    admin: FilaAdminClient<Channel>,
    to_server: mpsc::Sender<WorkRequest>,
    from_server: Streaming<WorkResponse>,
    new: Vec<Message>,
    /// The messages of each key that were enqueued and not dispatched: sequence and cost.
    waiting: HashMap<u32, VecDeque<(u64, u64)>>,
    sequences: HashMap<u32, u64>,
    parked: HashSet<u32>,
    weights: HashMap<u32, u32>,
    arrived: VecDeque<Delivery>,
    paths: Paths,
    groups: HashMap<u32, Group>,
}

/// The settings of a group, and how much of it runs.
#[derive(Clone, Copy, Default)]
struct Group {
    weight: u32,
    is_parked: bool,
    cap: Option<u32>,
    in_flight: u32,
}

impl Group {
    fn may_run(&self) -> bool {
        !self.is_parked && self.cap.is_none_or(|cap| self.in_flight < cap)
    }
}

impl Wire {
    fn new(quantum: u64) -> Self {
        RUNTIME.block_on(async {
            let mut config = in_memory();
            config.scheduler.quantum = NonZeroU64::new(quantum.min(QUANTUM_MAX)).unwrap();
            config.limits.message.payload_bytes = "16 MiB".parse().unwrap();
            let server = soon(Server::start(config)).await.unwrap();
            let channel = connect(&server).await;
            let mut admin = FilaAdminClient::new(channel.clone());
            let settings = QueueSettings {
                charge: Some(Charge::Bytes.into()),
                ..QueueSettings::default()
            };
            let request = CreateQueueRequest {
                name: QUEUE.to_owned(),
                settings: Some(settings),
            };
            soon(admin.create_queue(request)).await.unwrap();
            let mut service = FilaServiceClient::new(channel)
                .max_decoding_message_size(64 << 20)
                .max_encoding_message_size(64 << 20);
            let (to_server, requests) = mpsc::channel(1024);
            let first = WorkRequest {
                queue: QUEUE.to_owned(),
                ..WorkRequest::default()
            };
            to_server.send(first).await.unwrap();
            let call = service.work(ReceiverStream::new(requests));
            let from_server = soon(call).await.unwrap().into_inner();
            Self {
                server: Some(server),
                service,
                admin,
                to_server,
                from_server,
                new: Vec::new(),
                waiting: HashMap::new(),
                sequences: HashMap::new(),
                parked: HashSet::new(),
                weights: HashMap::new(),
                arrived: VecDeque::new(),
                paths: Paths::default(),
                groups: HashMap::new(),
            }
        })
    }

    /// Returns a server that has delivered the dearest message of any tree. What it says of waits holds for messages that cost
    /// no more than those that it has seen.
    fn with_dear_work_done(quantum: u64) -> Self {
        const DEAREST: u64 = 2_000;
        let mut wire = Self::new(quantum);
        wire.enqueue(u32::MAX, DEAREST, 1);
        let work = wire.dispatch().expect("the only message");
        wire.finish(work, DEAREST);
        wire
    }

    /// Sends what was enqueued, and waits until all of it is accepted.
    fn send(&mut self) {
        while !self.new.is_empty() {
            let mut bytes = 0;
            let count = self.new.iter().take(BATCH).take_while(|message| {
                let fits = bytes < BATCH_BYTES;
                bytes += message.payload.len();
                fits
            });
            let count = count.count();
            let messages = self.new.drain(..count).collect();
            let request = EnqueueBatchRequest {
                queue: QUEUE.to_owned(),
                messages,
                batch_id: None,
            };
            let answer = RUNTIME.block_on(soon(self.service.enqueue_batch(request)));
            for result in answer.unwrap().into_inner().results {
                assert_eq!(result.error, None);
            }
        }
    }

    fn change(&mut self, key: u32, change: impl FnOnce(&mut UpdateKeyRequest)) {
        self.change_path(self.paths.key(key), change);
    }

    fn change_group(&mut self, group: u32, change: impl FnOnce(&mut UpdateKeyRequest)) {
        self.change_path(self.paths.group(group), change);
    }

    fn change_path(&mut self, path: String, change: impl FnOnce(&mut UpdateKeyRequest)) {
        self.send();
        let mut request = UpdateKeyRequest {
            queue: QUEUE.to_owned(),
            fairness_key: path,
            ..UpdateKeyRequest::default()
        };
        change(&mut request);
        RUNTIME
            .block_on(soon(self.admin.update_key(request)))
            .unwrap();
    }

    fn has_work(&self) -> bool {
        let mut keys = self.waiting.iter();
        keys.any(|(key, waiting)| {
            let mut groups = self.paths.groups(*key);
            let may_run = !self.parked.contains(key) && groups.all(|it| self.groups[&it].may_run());
            !waiting.is_empty() && may_run
        })
    }

    /// Counts a piece of work that starts or ends in all groups above its key.
    fn count(&mut self, key: u32, change: i32) {
        for group in self.paths.groups(key).collect::<Vec<_>>() {
            let group = self.groups.get_mut(&group).expect("it was founded");
            group.in_flight = group.in_flight.saturating_add_signed(change);
        }
    }
}

impl Driver for Wire {
    fn enqueue(&mut self, key: u32, cost: u64, weight: u32) {
        if self.paths.is_own(key) {
            let group = self.paths.groups(key).next().expect("its own");
            if self.groups[&group].weight != weight {
                self.set_group_weight(group, weight);
            }
        } else if self.weights.remove(&key).is_some_and(|set| set != weight) {
            self.change(key, |request| request.weight = Some(0));
        }
        let cost = if cost > COST_MAX { DEAR } else { cost.max(1) };
        self.new.push(Message {
            fairness_key: self.paths.key(key),
            weight: Some(weight.min(WEIGHT_MAX)),
            payload: vec![0; cost as usize * 1024 / 1000].into(),
            ..Message::default()
        });
        let sequence = self.sequences.entry(key).or_default();
        let waiting = self.waiting.entry(key).or_default();
        waiting.push_back((*sequence, cost));
        *sequence += 1;
    }

    fn dispatch(&mut self) -> Option<Dispatched> {
        self.send();
        if !self.has_work() {
            return None;
        }
        let ask = WorkRequest {
            credit: 1,
            ..WorkRequest::default()
        };
        let delivery = RUNTIME.block_on(soon(async {
            self.to_server.send(ask).await.unwrap();
            while self.arrived.is_empty() {
                let response = self.from_server.message().await.unwrap().unwrap();
                assert_eq!(response.refused, []);
                self.arrived.extend(response.deliveries);
            }
            self.arrived.pop_front().unwrap()
        }));
        let key = self.paths.number(&delivery.fairness_key).unwrap();
        let (sequence, cost) = self.waiting.get_mut(&key)?.pop_front()?;
        self.count(key, 1);
        Some(Dispatched {
            key,
            sequence,
            cost,
            ticket: delivery.lease_id,
        })
    }

    fn finish(&mut self, work: Dispatched, _actual: u64) {
        self.count(work.key, -1);
        let report = WorkRequest {
            acks: vec![work.ticket],
            ..WorkRequest::default()
        };
        RUNTIME.block_on(soon(self.to_server.send(report))).unwrap();
    }

    fn park(&mut self, key: u32) {
        self.parked.insert(key);
        self.change(key, |request| request.paused = Some(true));
    }

    fn unpark(&mut self, key: u32) {
        self.parked.remove(&key);
        self.change(key, |request| request.paused = Some(false));
    }

    fn set_weight(&mut self, key: u32, weight: u32) {
        self.weights.insert(key, weight);
        let weight = Some(weight.min(WEIGHT_MAX));
        self.change(key, |request| request.weight = weight);
    }

    fn evict(&mut self, _key: u32) {} // lanes that are no longer needed go by themselves
}

impl TreeDriver for Wire {
    fn found(&mut self, group: u32, parent: Option<u32>, weight: u32) {
        self.paths.found(group, parent);
        self.groups.insert(group, Group::default());
        self.set_group_weight(group, weight);
    }

    fn adopt(&mut self, key: u32, group: u32) {
        self.paths.adopt(key, group);
    }

    fn own(&mut self, key: u32, group: u32) {
        self.paths.own(key, group);
    }

    fn park_group(&mut self, group: u32) {
        self.groups.entry(group).or_default().is_parked = true;
        self.change_group(group, |request| request.paused = Some(true));
    }

    fn unpark_group(&mut self, group: u32) {
        self.groups.entry(group).or_default().is_parked = false;
        self.change_group(group, |request| request.paused = Some(false));
    }

    fn set_group_weight(&mut self, group: u32, weight: u32) {
        self.groups.entry(group).or_default().weight = weight;
        let weight = Some(weight.min(WEIGHT_MAX));
        self.change_group(group, |request| request.weight = weight);
    }
}

impl CapDriver for Wire {
    fn set_group_cap(&mut self, group: u32, in_flight: Option<u32>) {
        self.groups.entry(group).or_default().cap = in_flight;
        let cap = Some(in_flight.unwrap_or(0));
        self.change_group(group, |request| request.concurrency = cap);
    }
}

impl BoundDriver for Wire {
    fn bound(&mut self, key: u32, _largest: u64) -> u64 {
        self.send();
        let request = ExplainKeyRequest {
            queue: QUEUE.to_owned(),
            fairness_key: self.paths.key(key),
        };
        let call = self.admin.explain_key(request);
        let explained = RUNTIME.block_on(soon(call)).unwrap().into_inner();
        // It is told in whole messages, rounded down.
        explained.bound.expect("the key has messages") * 1000 + 999
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _ = RUNTIME.block_on(server.shutdown());
        }
    }
}

fairness_laws::conformance! { core, one world in 40: Wire::new }

/// Keys in groups, as deep as paths go.
mod in_groups {
    use super::Wire;

    fairness_laws::conformance! { trees, one world in 40: Wire::new }
    fairness_laws::conformance! { tree_caps, one world in 40: Wire::new }
    fairness_laws::conformance! { tree_bounds, one world in 40: Wire::with_dear_work_done }
}
