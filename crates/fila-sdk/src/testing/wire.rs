//! Messages, results and settings of the test broker: from the wire into the core, and back.

use std::error::Error;
use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    BatchId, DeduplicationScope, Delivery, EnqueueError, Enqueued, KeySeparator, LeaseId,
    NewMessage, NoSeparator, Ordering, ProducerId, QueueSettings, QueueStats, Sequence,
    SettleError, Settlement, SharedPool, Ttl, Verdict,
};
use fila_proto::v1;
use fila_proto::v1::ErrorCode;
use fila_store::{
    DeduplicationId, ErrorText, FairnessKey, MessageId, Payload, QueueId, Schedule, ThrottleKey,
};

/// Takes the settings of a queue. Unlike a server, it retries at once if they name no backoff.
///
/// # Errors
/// If the separator is none.
pub(super) fn definition(settings: &v1::QueueSettings) -> Result<QueueSettings, NoSeparator> {
    let mut definition = QueueSettings::default();
    definition.key_separator = match settings.key_separator.as_deref() {
        None => definition.key_separator,
        Some("") => None,
        Some(text) => Some(KeySeparator::parse(text)?),
    };
    let set = |time: &mut Duration, millis: Option<u64>| {
        *time = millis.map_or(*time, Duration::from_millis);
    };
    let retry = &mut definition.retry;
    retry.backoff = Duration::ZERO;
    set(&mut retry.backoff, settings.retry_backoff_ms);
    set(&mut retry.backoff_max, settings.retry_backoff_max_ms);
    if let Some(attempts) = settings.retry_attempts_max {
        retry.attempts_max = NonZeroU32::new(attempts);
    }
    set(
        &mut definition.visibility_timeout,
        settings.visibility_timeout_ms,
    );
    set(
        &mut definition.deduplication_window,
        settings.deduplication_window_ms,
    );
    definition.deduplication_scope = match settings.deduplication_scope() {
        v1::DeduplicationScope::Key => DeduplicationScope::Key,
        v1::DeduplicationScope::Queue => DeduplicationScope::Queue,
    };
    if settings.ordering() == v1::Ordering::Key {
        definition.ordering = Ordering::Key;
    }
    definition.key_concurrency = NonZeroU32::new(settings.key_concurrency());
    definition.depth_max = settings.depth_max.filter(|max| *max > 0);
    definition.key_depth_max = settings.key_depth_max.filter(|max| *max > 0);
    let ttl = settings.message_ttl_ms.filter(|millis| *millis > 0);
    definition.message_ttl = ttl.map(Duration::from_millis);
    Ok(definition)
}

pub(super) fn stats(stats: &QueueStats) -> v1::QueueStats {
    let totals = &stats.totals;
    v1::QueueStats {
        depth: stats.depth(),
        ready: stats.ready,
        delayed: stats.delayed,
        leased: stats.leased,
        active_keys: stats.active_keys,
        active_groups: stats.active_groups,
        consumers: stats.consumers,
        enqueued_total: totals.enqueued,
        deduplicated_total: totals.deduplicated,
        delivered_total: totals.delivered,
        acked_total: totals.acked,
        nacked_total: totals.nacked,
        lease_expired_total: totals.lease_expired,
        released_total: totals.released,
        dead_lettered_total: totals.dead_lettered,
        ..v1::QueueStats::default()
    }
}

pub(super) fn message(message: v1::Message) -> Result<NewMessage, Box<dyn Error>> {
    let weight = NonZeroU32::new(message.weight());
    let key = match message.fairness_key {
        key if key.is_empty() => FairnessKey::default(),
        key => FairnessKey::new(key)?,
    };
    let mut schedule = Schedule::from(key);
    schedule.weight = weight.unwrap_or(NonZeroU32::MIN);
    let throttle_keys = message.throttle_keys.iter();
    schedule.throttle_keys = throttle_keys
        .map(|key| ThrottleKey::parse(key))
        .collect::<Result<_, _>>()?;
    let headers = message.headers.into_iter().collect();
    let payload = Payload::new(headers, message.payload)?;
    let mut new = NewMessage::new(schedule, payload);
    new.delay = Duration::from_millis(message.delay_ms);
    new.ttl = match message.ttl_ms {
        None => Ttl::Queue,
        Some(0) => Ttl::Forever,
        Some(millis) => Ttl::For(Duration::from_millis(millis)),
    };
    if !message.deduplication_id.is_empty() {
        new.deduplication_id = Some(DeduplicationId::new(message.deduplication_id)?);
    }
    Ok(new)
}

pub(super) fn batch_id(batch: &v1::BatchId) -> Option<BatchId> {
    Some(BatchId {
        producer: ProducerId::new(batch.producer[..].try_into().ok()?),
        sequence: Sequence::new(batch.sequence),
        answered_below: Sequence::new(batch.answered_below),
        remember_max: (batch.remember_ms > 0).then(|| Duration::from_millis(batch.remember_ms)),
    })
}

pub(super) fn enqueued(
    queue: QueueId,
    result: Result<Enqueued, EnqueueError>,
) -> v1::EnqueueResult {
    let (message, deduplicated) = match result {
        Ok(Enqueued::Stored(message)) => (message, false),
        Ok(Enqueued::Duplicate(message)) => (message, true),
        Err(error) => {
            let code = match &error {
                EnqueueError::PayloadTooLarge { .. } => ErrorCode::PayloadTooLarge,
                EnqueueError::QueueFull { .. } => ErrorCode::QueueFull,
                EnqueueError::KeyFull { .. } => ErrorCode::KeyFull,
                EnqueueError::OverPart { .. } => ErrorCode::QuotaExceeded,
                EnqueueError::InvalidPath(_) => ErrorCode::InvalidFairnessKey,
                _ => ErrorCode::InvalidArgument,
            };
            let mut refused = not_enqueued(code, &error);
            if let Some(failure) = &mut refused.error {
                failure.quota = quota(&error);
            }
            return refused;
        }
    };
    v1::EnqueueResult {
        message_id: message_id(queue, message),
        deduplicated,
        error: None,
    }
}

fn quota(error: &EnqueueError) -> Option<v1::Quota> {
    let EnqueueError::OverPart {
        pool,
        path,
        held,
        part,
        retry_after,
    } = error
    else {
        return None;
    };
    let pool = match pool {
        SharedPool::Depth => v1::QuotaPool::Depth,
        SharedPool::Delayed => v1::QuotaPool::Delayed,
        SharedPool::DeduplicationIds => v1::QuotaPool::DeduplicationIds,
        SharedPool::Keys => v1::QuotaPool::Keys,
    };
    let path = path.as_ref().map_or(&[][..], |path| path.as_bytes());
    Some(v1::Quota {
        pool: pool.into(),
        held: *held,
        part: *part,
        retry_after_ms: crate::message::millis(*retry_after),
        path: String::from_utf8_lossy(path).into_owned(),
    })
}

pub(super) fn not_enqueued(code: ErrorCode, text: &impl ToString) -> v1::EnqueueResult {
    v1::EnqueueResult {
        error: Some(failure(code, text)),
        ..v1::EnqueueResult::default()
    }
}

pub(super) fn delivery(queue: QueueId, delivery: Delivery) -> v1::Delivery {
    let (headers, payload) = delivery.payload.into_parts();
    let key = delivery.fairness_key.as_bytes();
    v1::Delivery {
        message_id: message_id(queue, delivery.message),
        lease_id: delivery.lease.get(),
        fairness_key: String::from_utf8_lossy(key).into_owned(),
        weight: delivery.weight,
        headers: headers.into_iter().collect(),
        payload,
        attempt: delivery.attempt,
        enqueued_at_ms: delivery.enqueued_at.as_millis(),
        lease_ms: u64::try_from(delivery.lease_time.as_millis()).unwrap_or(u64::MAX),
        history: None,
        lost: delivery.lost,
    }
}

pub(super) fn settlements(request: v1::WorkRequest) -> Vec<Settlement> {
    let acks = request.acks.into_iter().map(|lease| (lease, Verdict::Ack));
    let nacks = request.nacks.into_iter().map(|nack| {
        let error = (!nack.error.is_empty()).then(|| ErrorText::new(&nack.error));
        let delay = nack.delay_ms.map(Duration::from_millis);
        (nack.lease_id, Verdict::Nack { delay, error })
    });
    let extensions = request.extensions.into_iter().map(|extension| {
        let by = (extension.lease_ms > 0).then(|| Duration::from_millis(extension.lease_ms));
        (extension.lease_id, Verdict::Extend { by })
    });
    let releases = request.releases.into_iter();
    let releases = releases.map(|lease| (lease, Verdict::Release));
    let begun = request
        .begun
        .into_iter()
        .map(|lease| (lease, Verdict::Begin));
    let all = acks
        .chain(nacks)
        .chain(extensions)
        .chain(releases)
        .chain(begun);
    all.map(|(lease, verdict)| Settlement {
        lease: LeaseId::from_number(lease),
        message: None,
        verdict,
    })
    .collect()
}

pub(super) fn settled(
    results: impl IntoIterator<Item = (u64, Result<(), SettleError>)>,
) -> v1::WorkResponse {
    let mut response = v1::WorkResponse::default();
    for (lease_id, result) in results {
        match result {
            Ok(()) => response.confirmed.push(lease_id),
            // No time is too long here, and consumers name no messages.
            Err(error) => response.refused.push(v1::LeaseRefusal {
                lease_id,
                error: Some(failure(ErrorCode::LeaseNotFound, &error)),
            }),
        }
    }
    response
}

fn failure(code: ErrorCode, text: &impl ToString) -> v1::Error {
    v1::Error {
        code: code.into(),
        message: text.to_string(),
        quota: None,
    }
}

/// Returns a UUID. Those of one queue sort as text in the order in which its messages were accepted.
fn message_id(queue: QueueId, message: MessageId) -> String {
    let (queue, message) = (queue.get() & 0xfff, message.counter());
    format!("00000000-0000-8000-8{queue:03x}-{message:012x}")
}
