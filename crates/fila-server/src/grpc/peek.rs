//! Conversions of `Peek` between the wire and the broker.
//!
//! A [page token](page_token) has the id of the last message of a page and its fairness key.

use fila_core::{KeySeparator, MessageState};
use fila_proto::v1::{self, PeekRequest, PeekResponse};
use fila_store::{DeduplicationId, FairnessKey, Locator, MessageId, QueueId, Timestamp};

use super::message::{history, key_text};
use super::refusal::Refusal;
use super::{id, key_selection, page_token};
use crate::runtime::{PeekQuery, Peeked, PeekedMessage};

/// The most messages of one page.
const PAGE_MAX: u32 = 1_000;

/// Messages of one page by default.
const PAGE: u32 = 10;

/// Parses a request for a queue with this separator.
pub(super) fn parse(
    request: PeekRequest,
    separator: Option<KeySeparator>,
) -> Result<PeekQuery, Refusal> {
    let messages = match request.page_size {
        0 => PAGE,
        asked if asked > PAGE_MAX => {
            let text = format!("page_size {asked} is out of range; 1 to {PAGE_MAX} are allowed");
            return Err(Refusal::invalid(text));
        }
        asked => asked,
    };
    let keys = key_selection::parse(request.fairness_key, request.within, separator)?;
    let after = match request.page_token.as_str() {
        "" => None,
        token => Some(place(token).ok_or_else(page_token::invalid)?),
    };
    if after.as_ref().is_some_and(|after| !keys.covers(after)) {
        let text = "page_token is of another fairness key or group; begin without one";
        return Err(Refusal::invalid(text));
    }
    Ok(PeekQuery {
        keys,
        after,
        messages: messages as usize,
        payload_bytes: request
            .payload_bytes_max
            .map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
    })
}

/// Returns a page of messages for the wire. `first` is the queue that accepted them.
pub(super) fn response(first: QueueId, now: Timestamp, peeked: Peeked) -> PeekResponse {
    let messages = peeked.messages.into_iter();
    PeekResponse {
        messages: messages.map(|shown| message(first, shown)).collect(),
        next_page_token: peeked.next.as_ref().map(token).unwrap_or_default(),
        now_ms: now.as_millis(),
        damaged: u32::try_from(peeked.damaged).unwrap_or(u32::MAX),
    }
}

fn message(first: QueueId, peeked: PeekedMessage) -> v1::PeekedMessage {
    let PeekedMessage {
        entry,
        headers,
        body,
        status,
    } = peeked;
    let meta = entry.meta;
    let (state, deliver_after, lease_until) = match status.state {
        MessageState::Ready => (v1::MessageState::Ready, None, None),
        MessageState::Delayed { until } => (v1::MessageState::Delayed, Some(until), None),
        MessageState::Leased { until } => (v1::MessageState::Leased, None, Some(until)),
    };
    v1::PeekedMessage {
        message_id: id::encode(first, meta.lasting_id(entry.id)),
        fairness_key: key_text(&meta.schedule.fairness_key),
        weight: status.weight,
        headers: headers.into_iter().collect(),
        payload: body,
        payload_bytes: u64::from(meta.sizes.body),
        attempts: status.attempts,
        enqueued_at_ms: meta.enqueued_at.as_millis(),
        state: state.into(),
        deliver_after_ms: deliver_after.map(Timestamp::as_millis),
        lease_until_ms: lease_until.map(Timestamp::as_millis),
        expires_at_ms: meta.expires_at.map(Timestamp::as_millis),
        deduplication_id: meta
            .deduplication_id
            .as_ref()
            .map_or_else(String::new, name),
        history: meta.history.as_deref().map(|it| history(first, it)),
        throttle_keys: meta
            .schedule
            .throttle_keys
            .iter()
            .map(ToString::to_string)
            .collect(),
    }
}

/// Returns a deduplication id as text. Ids that came over gRPC are valid text.
fn name(id: &DeduplicationId) -> String {
    String::from_utf8_lossy(id.as_bytes()).into_owned()
}

/// Returns the page token of a message.
fn token(place: &Locator) -> String {
    let id = place.id.get().to_be_bytes();
    page_token::encode(&[&id, place.fairness_key.as_bytes()].concat())
}

/// Returns the message of a page token. Returns `None` if it is no page token.
fn place(token: &str) -> Option<Locator> {
    let place = page_token::decode(token)?;
    let (id, key) = place.split_first_chunk()?;
    Some(Locator {
        fairness_key: FairnessKey::new(key.to_vec()).ok()?,
        id: MessageId::from_number(u64::from_be_bytes(*id)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_token_of_ours_is_refused() {
        for text in [
            "0",
            "000000000000000",
            "00000000000000000",
            "000000000000000g",
            "0000000000000000f",
            "+000000000000000",
            "ööööööööööööööööööö",
            &"0".repeat(16 + 2 * FairnessKey::MAX + 2),
        ] {
            assert_eq!(place(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_size_of_a_page_is_what_the_protocol_says() {
        let messages = |page_size| {
            let request = PeekRequest {
                page_size,
                ..PeekRequest::default()
            };
            parse(request, None).map(|query| query.messages).ok()
        };
        assert_eq!(messages(0), Some(10));
        assert_eq!(messages(1_000), Some(1_000));
        assert_eq!(messages(1_001), None);
    }

    proptest! {
        #[test]
        fn a_token_names_its_place(key in proptest::collection::vec(any::<u8>(), 0..=512), id: u64) {
            let locator = Locator {
                fairness_key: FairnessKey::new(key).unwrap(),
                id: MessageId::from_number(id),
            };
            prop_assert_eq!(place(&token(&locator)), Some(locator));
        }

        #[test]
        fn no_text_is_too_odd_to_be_refused(text: String) {
            let _ = place(&text);
        }
    }
}
