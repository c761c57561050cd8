//! Message ids as users see them: UUIDs of version 8 (RFC 9562), which contain the numbers of the queue and of the
//! message.
//!
//! ```text
//! qqqqqqqq-qqqq-8qqm-Vmmm-mmmmmmmmmmmm      58 bits of q, 64 of m, around version 8 and variant V
//! ```
//!
//! Ids of one queue sort as text in the order in which its messages were accepted.

use fila_store::{MessageId, QueueId};

/// Queue ids count up from 1, and never need more bits.
const QUEUE_BITS: u32 = 58;
/// Bits of the message number before the variant.
const MESSAGE_HIGH_BITS: u32 = 2;
const MESSAGE_LOW_BITS: u32 = 64 - MESSAGE_HIGH_BITS;
const LENGTH: usize = 36;
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Returns the UUID of a message, as text.
pub(crate) fn encode(queue: QueueId, message: MessageId) -> String {
    // `head` has the 60 bits around the version, which goes between the 48th and the 49th of them.
    let queue = queue.get() & ((1 << QUEUE_BITS) - 1);
    let head = queue << MESSAGE_HIGH_BITS | message.get() >> MESSAGE_LOW_BITS;
    let high = (head >> 12) << 16 | 8 << 12 | (head & 0xfff);
    let low = 0b10 << MESSAGE_LOW_BITS | message.get() & ((1 << MESSAGE_LOW_BITS) - 1);
    let bits = u128::from(high) << 64 | u128::from(low);

    let mut text = [b'-'; LENGTH];
    let mut end = 0;
    for byte in bits.to_be_bytes() {
        if HYPHENS.contains(&end) {
            end += 1;
        }
        text[end] = DIGITS[usize::from(byte >> 4)];
        text[end + 1] = DIGITS[usize::from(byte & 0xf)];
        end += 2;
    }
    str::from_utf8(&text)
        .expect("digits and hyphens are text")
        .to_owned()
}

/// Returns the queue and the message that a UUID names. Returns `None` if it is no message id.
pub(crate) fn decode(text: &str) -> Option<(QueueId, MessageId)> {
    if text.len() != LENGTH {
        return None;
    }
    let mut bits: u128 = 0;
    for (position, byte) in text.bytes().enumerate() {
        if HYPHENS.contains(&position) {
            if byte != b'-' {
                return None;
            }
        } else {
            bits = bits << 4 | u128::from(char::from(byte).to_digit(16)?);
        }
    }
    let (high, low) = ((bits >> 64) as u64, bits as u64);
    if high >> 12 & 0xf != 8 || low >> MESSAGE_LOW_BITS != 0b10 {
        return None;
    }
    let head = high >> 16 << 12 | high & 0xfff;
    let message = head << MESSAGE_LOW_BITS | low & ((1 << MESSAGE_LOW_BITS) - 1);
    let queue = QueueId::new(head >> MESSAGE_HIGH_BITS);
    Some((queue, MessageId::from_number(message)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(queue: u64, message: u64) -> String {
        encode(QueueId::new(queue), MessageId::from_number(message))
    }

    #[test]
    fn an_id_is_a_uuid_of_version_eight() {
        assert_eq!(encoded(0, 0), "00000000-0000-8000-8000-000000000000");
        let largest = encoded((1 << QUEUE_BITS) - 1, u64::MAX);
        assert_eq!(largest, "ffffffff-ffff-8fff-bfff-ffffffffffff");
        let first = encoded(1, 1 << 40 | 7);
        assert_eq!(first, "00000000-0000-8004-8000-010000000007");
    }

    #[test]
    fn what_is_no_id_of_ours_is_refused() {
        for text in [
            "",
            "00000000-0000-7000-8000-000000000000",
            "00000000-0000-8000-0000-000000000000",
            "00000000-0000-8000-8000-00000000000",
            "00000000-0000-8000-8000-0000000000000",
            "00000000_0000-8000-8000-000000000000",
            "0000000g-0000-8000-8000-000000000000",
            "ööööööööööööööööööö",
        ] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn an_id_names_its_message_and_sorts_like_it(
            queue in 0_u64..1 << QUEUE_BITS,
            first: u64,
            second: u64,
        ) {
            let text = encoded(queue, first);
            let decoded = decode(&text);
            prop_assert_eq!(decoded, Some((QueueId::new(queue), MessageId::from_number(first))));
            prop_assert_eq!(decode(&text.to_uppercase()), decoded);
            prop_assert_eq!(text.cmp(&encoded(queue, second)), first.cmp(&second));
        }

        #[test]
        fn no_text_is_too_odd_to_be_refused(text: String) {
            let _ = decode(&text);
        }
    }
}
