//! Oversized, malformed and hostile input: the server refuses it, and other clients do not notice.

use fila_proto::v1::{EnqueueBatchRequest, EnqueueRequest};
use tonic::Code;

use crate::common::pipes::Producer;
use crate::common::{Rig, assert_refused, code, get, in_memory, message, raw, soon};

/// Checks that the server still does its work.
async fn still_works(rig: &mut Rig) {
    rig.enqueue("orders", "a", "x").await;
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    rig.ack("orders", &delivery).await.unwrap();
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused_and_the_connection_lives() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let huge = "x".repeat(20 << 20);
    let request = EnqueueRequest {
        queue: "orders".to_owned(),
        message: Some(message("a", &huge)),
    };
    let refused = soon(rig.messages.enqueue(request)).await;
    assert_refused(refused, Code::InvalidArgument, "PAYLOAD_TOO_LARGE");
    let mut producer = Producer::open(&rig).await;
    producer.send(1, "orders", vec![message("a", &huge)]).await;
    let refused = soon(producer.answers.message()).await;
    assert_refused(refused, Code::InvalidArgument, "PAYLOAD_TOO_LARGE");
    still_works(&mut rig).await;
}

#[tokio::test]
async fn a_batch_of_the_largest_size_that_fits_is_taken() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let large = "x".repeat(1 << 20);
    let request = EnqueueBatchRequest {
        queue: "orders".to_owned(),
        messages: vec![message("a", &large); 15],
        batch_id: None,
    };
    let results = soon(rig.messages.enqueue_batch(request)).await.unwrap();
    let results = results.into_inner().results;
    assert!(results.iter().all(|result| result.error.is_none()));
    let mut deliveries = rig.consume("orders", 100).await;
    for _ in 0..15 {
        assert_eq!(deliveries.next().await.payload.len(), 1 << 20);
    }
}

#[tokio::test]
async fn garbage_on_the_port_hurts_no_other_client() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let mut noise = Vec::new();
    let mut state: u32 = 1;
    for _ in 0..4_096 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        noise.push((state >> 24) as u8);
    }
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frame_of_16_mib = [0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1];
    for bytes in [
        noise.clone(),
        [preface, &noise[..]].concat(),
        [preface, &frame_of_16_mib[..]].concat(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"\0\0\0\0\r\n\r\n".to_vec(),
        [b"GET /".as_slice(), &[b'a'; 100_000], b" HTTP/1.1\r\n\r\n"].concat(),
    ] {
        let last = b"GET /healthz HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n";
        raw(&rig.server, &[&bytes, &last[..]].concat()).await;
    }
    still_works(&mut rig).await;
}

#[tokio::test]
async fn grpc_over_http_1_is_refused_and_pages_that_are_not_there_too() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let request = "POST /fila.v1.FilaService/Enqueue HTTP/1.1\r\nhost: fila\r\n\
        content-type: application/grpc\r\ncontent-length: 5\r\nconnection: close\r\n\r\n\0\0\0\0\0";
    let answer = raw(&rig.server, request.as_bytes()).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 505"), "{answer}");
    let (status, _) = get(&rig.server, "/nowhere").await;
    assert!((400..600).contains(&status), "{status}");
    still_works(&mut rig).await;
}

#[tokio::test]
async fn bytes_that_are_no_protobuf_are_refused() {
    use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

    /// Sends any bytes as a message.
    #[derive(Default)]
    struct Raw;
    impl Codec for Raw {
        type Encode = Vec<u8>;
        type Decode = ();
        type Encoder = Self;
        type Decoder = Self;
        fn encoder(&mut self) -> Self {
            Self
        }
        fn decoder(&mut self) -> Self {
            Self
        }
    }
    impl Encoder for Raw {
        type Item = Vec<u8>;
        type Error = tonic::Status;
        fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Self::Error> {
            use bytes::BufMut;
            buffer.put_slice(&item);
            Ok(())
        }
    }
    impl Decoder for Raw {
        type Item = ();
        type Error = tonic::Status;
        fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, Self::Error> {
            use bytes::Buf;
            buffer.advance(buffer.remaining());
            Ok(Some(()))
        }
    }

    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let channel = crate::common::connect(&rig.server).await;
    let mut client = tonic::client::Grpc::new(channel);
    for method in ["Enqueue", "AckBatch", "Produce", "Work", "Nonsense"] {
        for bytes in [vec![0xff; 100], vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
            client.ready().await.unwrap();
            let path = format!("/fila.v1.FilaService/{method}").parse().unwrap();
            let call = client.streaming(tonic::Request::new(tokio_stream::once(bytes)), path, Raw);
            let refused = match soon(call).await {
                Err(status) => status,
                Ok(answers) => {
                    let mut answers = answers.into_inner();
                    loop {
                        match soon(answers.message()).await {
                            Ok(Some(())) => {}
                            Ok(None) => panic!("{method} took garbage"),
                            Err(status) => break status,
                        }
                    }
                }
            };
            let expected = match method {
                "Nonsense" => (Code::Unimplemented, "none"),
                _ => (Code::InvalidArgument, "INVALID_ARGUMENT"),
            };
            assert_eq!((refused.code(), code(&refused)), expected, "{method}");
        }
    }
    still_works(&mut rig).await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_at_once_and_counted() {
    let mut config = in_memory();
    config.limits.connections = 2.try_into().unwrap();
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    let held = tokio::net::TcpStream::connect(rig.server.address())
        .await
        .unwrap();
    // Accepted in order: by the time this one is closed, the one before has its place.
    assert!(raw(&rig.server, b"").await.is_empty());
    drop(held);
    still_works(&mut rig).await;
    let server = &rig.server;
    crate::common::eventually(|| async move {
        let page = raw(
            server,
            b"GET /metrics HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n",
        )
        .await;
        String::from_utf8_lossy(&page).contains("fila_connections_refused_total")
    })
    .await;
}
