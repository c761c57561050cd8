//! The terminal of the session: what runs in it, what has been printed, what is to be printed next.

use std::future::Future;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Status;

use crate::book::{Block, Kind};
use crate::command::{self, Command, Data, Grpcurl, Verb};
use crate::describe::describe;
use crate::grpcurl::{Call, Client, lines};
use crate::matching::Bindings;
use crate::process::Server;

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long to wait before looking again.
const PAUSE: Duration = Duration::from_millis(5);

pub(crate) struct Shell {
    server: Option<(Server, Client)>,
    known: Bindings,
    /// The commands of the last block, if what they print has not been compared yet.
    waiting: Vec<Command>,
    /// The call in the background.
    job: Option<Call>,
    /// The call that is being typed into.
    typed: Option<Call>,
}

/// The output of a command.
enum Printed {
    Messages(Vec<Value>),
    Lines(String),
}

impl Shell {
    pub(crate) fn new() -> Self {
        Self {
            server: None,
            known: Bindings::default(),
            waiting: Vec::new(),
            job: None,
            typed: None,
        }
    }

    /// Runs the commands of a block, or compares what it shows.
    pub(crate) async fn play(&mut self, block: &Block) {
        let place = format!("docs/grpc.md, line {}", block.line);
        let played = tokio::time::timeout(PATIENCE, async {
            match block.kind {
                Kind::Commands => self.commands(&block.text).await,
                Kind::Typed => {
                    let call = self.typed.as_ref().expect("a call waits for what is typed");
                    call.send(&self.known.fill(&block.text));
                }
                Kind::Messages | Kind::Lines if self.waiting.is_empty() => {
                    self.stream(block, &place).await;
                }
                Kind::Messages | Kind::Lines => self.compare(block, &place).await,
            }
        });
        assert!(played.await.is_ok(), "{place}: nothing came");
    }

    /// Leaves the shell. What runs in it is ended.
    pub(crate) async fn end(mut self) {
        self.commands("").await;
    }

    async fn commands(&mut self, text: &str) {
        let left = &self.waiting;
        assert!(
            left.is_empty(),
            "the book does not show what comes back: {left:?}"
        );
        if let Some(mut call) = self.typed.take() {
            // The keyboard is still there: it is the server that ends it.
            let end = call.next().await;
            assert!(matches!(end, Ok(None)), "a typed call ends well: {end:?}");
        }
        for command in command::parse_all(text) {
            match command {
                Command::Kill => drop(self.job.take().expect("something is in the background")),
                Command::Grpcurl(line) if line.is_in_background => {
                    let call = self.begin(&line).await;
                    assert!(self.job.replace(call).is_none(), "two in the background");
                }
                Command::Grpcurl(line) if line.data == Data::Typed => {
                    self.typed = Some(self.begin(&line).await);
                }
                command => self.waiting.push(command),
            }
        }
    }

    /// Compares what comes next on the call that goes on.
    async fn stream(&mut self, block: &Block, place: &str) {
        let call = self.typed.as_mut().or(self.job.as_mut());
        let call = call.unwrap_or_else(|| panic!("{place}: nothing runs that could print this"));
        for shown in values(&block.text, place) {
            let found = call.next().await;
            let found = found.unwrap_or_else(|status| panic!("{place}: {status}"));
            let found = found.unwrap_or_else(|| panic!("{place}: the stream has ended"));
            assert!(
                self.known.matches(&shown, &found),
                "{place}: there came\n{found:#}"
            );
        }
    }

    /// Runs the pending command and compares its output. A command that only reads is repeated until it matches.
    async fn compare(&mut self, block: &Block, place: &str) {
        let commands = std::mem::take(&mut self.waiting);
        let [command] = commands.as_slice() else {
            panic!("{place}: one command at a time, if it prints something");
        };
        let started = tokio::time::Instant::now();
        loop {
            let printed = self.run(command).await;
            let mut known = self.known.clone();
            let is_same = match (&printed, block.kind) {
                (Printed::Messages(found), Kind::Messages) => {
                    let shown = Value::Array(values(&block.text, place));
                    known.matches(&shown, &Value::Array(found.clone()))
                }
                (Printed::Lines(found), Kind::Lines) => known.matches_lines(&block.text, found),
                (Printed::Messages(_) | Printed::Lines(_), _) => false,
            };
            if is_same {
                self.known = known;
                return;
            }
            if !only_looks(command) || started.elapsed() > PATIENCE / 2 {
                panic!("{place}: {command:?} has printed\n{}", printed.text());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn run(&mut self, command: &Command) -> Printed {
        match command {
            Command::Server(arguments) => {
                let server = Server::start(arguments);
                let printed = Printed::Lines(server.output.clone());
                let client = Client::connect(&server.address).await;
                self.server = Some((server, client));
                printed
            }
            Command::Grpcurl(line) => self.grpcurl(line).await,
            Command::Curl { path, filter } => {
                let (server, _) = self.server.as_ref().expect("the server runs");
                let page = get(&server.address, path).await;
                Printed::Lines(filtered(page, filter.as_deref()))
            }
            Command::Kill => unreachable!("it prints nothing"),
        }
    }

    async fn grpcurl(&self, line: &Grpcurl) -> Printed {
        let client = self.client();
        let filter = line.filter.as_deref();
        let text = match &line.verb {
            Verb::List(None) => client.services().await.join("\n"),
            Verb::List(Some(service)) => {
                let pool = client.descriptors(service).await;
                let service = pool.get_service_by_name(service).unwrap();
                let names = service.methods().map(|m| m.full_name().to_owned());
                let mut names: Vec<String> = names.collect();
                names.sort();
                names.join("\n")
            }
            Verb::Describe(symbol) => describe(&client.descriptors(symbol).await, symbol),
            Verb::Call { .. } => {
                let call = self.begin(line);
                match all(call).await {
                    Ok(messages) => return Printed::Messages(messages),
                    Err(status) => refusal(&status, line.is_verbose),
                }
            }
        };
        Printed::Lines(filtered(text, filter))
    }

    /// Begins a call. Unless requests are to be typed, it gets all there are.
    async fn begin(&self, line: &Grpcurl) -> Call {
        let Verb::Call { service, method } = &line.verb else {
            panic!("only calls can go on: {line:?}");
        };
        let headers: Vec<String> = line.headers.iter().map(|h| self.known.fill(h)).collect();
        let mut call = self.client().call(service, method, &headers).await;
        if let Data::Given(data) = &line.data {
            let data = match (data.as_str(), call.method.is_client_streaming()) {
                ("", false) => "{}",
                (data, _) => data,
            };
            call.send(&self.known.fill(data));
            call.finish();
        }
        call
    }

    fn client(&self) -> &Client {
        let (_, client) = self.server.as_ref().expect("the server runs");
        client
    }
}

impl Printed {
    fn text(&self) -> String {
        match self {
            Self::Messages(messages) => {
                let messages = messages.iter().map(|message| format!("{message:#}\n"));
                messages.collect()
            }
            Self::Lines(lines) => lines.clone(),
        }
    }
}

async fn all(call: impl Future<Output = Call>) -> Result<Vec<Value>, Status> {
    let mut call = call.await;
    let mut messages = Vec::new();
    while let Some(message) = call.next().await? {
        messages.push(message);
    }
    Ok(messages)
}

fn refusal(status: &Status, is_verbose: bool) -> String {
    let metadata = match is_verbose {
        true => lines(status.metadata()),
        false => String::new(),
    };
    let (code, message) = (status.code(), status.message());
    format!("{metadata}ERROR:\n  Code: {code:?}\n  Message: {message}\n")
}

/// Tells whether a command changes nothing, and what it shows may be a moment behind.
fn only_looks(command: &Command) -> bool {
    match command {
        Command::Curl { .. } => true,
        Command::Grpcurl(line) => match &line.verb {
            Verb::List(_) | Verb::Describe(_) => false,
            Verb::Call { method, .. } => {
                let looks = ["Inspect", "List", "ServerInfo"];
                looks.iter().any(|start| method.starts_with(start))
            }
        },
        Command::Server(_) | Command::Kill => false,
    }
}

fn values(text: &str, place: &str) -> Vec<Value> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let values = values.map(|value| value.unwrap_or_else(|error| panic!("{place}: {error}")));
    values.collect()
}

fn filtered(text: String, start: Option<&str>) -> String {
    let Some(start) = start else {
        return text;
    };
    let lines = text.lines().filter(|line| line.starts_with(start));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Asks for a page, and returns its body.
async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    body.to_owned()
}
