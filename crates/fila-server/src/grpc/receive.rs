//! `Receive`: messages for a caller that keeps no stream.
//!
//! A call is a consumer for as long as it waits. The broker tells when it has all that it gets. If the call is dropped
//! before its connection has accepted the response, its leases end as if they had never been; after that they last for
//! their time.

use std::pin::pin;
use std::time::Duration;

use fila_core::{ConsumerKind, SettleError};
use fila_proto::v1::{ReceiveRequest, ReceiveResponse};
use tokio::time::sleep;
use tonic::Status;

use super::consume::{dismissed, stopped};
use super::delivery_buffer::DeliveryBuffer;
use super::refusal::Refusal;
use super::trace::Tracing;
use crate::runtime::{Framed, Handle, Outgoing};

/// The most messages of one call.
const MESSAGES_MAX: u32 = 1_000;

/// The longest wait for the first message, in milliseconds.
const WAIT_MAX: u64 = 60_000;

/// What a call asks for, within its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    messages: u32,
    wait: Duration,
    lease_time: Option<Duration>,
}

/// Leases messages, and returns them and where their bytes are counted.
pub(super) async fn receive(
    handle: &Handle,
    tracing: Tracing,
    request: ReceiveRequest,
) -> Result<(Framed, ReceiveResponse), Status> {
    let asked = parse(&request, handle.limits().delay)?;
    let queue = handle.queue(&request.queue)?;
    let lease_time = asked.lease_time;
    let kind = ConsumerKind::Call { lease_time };
    let mut call = handle.subscribe(&queue, asked.messages, kind).await?;
    let mut buffer = DeliveryBuffer::default();
    let mut wait = pin!(sleep(asked.wait));
    let mut is_waiting = true;
    loop {
        let outgoing = tokio::select! {
            outgoing = call.next() => outgoing,
            () = &mut wait, if is_waiting => {
                is_waiting = false;
                call.drain();
                continue;
            }
        };
        match outgoing {
            Some(Outgoing::Deliveries(parcel)) => buffer.add(parcel),
            Some(Outgoing::Dismissed(why)) => {
                dismissed(why, queue.name.as_str())?;
                break;
            }
            Some(Outgoing::Stopped) | None => return Err(stopped()),
        }
    }
    let framed = buffer.framed();
    let deliveries = buffer.frame_of(&queue, tracing);
    call.not_sent(buffer.leases());
    framed.answer(call);
    Ok((framed, ReceiveResponse { deliveries }))
}

fn parse(request: &ReceiveRequest, longest: Duration) -> Result<Asked, Refusal> {
    let messages = request.messages_max.max(1);
    if messages > MESSAGES_MAX {
        let text =
            format!("messages_max {messages} is out of range; 1 to {MESSAGES_MAX} are allowed");
        return Err(Refusal::invalid(text));
    }
    let wait = request.wait_ms;
    if wait > WAIT_MAX {
        let text = format!("wait_ms {wait} is out of range; 0 to {WAIT_MAX} are allowed");
        return Err(Refusal::invalid(text));
    }
    let lease_time = (request.lease_ms > 0).then(|| Duration::from_millis(request.lease_ms));
    if let Some(found) = lease_time.filter(|time| *time > longest) {
        let max = longest;
        return Err(SettleError::TooLong { found, max }.into());
    }
    Ok(Asked {
        messages,
        wait: Duration::from_millis(wait),
        lease_time,
    })
}

#[cfg(test)]
mod tests {
    use fila_proto::v1::ErrorCode;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(100);

    fn asked(messages_max: u32, wait_ms: u64, lease_ms: u64) -> Result<Asked, ErrorCode> {
        let request = ReceiveRequest {
            queue: "orders".to_owned(),
            messages_max,
            wait_ms,
            lease_ms,
        };
        parse(&request, LONGEST).map_err(|refusal| refusal.code)
    }

    #[test]
    fn zeros_ask_for_one_message_now_for_as_long_as_the_queue_says() {
        let expected = Asked {
            messages: 1,
            wait: Duration::ZERO,
            lease_time: None,
        };
        assert_eq!(asked(0, 0, 0), Ok(expected));
    }

    #[test]
    fn a_call_may_ask_for_its_limits_and_for_no_more() {
        let limits = Asked {
            messages: 1_000,
            wait: Duration::from_secs(60),
            lease_time: Some(LONGEST),
        };
        assert_eq!(asked(1_000, 60_000, 100_000), Ok(limits));
        assert_eq!(asked(1_001, 0, 0), Err(ErrorCode::InvalidArgument));
        assert_eq!(asked(u32::MAX, 0, 0), Err(ErrorCode::InvalidArgument));
        assert_eq!(asked(1, 60_001, 0), Err(ErrorCode::InvalidArgument));
        // A client that subtracts too much sends this.
        assert_eq!(asked(1, u64::MAX, 0), Err(ErrorCode::InvalidArgument));
        assert_eq!(asked(1, 0, 100_001), Err(ErrorCode::DelayTooLong));
        assert_eq!(asked(1, 0, u64::MAX), Err(ErrorCode::DelayTooLong));
    }
}
