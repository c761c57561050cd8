//! Conversions of messages between the wire and the broker.
//!
//! A payload is copied at most once, out of its frame: otherwise one message that waits in memory would keep the whole
//! frame. After that it is moved, to the store and onto the wire.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use fila_core::{BatchId, Delivery, Enqueued, NewMessage, ProducerId, Sequence, Source, Ttl};
use fila_proto::v1::{self, EnqueueResult, ErrorCode};
use fila_store::{
    DeathReason, DeduplicationId, FairnessKey, GroupWeights, History, Payload, PayloadError,
    QueueId, Schedule, ThrottleKey,
};

use tonic::Request;

use super::id;
use super::refusal::{Refusal, out_of_range};
use super::trace::CallTrace;
use crate::http::ClientAddress;

/// A single payload of at least this size is not copied: it is most of its frame.
const LARGE: usize = 64 << 10;

/// Parses a fairness key. An empty one is the default key.
pub(super) fn fairness_key(text: String) -> Result<FairnessKey, Refusal> {
    if text.is_empty() {
        return Ok(FairnessKey::default());
    }
    FairnessKey::new(text).map_err(out_of_range(ErrorCode::FairnessKeyTooLong))
}

/// Parses the schedule of a message. The broker checks the number of throttle keys.
fn schedule(
    key: String,
    weight: Option<u32>,
    throttle_keys: &[String],
) -> Result<Schedule, Refusal> {
    let zero = || {
        Refusal::new(
            ErrorCode::InvalidWeight,
            "weight 0 is out of range; 1 is the least",
        )
    };
    Ok(Schedule {
        weight: NonZeroU32::new(weight.unwrap_or(1)).ok_or_else(zero)?,
        fairness_key: fairness_key(key)?,
        group_weights: GroupWeights::NONE,
        throttle_keys: throttle_keys
            .iter()
            .map(|text| ThrottleKey::parse(text))
            .collect::<Result<_, _>>()
            .map_err(out_of_range(ErrorCode::InvalidThrottleKey))?,
    })
}

/// Parses a message.
pub(super) fn parse(
    message: v1::Message,
    trace: &CallTrace,
    source: Option<Source>,
) -> Result<NewMessage, Refusal> {
    let v1::Message {
        fairness_key,
        weight,
        headers,
        payload,
        delay_ms,
        ttl_ms,
        deduplication_id,
        throttle_keys,
    } = message;
    let mut headers: Vec<(String, String)> = headers.into_iter().collect();
    trace.add_to(&mut headers);
    let payload = Payload::new(headers, payload).map_err(|error| match error {
        PayloadError::Headers(error) => out_of_range(ErrorCode::HeadersTooLarge)(error),
        PayloadError::Body(error) => out_of_range(ErrorCode::PayloadTooLarge)(error),
    })?;
    let deduplication_id = if deduplication_id.is_empty() {
        None
    } else {
        let id = DeduplicationId::new(deduplication_id);
        Some(id.map_err(out_of_range(ErrorCode::DeduplicationIdTooLong))?)
    };
    Ok(NewMessage {
        schedule: schedule(fairness_key, weight, &throttle_keys)?,
        payload,
        delay: Duration::from_millis(delay_ms),
        ttl: match ttl_ms {
            None => Ttl::Queue,
            Some(0) => Ttl::Forever,
            Some(millis) => Ttl::For(Duration::from_millis(millis)),
        },
        deduplication_id,
        source,
        refusal: None,
    })
}

/// Returns the client of a request by its address, if that is known: the whole address, or the first half of one of IPv6,
/// since a client can choose the rest.
pub(super) fn source<T>(request: &Request<T>) -> Option<Source> {
    let ClientAddress(address) = request.extensions().get()?;
    Some(Source::new(match address.ip().to_canonical() {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    }))
}

/// Parses a batch id.
pub(super) fn batch_id(id: v1::BatchId) -> Result<BatchId, Refusal> {
    let v1::BatchId {
        producer,
        sequence,
        answered_below,
        remember_ms,
    } = id;
    let producer = producer[..].try_into().map_err(|_| {
        Refusal::invalid(format!(
            "batch_id.producer has {} bytes; choose {} at random",
            producer.len(),
            ProducerId::LENGTH
        ))
    })?;
    let remember_max = (remember_ms > 0).then(|| Duration::from_millis(remember_ms));
    Ok(BatchId {
        producer: ProducerId::new(producer),
        sequence: Sequence::new(sequence),
        answered_below: Sequence::new(answered_below),
        remember_max,
    })
}

/// Returns the failures of a message for the wire. `first` is the queue that accepted it.
pub(super) fn history(first: QueueId, history: &History) -> v1::History {
    let death = history.death.as_ref().map(|death| v1::Death {
        reason: match death.reason {
            DeathReason::AttemptsExhausted => v1::DeathReason::AttemptsExhausted,
            DeathReason::Hook => v1::DeathReason::Hook,
        }
        .into(),
        queue: death.queue.to_string(),
        message_id: id::encode(first, death.message),
        attempts: death.attempts,
        died_at_ms: death.died_at.as_millis(),
        enqueued_at_ms: death.enqueued_at.as_millis(),
    });
    v1::History {
        last_error: history.last_error.to_string(),
        first_failed_at_ms: history.first_failed_at.as_millis(),
        last_failed_at_ms: history.last_failed_at.as_millis(),
        death,
    }
}

/// Returns a delivery for the wire. `first` is the queue that accepted the message: for a dead letter its queue before.
pub(super) fn delivery(first: QueueId, delivery: Delivery) -> v1::Delivery {
    let (headers, payload) = delivery.payload.into_parts();
    v1::Delivery {
        message_id: id::encode(first, delivery.message),
        lease_id: delivery.lease.get(),
        fairness_key: key_text(&delivery.fairness_key),
        weight: delivery.weight,
        headers: headers.into_iter().collect(),
        payload,
        attempt: delivery.attempt,
        enqueued_at_ms: delivery.enqueued_at.as_millis(),
        lease_ms: u64::try_from(delivery.lease_time.as_millis()).unwrap_or(u64::MAX),
        history: delivery.history.as_deref().map(|it| history(first, it)),
        lost: delivery.lost,
    }
}

/// Returns a fairness key as text. Keys that came over gRPC are valid text.
pub(super) fn key_text(key: &FairnessKey) -> String {
    String::from_utf8_lossy(key.as_bytes()).into_owned()
}

/// Returns the result of one message of a batch or a stream.
pub(super) fn result(queue: QueueId, result: Result<Enqueued, Refusal>) -> EnqueueResult {
    match result {
        Ok(enqueued) => {
            let (message, deduplicated) = match enqueued {
                Enqueued::Stored(message) => (message, false),
                Enqueued::Duplicate(message) => (message, true),
            };
            EnqueueResult {
                message_id: id::encode(queue, message),
                deduplicated,
                error: None,
            }
        }
        Err(refusal) => EnqueueResult {
            error: Some(refusal.into()),
            ..EnqueueResult::default()
        },
    }
}

/// The messages of one request. Messages that cannot be parsed are kept apart.
#[derive(Debug)]
pub(super) struct Batch {
    /// The messages for the broker, in their order.
    pub(super) messages: Vec<NewMessage>,
    /// The places of the others, and why they were refused, in order.
    refused: Vec<(usize, Refusal)>,
}

impl Batch {
    pub(super) fn parse(
        messages: Vec<v1::Message>,
        trace: &CallTrace,
        source: Option<Source>,
    ) -> Self {
        let mut batch = Self {
            messages: Vec::with_capacity(messages.len()),
            refused: Vec::new(),
        };
        let is_alone = messages.len() == 1;
        for (place, mut message) in messages.into_iter().enumerate() {
            if !is_alone || message.payload.len() < LARGE {
                message.payload = Bytes::copy_from_slice(&message.payload);
            }
            match parse(message, trace, source) {
                Ok(message) => batch.messages.push(message),
                Err(refusal) => batch.refused.push((place, refusal)),
            }
        }
        batch
    }

    /// Splits off the messages from the refusals.
    pub(super) fn split(self) -> (Vec<NewMessage>, BatchOutcome) {
        let outcome = BatchOutcome {
            accepted: self.messages.len(),
            refused: self.refused,
        };
        (self.messages, outcome)
    }
}

/// The results of a batch that are known before the broker decides.
#[derive(Debug)]
pub(super) struct BatchOutcome {
    accepted: usize,
    refused: Vec<(usize, Refusal)>,
}

impl BatchOutcome {
    /// Returns the number of messages in the batch.
    pub(super) fn len(&self) -> usize {
        self.accepted + self.refused.len()
    }

    /// Merges the broker's results into the refusals, and returns one result for each message, in their order.
    pub(super) fn merge<E: Into<Refusal>>(
        self,
        queue: QueueId,
        decided: impl IntoIterator<Item = Result<Enqueued, E>>,
    ) -> Vec<EnqueueResult> {
        let mut results = Vec::with_capacity(self.len());
        let mut refused = self.refused.into_iter().peekable();
        let mut decided = decided.into_iter();
        loop {
            if let Some((_, refusal)) = refused.next_if(|(place, _)| *place == results.len()) {
                results.push(result(queue, Err(refusal)));
            } else if let Some(decided) = decided.next() {
                results.push(result(queue, decided.map_err(Into::into)));
            } else {
                return results;
            }
        }
    }

    /// Returns the same refusal for each message that could be parsed.
    pub(super) fn refuse_all(self, queue: QueueId, refusal: &Refusal) -> Vec<EnqueueResult> {
        let accepted = self.accepted;
        self.merge(queue, (0..accepted).map(|_| Err(refusal.clone())))
    }
}

#[cfg(test)]
mod tests {
    use fila_core::EnqueueError;
    use fila_store::MessageId;

    use super::*;

    fn refused(result: &EnqueueResult) -> Option<ErrorCode> {
        result.error.as_ref().map(v1::Error::code)
    }

    #[test]
    fn results_are_in_the_order_of_the_messages() {
        let long = "k".repeat(FairnessKey::MAX + 1);
        let message = |key: &str, weight| v1::Message {
            fairness_key: key.to_owned(),
            weight,
            ..v1::Message::default()
        };
        let messages = vec![
            message("a", Some(0)),
            message("a", None),
            message(&long, None),
            message("a", None),
        ];
        let batch = Batch::parse(messages, &CallTrace::default(), None);
        let (accepted, outcome) = batch.split();
        assert_eq!((accepted.len(), outcome.len()), (2, 4));
        let queue = QueueId::new(1);
        let results = outcome.merge(
            queue,
            [
                Ok(Enqueued::Stored(MessageId::from_number(5))),
                Err(EnqueueError::QueueFull { max: 1 }),
            ],
        );
        let codes: Vec<_> = results.iter().map(refused).collect();
        assert_eq!(
            codes,
            [
                Some(ErrorCode::InvalidWeight),
                None,
                Some(ErrorCode::FairnessKeyTooLong),
                Some(ErrorCode::QueueFull),
            ]
        );
    }

    #[test]
    fn a_message_that_names_no_key_gets_the_default() {
        assert_eq!(fairness_key(String::new()).unwrap().as_bytes(), b"default");
    }

    #[test]
    fn times_to_live_mean_what_the_protocol_says() {
        let ttl = |ttl_ms| {
            let message = v1::Message {
                ttl_ms,
                ..v1::Message::default()
            };
            parse(message, &CallTrace::default(), None).unwrap().ttl
        };
        assert_eq!(ttl(None), Ttl::Queue);
        assert_eq!(ttl(Some(0)), Ttl::Forever);
        assert_eq!(ttl(Some(5)), Ttl::For(Duration::from_millis(5)));
    }
}
