//! Consumers with habits: they acknowledge, let messages fail, let them go, and leave; and write down what they see.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{Delivery, LeaseNack, WorkRequest, WorkResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::chance::Chance;
use super::fates::{Expected, Fates};
use super::ledger::Name;
use super::rules::Rules;
use super::traffic::{self, Books, name_in};

pub(crate) type Consumers = Arc<Mutex<Fates>>;
pub(crate) type Watch = Arc<Mutex<Rules>>;

/// The behaviour of a consumer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Acknowledges half of them, lets many fail and some go, and leaves now and then.
    Careless,
    /// Acknowledges most, lets the rest fail, and stays.
    Steady,
    /// Acknowledges most, lets the rest fail, takes its time for both, and leaves now and then.
    Slow,
    /// Acknowledges some messages, lets the others fail, and leaves after this many.
    Brief(u64),
    /// Acknowledges this many messages, which are all.
    Thorough(u64),
}

impl Habit {
    /// Returns how many of ten are acknowledged.
    fn acks(self) -> u64 {
        match self {
            Self::Careless => 5,
            Self::Steady | Self::Slow => 8,
            Self::Brief(_) => 3,
            Self::Thorough(_) => 10,
        }
    }

    /// Returns whether it forgets some of what it has taken, so that their leases run out.
    fn lets_go(self) -> bool {
        matches!(self, Self::Careless | Self::Brief(_))
    }
}

/// The result that was sent for a lease.
#[derive(Clone, Copy)]
enum Sent {
    Ack(Name, Expected),
    Nack,
}

/// Where consumers of a queue write down what they see.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) queue: &'static str,
    pub(crate) books: Books,
    pub(crate) fates: Consumers,
    pub(crate) rules: Watch,
}

/// One consumer and its leases.
pub(crate) struct Consumer {
    desk: Desk,
    habit: Habit,
    chance: Chance,
    leases: HashMap<u64, Sent>,
    taken: u64,
    acked: u64,
}

impl Consumer {
    pub(crate) fn new(desk: &Desk, habit: Habit, chance: Chance) -> Self {
        Self {
            desk: desk.clone(),
            habit,
            chance,
            leases: HashMap::new(),
            taken: 0,
            acked: 0,
        }
    }

    /// Works on one stream until the server is gone, or it has had enough.
    pub(crate) async fn work(&mut self, address: &str) -> Result<(), Status> {
        let mut service = FilaServiceClient::new(traffic::reach(address).await?);
        let (sender, requests) = mpsc::channel(64);
        let first = WorkRequest {
            queue: self.desk.queue.to_owned(),
            credit: 32,
            ..WorkRequest::default()
        };
        if sender.send(first).await.is_err() {
            return Ok(());
        }
        let call = service.work(ReceiverStream::new(requests)).await?;
        let mut responses = call.into_inner();
        let until = match self.habit {
            Habit::Careless | Habit::Slow => self.taken + 50 + self.chance.below(400),
            Habit::Brief(most) => most,
            Habit::Steady | Habit::Thorough(_) => u64::MAX,
        };
        while let Some(response) = responses.message().await? {
            let report = self.take(&response);
            let is_enough = match self.habit {
                Habit::Thorough(all) => self.acked == all,
                _ => self.taken >= until,
            };
            let is_sent = report.credit == 0 || self.report(&sender, &response, report).await;
            if is_enough || !is_sent {
                break;
            }
        }
        // The end of the stream gives its leases back. Open acknowledgements stay open: the server may still read them.
        self.leases.clear();
        Ok(())
    }

    /// Sends results, and returns whether the stream takes them.
    async fn report(
        &mut self,
        sender: &mpsc::Sender<WorkRequest>,
        response: &WorkResponse,
        report: WorkRequest,
    ) -> bool {
        if self.habit == Habit::Slow {
            tokio::time::sleep(Duration::from_millis(self.chance.below(6))).await;
        }
        if !self.habit.lets_go() {
            // From now on the server may know that they are not held any more.
            let mut rules = self.desk.rules.lock().unwrap();
            let keys = response.deliveries.iter().map(|it| name_in(&it.payload).0);
            keys.for_each(|key| rules.answered(key));
        }
        sender.send(report).await.is_ok()
    }

    /// Writes down what a response says, and returns what to answer.
    fn take(&mut self, response: &WorkResponse) -> WorkRequest {
        self.close_leases(response);
        let mut report = WorkRequest {
            credit: response.deliveries.len() as u32,
            ..WorkRequest::default()
        };
        for delivery in &response.deliveries {
            self.decide(delivery, &mut report);
        }
        report
    }

    fn close_leases(&mut self, response: &WorkResponse) {
        let mut fates = self.desk.fates.lock().unwrap();
        for lease in &response.confirmed {
            match self.leases.remove(lease).expect("confirmed once") {
                Sent::Ack(name, expected) => {
                    fates.ack_confirmed(name, expected);
                    self.acked += 1;
                }
                Sent::Nack => fates.failed(),
            }
        }
        for refusal in &response.refused {
            // It has run out, since this test is slow now and then.
            if let Sent::Ack(name, _) = self.leases.remove(&refusal.lease_id).unwrap() {
                fates.ack_refused(name);
            }
        }
    }

    /// Writes a delivery down, and adds what becomes of it.
    fn decide(&mut self, delivery: &Delivery, report: &mut WorkRequest) {
        self.taken += 1;
        let name = name_in(&delivery.payload);
        let desk = &self.desk;
        desk.rules.lock().unwrap().delivered(desk.queue, name.0);
        let mut fates = desk.fates.lock().unwrap();
        let ledger = desk.books.lock().unwrap();
        let expected = fates.delivered(name, delivery.attempt, &ledger);
        let lease = delivery.lease_id;
        match self.chance.below(10) {
            roll if roll < self.habit.acks() || expected == Expected::Refusal => {
                fates.ack_sent(name);
                self.leases.insert(lease, Sent::Ack(name, expected));
                report.acks.push(lease);
            }
            9 if self.habit.lets_go() => {}
            _ => {
                self.leases.insert(lease, Sent::Nack);
                report.nacks.push(LeaseNack {
                    lease_id: lease,
                    error: "as planned".to_owned(),
                    delay_ms: None,
                });
            }
        }
    }
}
