//! A program that consumes, in a process of its own that can be stopped. It speaks the wire itself: what it says late
//! is said to the server, and not kept back by a library that knows better.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;

use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{ErrorCode, WorkRequest, WorkResponse};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

use crate::{QUEUE, soon};

/// How many messages it has at once.
pub(crate) const CREDIT: u32 = 16;

const ADDRESS: &str = "FILA_TEST_ADDRESS";

fn say(line: &str) {
    // A line is whole or not there: it is one write.
    let line = format!("> {line}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

fn tell(response: &WorkResponse, leases: &mut BTreeMap<u64, String>) {
    for lease in &response.confirmed {
        say(&format!("confirmed {}", leases.remove(lease).unwrap()));
    }
    for refusal in &response.refused {
        let code = refusal.error.as_ref().unwrap().code();
        assert_eq!(code, ErrorCode::LeaseNotFound);
        let text = leases.remove(&refusal.lease_id).unwrap();
        say(&format!("refused {text}"));
    }
    for delivery in &response.deliveries {
        let text = String::from_utf8(delivery.payload.to_vec()).unwrap();
        say(&format!("took {text}"));
        leases.insert(delivery.lease_id, text);
    }
}

/// Takes as many as its credit says, and acknowledges all it has, for new credit, whenever it is told to.
#[tokio::test]
#[ignore = "a process that another test starts and stops"]
async fn consume() {
    let address = std::env::var(ADDRESS).expect("the test says where the server is");
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut service = FilaServiceClient::new(endpoint.connect().await.unwrap());
    let (sender, requests) = mpsc::channel(4);
    let first = WorkRequest {
        queue: QUEUE.to_owned(),
        credit: CREDIT,
        ..WorkRequest::default()
    };
    sender.send(first).await.unwrap();
    let call = service.work(ReceiverStream::new(requests)).await.unwrap();
    let mut responses = call.into_inner();
    let mut told = BufReader::new(tokio::io::stdin()).lines();
    let mut leases = BTreeMap::new();
    loop {
        tokio::select! {
            response = responses.message() => tell(&response.unwrap().unwrap(), &mut leases),
            line = told.next_line() => {
                if line.unwrap().is_none() {
                    return;
                }
                let acks: Vec<u64> = leases.keys().copied().collect();
                let credit = acks.len() as u32;
                let report = WorkRequest { acks, credit, ..WorkRequest::default() };
                sender.send(report).await.unwrap();
            }
        }
    }
}

/// This very test program, asked for that part of it.
pub(crate) struct Process {
    child: Child,
    told: ChildStdin,
    says: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn start(address: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "consumer::consume", "--nocapture"])
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            told: child.stdin.take().unwrap(),
            says: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        crate::signal(self.child.id().unwrap(), name);
    }

    /// Tells it to acknowledge all it has.
    pub(crate) async fn acknowledge(&mut self) {
        self.told.write_all(b"ack\n").await.unwrap();
    }

    /// Reads `count` lines of its output, which must all say `what`, and returns their messages.
    pub(crate) async fn says(&mut self, what: &str, count: u32) -> Vec<String> {
        let mut texts = Vec::new();
        while texts.len() < count as usize {
            let line = soon(self.says.next_line()).await.unwrap().unwrap();
            // The words of the test runner are not its own.
            if let Some(line) = line.strip_prefix("> ") {
                let text = line.strip_prefix(what);
                let text = text.unwrap_or_else(|| panic!("{line:?} is not {what:?}"));
                texts.push(text.trim().to_owned());
            }
        }
        texts
    }
}
