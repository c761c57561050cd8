//! The corpus in readable form: requests with the number of their call, as the fuzzer reads them.

use fila_proto::v1::{
    AckBatchRequest, AckRequest, BatchId, ConsumeRequest, CreateQueueRequest, DeleteConfigRequest,
    DeleteQueueRequest, EnqueueBatchRequest, EnqueueRequest, ExplainKeyRequest, ExtendBatchRequest,
    ExtendRequest, GetConfigRequest, InspectQueueRequest, LeaseExtension, LeaseNack,
    ListConfigRequest, ListKeysRequest, ListQueuesRequest, Message, NackBatchRequest, NackRequest,
    PauseQueueRequest, PeekRequest, ProduceRequest, PurgeQueueRequest, QueueSettings,
    ReceiveRequest, RedriveRequest, ReleaseRequest, ResumeQueueRequest, ServerInfoRequest,
    SetConfigRequest, UpdateKeyRequest, UpdateQueueRequest, WorkRequest,
};

/// An input that is being written.
#[derive(Default)]
struct Recipe(Vec<u8>);

impl Recipe {
    /// Adds a request. `number` is its place in [`STEPS`](crate::play::STEPS), counted from one.
    fn ask(self, number: u32, request: &impl prost::Message) -> Self {
        self.raw(number, &request.encode_to_vec())
    }

    fn raw(mut self, number: u32, request: &[u8]) -> Self {
        prost::encoding::encode_varint(u64::from((number << 3) | 2), &mut self.0);
        prost::encoding::encode_varint(request.len() as u64, &mut self.0);
        self.0.extend_from_slice(request);
        self
    }

    fn queue(self, settings: QueueSettings) -> Self {
        let settings = Some(settings);
        let name = q();
        self.ask(12, &CreateQueueRequest { name, settings })
    }

    fn produce(self, frame_id: u64, messages: Vec<Message>) -> Self {
        let frame = ProduceRequest {
            frame_id,
            queue: q(),
            messages,
            batch_id: None,
        };
        self.ask(3, &frame)
    }

    fn work(self, request: &WorkRequest) -> Self {
        self.ask(5, request)
    }

    fn listen(self) -> Self {
        self.raw(34, b"")
    }
}

fn q() -> String {
    "q".to_owned()
}

fn message(key: &str) -> Message {
    Message {
        fairness_key: key.to_owned(),
        payload: b"p".as_slice().into(),
        ..Message::default()
    }
}

fn credit(credit: u32) -> WorkRequest {
    WorkRequest {
        queue: q(),
        credit,
        ..WorkRequest::default()
    }
}

/// Returns every recipe with the name of its file, and the codes of the refusals that it meets.
pub(crate) fn recipes() -> Vec<(&'static str, Vec<u8>, Vec<&'static str>)> {
    let recipe =
        |name, recipe: Recipe, refused: &[&'static str]| (name, recipe.0, refused.to_vec());
    vec![
        recipe("empty", Recipe::default(), &[]),
        recipe("worked", worked(), &["LEASE_NOT_FOUND"]),
        recipe("consumed", consumed(), &["LEASE_NOT_FOUND"]),
        recipe("received", received(), &["LEASE_NOT_FOUND"]),
        recipe("dead-letters", dead_letters(), &[]),
        recipe("batches", batches(), &["INVALID_ARGUMENT"]),
        recipe("settings", settings(), &["QUEUE_CHANGED"]),
        recipe("script", script(), &["HOOK_FAILED"]),
        recipe("configuration", configuration(), &["CONFIG_NOT_FOUND"]),
        recipe("pages", pages(), &[]),
        recipe("limits", limits(), &LIMITS),
        recipe(
            "unreadable",
            unreadable(),
            &["INVALID_ARGUMENT", "QUEUE_NOT_FOUND"],
        ),
        recipe("hung-up", hung_up(), &[]),
    ]
}

const LIMITS: [&str; 10] = [
    "BATCH_TOO_LARGE",
    "DELAY_TOO_LONG",
    "FAIRNESS_KEY_TOO_LONG",
    "HEADERS_TOO_LARGE",
    "INVALID_WEIGHT",
    "KEY_FULL",
    "PAYLOAD_TOO_LARGE",
    "QUOTA_EXCEEDED",
    "TOO_MANY_DELAYED",
    "TOO_MANY_KEYS",
];

fn worked() -> Recipe {
    let messages = ["a", "a", "b", "b", "c"].map(message).to_vec();
    let results = WorkRequest {
        acks: vec![0, 63],
        nacks: vec![LeaseNack {
            lease_id: 1,
            error: "boom".to_owned(),
            delay_ms: Some(0),
        }],
        extensions: vec![LeaseExtension {
            lease_id: 2,
            lease_ms: 60_000,
        }],
        releases: vec![3],
        credit: 2,
        ..WorkRequest::default()
    };
    let drain = WorkRequest {
        drain: true,
        ..WorkRequest::default()
    };
    let recipe = Recipe::default().queue(QueueSettings::default());
    let recipe = recipe.produce(1, messages).work(&credit(8)).listen();
    recipe.work(&results).work(&drain)
}

fn consumed() -> Recipe {
    let consume = ConsumeRequest {
        queue: q(),
        prefetch: 4,
    };
    let enqueue = |key| EnqueueRequest {
        queue: q(),
        message: Some(message(key)),
    };
    let ack = AckRequest {
        queue: q(),
        message_id: "#0".to_owned(),
        lease_id: 0,
    };
    let nack = NackRequest {
        queue: q(),
        lease_id: 1,
        error: "boom".to_owned(),
        ..NackRequest::default()
    };
    let extend = ExtendRequest {
        queue: q(),
        lease_id: 2,
        lease_ms: 5_000,
        ..ExtendRequest::default()
    };
    let nack_all = NackBatchRequest {
        queue: q(),
        nacks: vec![LeaseNack {
            lease_id: 2,
            ..LeaseNack::default()
        }],
    };
    let ack_all = AckBatchRequest {
        queue: q(),
        lease_ids: vec![2, 3],
    };
    let mut recipe = Recipe::default().queue(QueueSettings::default());
    for key in ["a", "b", "c", ""] {
        recipe = recipe.ask(1, &enqueue(key));
    }
    let recipe = recipe.ask(4, &consume).listen().ask(6, &ack).ask(8, &nack);
    recipe.ask(10, &extend).ask(9, &nack_all).ask(7, &ack_all)
}

fn received() -> Recipe {
    let receive = ReceiveRequest {
        queue: q(),
        messages_max: 10,
        ..ReceiveRequest::default()
    };
    let release = ReleaseRequest {
        queue: q(),
        lease_ids: vec![0, 63],
    };
    let extension = |lease_id| LeaseExtension {
        lease_id,
        lease_ms: 60_000,
    };
    let extend = ExtendBatchRequest {
        queue: q(),
        extensions: [1, 63].map(extension).to_vec(),
    };
    let ack = AckBatchRequest {
        queue: q(),
        lease_ids: vec![1, 2],
    };
    let recipe = Recipe::default().queue(QueueSettings::default());
    let recipe = recipe.produce(1, ["a", "b", "c"].map(message).to_vec());
    let recipe = recipe.ask(35, &receive).ask(36, &release);
    recipe.ask(37, &extend).ask(7, &ack).ask(35, &receive)
}

fn dead_letters() -> Recipe {
    let settings = QueueSettings {
        retry_attempts_max: Some(1),
        ..QueueSettings::default()
    };
    let fail = WorkRequest {
        nacks: vec![LeaseNack {
            error: "boom".to_owned(),
            ..LeaseNack::default()
        }],
        ..WorkRequest::default()
    };
    let redrive = RedriveRequest {
        queue: "q.dlq".to_owned(),
        ..RedriveRequest::default()
    };
    let recipe = Recipe::default().queue(settings);
    let recipe = recipe.produce(1, vec![message("a")]).work(&credit(1));
    let recipe = recipe.listen().work(&fail).ask(23, &redrive);
    recipe.work(&credit(1)).listen()
}

fn batches() -> Recipe {
    let batch = |producer: &'static [u8]| EnqueueBatchRequest {
        queue: q(),
        messages: vec![message("a"), message("b")],
        batch_id: Some(BatchId {
            producer: producer.into(),
            sequence: 1,
            ..BatchId::default()
        }),
    };
    let once = Message {
        deduplication_id: "order-7".to_owned(),
        ..message("a")
    };
    let once = EnqueueRequest {
        queue: q(),
        message: Some(once),
    };
    let recipe = Recipe::default().queue(QueueSettings::default());
    let recipe = recipe.ask(2, &batch(b"0123456789abcdef"));
    let recipe = recipe.ask(2, &batch(b"0123456789abcdef"));
    let recipe = recipe.ask(2, &batch(b"short"));
    recipe.ask(1, &once).ask(1, &once)
}

fn settings() -> Recipe {
    let update = |version| UpdateQueueRequest {
        name: q(),
        settings: Some(QueueSettings {
            ordering: Some(1),
            key_concurrency: Some(1),
            charge: Some(1),
            depth_max: Some(10),
            ..QueueSettings::default()
        }),
        version,
    };
    let key = UpdateKeyRequest {
        queue: q(),
        fairness_key: "a".to_owned(),
        paused: Some(true),
        weight: Some(3),
        concurrency: Some(2),
        ..UpdateKeyRequest::default()
    };
    let explain = ExplainKeyRequest {
        queue: q(),
        fairness_key: "a".to_owned(),
    };
    let recipe = Recipe::default().queue(QueueSettings::default());
    let recipe = recipe.produce(1, vec![message("a")]);
    let recipe = recipe.ask(14, &update(None)).ask(14, &update(Some(77)));
    let recipe = recipe.ask(18, &PauseQueueRequest { name: q() });
    let recipe = recipe.ask(21, &key).ask(22, &explain);
    let recipe = recipe.ask(19, &ResumeQueueRequest { name: q() });
    let recipe = recipe.ask(17, &InspectQueueRequest { name: q() });
    let recipe = recipe.ask(15, &PurgeQueueRequest { name: q() });
    recipe.ask(13, &DeleteQueueRequest { name: q() })
}

fn script() -> Recipe {
    let script = "function on_enqueue(m) if m.headers.t then return { fairness_key = m.headers.t, weight = 2 } end error(\"no t\") end";
    let settings = QueueSettings {
        script: Some(script.to_owned()),
        hook_fallback: Some(2),
        ..QueueSettings::default()
    };
    let tagged = Message {
        headers: [("t".to_owned(), "a".to_owned())].into(),
        ..Message::default()
    };
    let recipe = Recipe::default().queue(settings);
    recipe.produce(1, vec![tagged, message("b")])
}

fn configuration() -> Recipe {
    let (key, version) = ("throttle:mail:rate".to_owned(), None);
    let set = SetConfigRequest {
        key: key.clone(),
        value: "1".to_owned(),
        version,
    };
    let throttled = Message {
        throttle_keys: vec!["mail".to_owned()],
        ..message("a")
    };
    let recipe = Recipe::default().queue(QueueSettings::default());
    let recipe = recipe
        .ask(24, &set)
        .ask(25, &GetConfigRequest { key: key.clone() });
    let recipe = recipe.produce(1, vec![throttled.clone(), throttled]);
    let recipe = recipe
        .work(&credit(2))
        .ask(26, &ListConfigRequest::default());
    let delete = DeleteConfigRequest { key, version };
    recipe.ask(27, &delete).ask(27, &delete)
}

fn pages() -> Recipe {
    let peek = |token: &str| PeekRequest {
        queue: q(),
        page_size: 2,
        page_token: token.to_owned(),
        ..PeekRequest::default()
    };
    let keys = |token: &str| ListKeysRequest {
        queue: q(),
        page_size: 1,
        page_token: token.to_owned(),
        ..ListKeysRequest::default()
    };
    let queues = |token: &str| ListQueuesRequest {
        page_size: 1,
        page_token: token.to_owned(),
        ..ListQueuesRequest::default()
    };
    let recipe = Recipe::default().queue(QueueSettings::default());
    let recipe = recipe.produce(1, ["a", "b", "a"].map(message).to_vec());
    let recipe = recipe.ask(11, &peek("")).ask(11, &peek("#"));
    let recipe = recipe.ask(20, &keys("")).ask(20, &keys("#"));
    let recipe = recipe.ask(16, &queues("")).ask(16, &queues("#"));
    recipe.ask(28, &ServerInfoRequest {})
}

fn limits() -> Recipe {
    let delayed = |delay_ms| Message {
        delay_ms,
        ..message("a")
    };
    let late = Message {
        delay_ms: 60_000,
        ..message("b")
    };
    let headers = (0..4).map(|number| (number.to_string(), String::new()));
    let wrong = vec![
        Message {
            payload: vec![0; 3_000].into(),
            ..Message::default()
        },
        Message {
            headers: headers.collect(),
            ..Message::default()
        },
        Message {
            weight: Some(0),
            ..Message::default()
        },
        message("a key beyond the limit"),
        delayed(u64::MAX),
    ];
    let recipe = Recipe::default().queue(QueueSettings::default());
    let recipe = recipe
        .produce(1, wrong)
        .produce(2, vec![delayed(60_000); 5])
        .produce(2, vec![late; 2]);
    let recipe = recipe.produce(3, vec![message("b"); 13]);
    let recipe = recipe.produce(4, ["c", "d", "e"].map(message).to_vec());
    recipe.produce(5, vec![message("b"); 21])
}

fn unreadable() -> Recipe {
    let recipe = Recipe::default().queue(QueueSettings::default());
    let recipe = recipe.raw(1, b"\xff").raw(3, b"\x0a\x05q").raw(5, b"\xff");
    let elsewhere = WorkRequest {
        queue: "nowhere".to_owned(),
        ..WorkRequest::default()
    };
    recipe.work(&elsewhere).raw(4, b"\x08").raw(16, b"\xff")
}

fn hung_up() -> Recipe {
    let recipe = Recipe::default().queue(QueueSettings::default());
    let recipe = recipe.produce(1, vec![message("a"); 3]).work(&credit(2));
    let recipe = recipe.raw(31, b"").work(&credit(2)).raw(33, b"");
    let consume = ConsumeRequest {
        queue: q(),
        prefetch: 0,
    };
    let recipe = recipe.ask(4, &consume).raw(30, b"").raw(32, b"");
    recipe.produce(2, vec![message("b")]).raw(29, b"")
}
