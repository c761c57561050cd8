//! What `grpcurl` does: descriptors by reflection, messages from JSON and back.

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{MetadataKey, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

pub(crate) struct Client(Channel);

impl Client {
    pub(crate) async fn connect(address: &str) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Self(endpoint.connect().await.unwrap())
    }

    /// Returns the names of all services, sorted.
    pub(crate) async fn services(&self) -> Vec<String> {
        let answer = self.reflect(MessageRequest::ListServices(String::new()));
        let MessageResponse::ListServicesResponse(list) = answer.await else {
            panic!("a list was asked for");
        };
        let mut names: Vec<String> = list.service.into_iter().map(|s| s.name).collect();
        names.sort();
        names
    }

    /// Returns the descriptors of the file that defines a symbol.
    pub(crate) async fn descriptors(&self, symbol: &str) -> DescriptorPool {
        let answer = self.reflect(MessageRequest::FileContainingSymbol(symbol.to_owned()));
        let MessageResponse::FileDescriptorResponse(files) = answer.await else {
            panic!("{symbol} is not known to the server");
        };
        let mut pool = DescriptorPool::new();
        for file in files.file_descriptor_proto {
            pool.decode_file_descriptor_proto(file.as_slice()).unwrap();
        }
        pool
    }

    async fn reflect(&self, request: MessageRequest) -> MessageResponse {
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(request),
        };
        let mut client = ServerReflectionClient::new(self.0.clone());
        let answers = client.server_reflection_info(tokio_stream::iter([request]));
        let mut answers = answers.await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap();
        answer.message_response.unwrap()
    }

    /// Begins a call. Requests are sent as they come: a single one is a stream of one, on the wire as well.
    pub(crate) async fn call(&self, service: &str, method: &str, headers: &[String]) -> Call {
        let pool = self.descriptors(service).await;
        let found = pool.get_service_by_name(service).unwrap();
        let method = found.methods().find(|m| m.name() == method);
        let method = method.expect("the service has the method");
        let (requests, sent) = mpsc::unbounded_channel();
        let mut request = Request::new(UnboundedReceiverStream::new(sent));
        for header in headers {
            let (name, value) = header.split_once(": ").unwrap();
            let name: MetadataKey<_> = name.parse().unwrap();
            request.metadata_mut().insert(name, value.parse().unwrap());
        }
        let path: PathAndQuery = format!("/{service}/{}", method.name()).parse().unwrap();
        let mut client = Grpc::new(self.0.clone());
        client.ready().await.unwrap();
        let codec = ByDescriptor(method.output());
        let answers = tokio::spawn(async move {
            let answers = client.streaming(request, path, codec).await?;
            Ok(answers.into_inner())
        });
        Call {
            method,
            requests: Some(requests),
            answers: Answers::Awaited(answers),
        }
    }
}

/// A call under way. Dropping it hangs up.
pub(crate) struct Call {
    pub(crate) method: MethodDescriptor,
    requests: Option<mpsc::UnboundedSender<DynamicMessage>>,
    answers: Answers,
}

enum Answers {
    /// The server sends the first bytes when it likes.
    Awaited(tokio::task::JoinHandle<Result<Streaming<DynamicMessage>, Status>>),
    Coming(Box<Streaming<DynamicMessage>>),
}

impl Call {
    /// Sends messages, given as one JSON value after another.
    pub(crate) fn send(&self, json: &str) {
        let requests = self.requests.as_ref().expect("the call takes requests");
        for value in serde_json::Deserializer::from_str(json).into_iter::<Value>() {
            let value = value.unwrap_or_else(|error| panic!("{error} in {json}"));
            let message = DynamicMessage::deserialize(self.method.input(), value);
            let message = message.unwrap_or_else(|error| panic!("{error} in {json}"));
            requests.send(message).unwrap();
        }
    }

    /// Says that no more requests come.
    pub(crate) fn finish(&mut self) {
        self.requests = None;
    }

    /// Waits for the next message.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>, Status> {
        if let Answers::Awaited(answers) = &mut self.answers {
            self.answers = Answers::Coming(Box::new(answers.await.unwrap()?));
        }
        let Answers::Coming(answers) = &mut self.answers else {
            unreachable!("it has been waited for");
        };
        let message = answers.message().await?;
        Ok(message.map(|message| serde_json::to_value(&message).unwrap()))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Answers::Awaited(answers) = &self.answers {
            answers.abort();
        }
    }
}

/// Returns metadata as lines.
pub(crate) fn lines(metadata: &MetadataMap) -> String {
    let headers = metadata.clone().into_headers();
    let lines = headers.iter();
    let lines = lines.map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()));
    lines.collect()
}

/// Messages whose types are known by their descriptors only.
struct ByDescriptor(MessageDescriptor);

impl Codec for ByDescriptor {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Encoding;
    type Decoder = Self;

    fn encoder(&mut self) -> Encoding {
        Encoding
    }

    fn decoder(&mut self) -> Self {
        Self(self.0.clone())
    }
}

struct Encoding;

impl Encoder for Encoding {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(
        &mut self,
        message: DynamicMessage,
        buffer: &mut EncodeBuf<'_>,
    ) -> Result<(), Status> {
        message.encode(buffer).unwrap();
        Ok(())
    }
}

impl Decoder for ByDescriptor {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        Ok(Some(
            DynamicMessage::decode(self.0.clone(), buffer).unwrap(),
        ))
    }
}
