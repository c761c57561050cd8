//! `fila explain`: why a fairness key waits.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use clap::Args;
use fila_cli::message_json::millis;
use fila_sdk::{EstimateBasis, Explanation, Waiting};
use serde::Serialize;

use crate::failure::Failure;
use crate::general::General;
use crate::output::{bold, count, duration, printable};
use crate::units::percent;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila explain orders acme
  fila explain orders acme --json | jq .reason

The command changes nothing. A key without messages is not an error.")]
pub(crate) struct ExplainArguments {
    /// The queue
    queue: String,
    /// The fairness key
    key: String,
}

/// An explanation for programs. docs/cli.md promises the names of the fields.
#[derive(Debug, Serialize)]
struct ExplanationJson<'a> {
    key: &'a str,
    now_ms: u64,
    reason: &'static str,
    until_ms: Option<u64>,
    throttle_key: Option<&'a str>,
    cap: Option<u32>,
    position: Option<u64>,
    position_exact: Option<bool>,
    weight: u32,
    ready: u64,
    delayed: u64,
    leased: u64,
    recent_ms: u64,
    share: Option<f64>,
    ideal_share: Option<f64>,
    debt: f64,
    bound: Option<u64>,
    estimate_ms: Option<u64>,
    estimate_basis: Option<&'static str>,
}

pub(crate) fn run(general: &General, arguments: &ExplainArguments) -> Result<(), Failure> {
    let ExplainArguments { queue, key } = arguments;
    general.talk(Some(queue), async |session| {
        let explanation = session.client.admin().explain(queue, key).await?;
        let json = ExplanationJson::new(key, &explanation);
        session
            .output
            .result(&json, || text(queue, key, &explanation))
    })
}

/// Returns the text for people: the reason why the key waits, and below it its share and its prospects.
fn text(queue: &str, key: &str, explanation: &Explanation) -> String {
    let (queue, key) = (printable(queue), printable(key));
    let why = why(&queue, &key, explanation);
    let mut text = bold(&format!("key `{key}` of queue `{queue}` {why}")) + "\n";
    for (name, what) in facts(explanation) {
        // Writing to a string does not fail.
        let _ = write!(text, "\n{name:<10}  {what}");
    }
    text
}

/// Returns the first sentence, from its verb on.
fn why(queue: &str, key: &str, explanation: &Explanation) -> String {
    let left = |until: SystemTime| in_time(explanation.now, until);
    match &explanation.waiting {
        Waiting::Empty if explanation.leased > 0 => {
            let leased = messages(explanation.leased);
            format!("has no waiting messages; consumers hold {leased}")
        }
        Waiting::Empty => "has no messages".to_owned(),
        Waiting::Storing => "waits for the store: its messages are being written".to_owned(),
        Waiting::QueuePaused => {
            format!("waits because the queue is paused; `fila queue resume {queue}` resumes it")
        }
        Waiting::KeyPaused => {
            format!("waits because it is paused; `fila key resume {queue} {key}` resumes it")
        }
        Waiting::AtCap { cap } => {
            let cap = messages((*cap).into());
            format!("waits for a result: consumers hold {cap}, the most that the key may have at once")
        }
        Waiting::BackingOff { until } => {
            format!(
                "waits for the delays of its messages: the first ends {}",
                left(*until)
            )
        }
        Waiting::Throttled { key, until } => throttled(&printable(key), until.map(left)),
        Waiting::Judging => "waits for the failure hook to decide about its failed messages".to_owned(),
        Waiting::TooManyDelayed => "waits because the queue has as many delayed messages as limits.delayed_per_queue allows".to_owned(),
        Waiting::ReadFailed { until } => {
            let left = left(*until);
            format!(
                "waits for the store: the broker could not read its messages and tries again {left}; \
                 the server's log has the reason"
            )
        }
        Waiting::Reading => "has its turn: its message is being read from the store".to_owned(),
        Waiting::NoConsumers => "waits because the queue has no consumer".to_owned(),
        Waiting::NoCredit => {
            "waits because the consumers take no more: they have received nothing for a minute"
                .to_owned()
        }
        Waiting::Runnable { position: 0, .. } => "is next".to_owned(),
        Waiting::Runnable { position, is_exact } => in_line(*position, *is_exact),
        _ => "waits for something that this version does not know; use a newer `fila`".to_owned(),
    }
}

fn throttled(throttle: &str, left: Option<String>) -> String {
    match left {
        Some(left) => format!("waits for throttle `{throttle}`: there is a token for it {left}"),
        None => format!(
            "waits for throttle `{throttle}`, whose rate is 0; `fila config set throttle:{throttle}:rate` raises it"
        ),
    }
}

fn in_line(position: u64, is_exact: bool) -> String {
    let about = if is_exact { "" } else { "about " };
    let (position, come) = match position {
        1 => ("1 delivery".to_owned(), "comes"),
        more => (format!("{} deliveries", count(more)), "come"),
    };
    format!("waits for its turn: {about}{position} to other keys {come} before it")
}

/// Returns the lines below the first sentence.
fn facts(explanation: &Explanation) -> Vec<(&'static str, String)> {
    let Explanation {
        ready,
        delayed,
        leased,
        ..
    } = explanation;
    let mut facts = vec![
        ("weight", count(explanation.weight.into())),
        (
            "messages",
            format!(
                "{} ready, {} delayed, {} with consumers",
                count(*ready),
                count(*delayed),
                count(*leased)
            ),
        ),
    ];
    let recent = duration(explanation.recent);
    facts.push(match (explanation.share, explanation.ideal_share) {
        (Some(share), Some(ideal)) => {
            let (share, ideal) = (percent(share), percent(ideal));
            let share = format!("{share} of the last {recent}; by weight it would be {ideal}");
            ("share", share)
        }
        _ => (
            "share",
            format!("nothing was delivered in the last {recent}"),
        ),
    });
    facts.push(match explanation.debt {
        0.0 => ("debt", "none".to_owned()),
        debt => {
            let debt = format!("{debt:.3}");
            let debt = debt.trim_end_matches('0').trim_end_matches('.');
            let ahead = "messages ahead of its share, which it pays by waiting";
            ("debt", format!("{debt} {ahead}"))
        }
    });
    if let Some(bound) = explanation.bound {
        let once = match explanation.waiting {
            Waiting::Runnable { .. } => "",
            _ => ", once it may run",
        };
        let bound = match bound {
            0 => format!("others get nothing before its next one{once}"),
            more => {
                let more = messages(more);
                format!("others get at most {more} before its next one{once}")
            }
        };
        facts.push(("bound", bound));
    }
    facts.push(("next", next(explanation)));
    facts
}

/// Returns the line about the next delivery.
fn next(explanation: &Explanation) -> String {
    let Some(estimate) = explanation.estimate else {
        return match explanation.waiting {
            Waiting::Empty => "nothing".to_owned(),
            _ => "unknown: the server has no data for an estimate".to_owned(),
        };
    };
    let left = in_time(explanation.now, estimate.at);
    let basis = match estimate.basis {
        EstimateBasis::QueuePace => "at the pace of the queue",
        EstimateBasis::KeyPace => "at the pace of this key",
        EstimateBasis::Due => "when this wait ends",
        EstimateBasis::Store => "when it has been read",
        _ => "as far as the server can tell",
    };
    format!("{left}, {basis}")
}

fn in_time(now: SystemTime, moment: SystemTime) -> String {
    match moment.duration_since(now) {
        Ok(left) if left > Duration::ZERO => format!("in {}", duration(left)),
        _ => "now".to_owned(),
    }
}

fn messages(number: u64) -> String {
    match number {
        1 => "1 message".to_owned(),
        more => format!("{} messages", count(more)),
    }
}

impl<'a> ExplanationJson<'a> {
    fn new(key: &'a str, explanation: &'a Explanation) -> Self {
        let waiting = &explanation.waiting;
        let until = match waiting {
            Waiting::BackingOff { until } | Waiting::ReadFailed { until } => Some(*until),
            Waiting::Throttled { until, .. } => *until,
            _ => None,
        };
        let (position, position_exact) = match waiting {
            Waiting::Runnable { position, is_exact } => (Some(*position), Some(*is_exact)),
            _ => (None, None),
        };
        Self {
            key,
            now_ms: millis(explanation.now),
            reason: reason(waiting),
            until_ms: until.map(millis),
            throttle_key: match waiting {
                Waiting::Throttled { key, .. } => Some(key),
                _ => None,
            },
            cap: match waiting {
                Waiting::AtCap { cap } => Some(*cap),
                _ => None,
            },
            position,
            position_exact,
            weight: explanation.weight,
            ready: explanation.ready,
            delayed: explanation.delayed,
            leased: explanation.leased,
            recent_ms: u64::try_from(explanation.recent.as_millis()).unwrap_or(u64::MAX),
            share: explanation.share,
            ideal_share: explanation.ideal_share,
            debt: explanation.debt,
            bound: explanation.bound,
            estimate_ms: explanation.estimate.map(|estimate| millis(estimate.at)),
            estimate_basis: explanation.estimate.map(|estimate| match estimate.basis {
                EstimateBasis::QueuePace => "queue_pace",
                EstimateBasis::KeyPace => "key_pace",
                EstimateBasis::Due => "due",
                EstimateBasis::Store => "store",
                _ => "unknown",
            }),
        }
    }
}

fn reason(waiting: &Waiting) -> &'static str {
    match waiting {
        Waiting::Empty => "empty",
        Waiting::Storing => "storing",
        Waiting::QueuePaused => "queue_paused",
        Waiting::KeyPaused => "key_paused",
        Waiting::AtCap { .. } => "at_cap",
        Waiting::BackingOff { .. } => "backing_off",
        Waiting::Throttled { .. } => "throttled",
        Waiting::Judging => "judging",
        Waiting::TooManyDelayed => "too_many_delayed",
        Waiting::ReadFailed { .. } => "read_failed",
        Waiting::Reading => "reading",
        Waiting::NoConsumers => "no_consumers",
        Waiting::NoCredit => "no_credit",
        Waiting::Runnable { .. } => "runnable",
        _ => "unknown",
    }
}
