//! `fila explain`: why a fairness key or a group of keys waits.

mod json;
mod levels;

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use clap::Args;
use fila_sdk::{EstimateBasis, Explanation, LevelExplanation, Waiting};

use self::json::ExplanationJson;
use crate::failure::Failure;
use crate::general::General;
use crate::output::{bold, count, duration, printable};
use crate::units::percent;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila explain orders acme
  fila explain orders acme/alice
  fila explain orders acme --json | jq .reason

The command changes nothing. A key without messages is not an error.")]
pub(crate) struct ExplainArguments {
    /// The queue
    queue: String,
    /// The fairness key, or the path of a group
    key: String,
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

/// Returns the text for people: the reason why the key waits, below it its share and its prospects, and for a key in
/// groups a table of the levels.
fn text(queue: &str, key: &str, explanation: &Explanation) -> String {
    let (queue, key) = (printable(queue), printable(key));
    let why = why(&queue, &key, explanation);
    let kind = kind(explanation);
    let mut text = bold(&format!("{kind} `{key}` of queue `{queue}` {why}")) + "\n";
    for (name, what) in facts(explanation) {
        // Writing to a string does not fail.
        let _ = write!(text, "\n{name:<10}  {what}");
    }
    if is_in_group(explanation) {
        let _ = write!(text, "\n\n{}", levels::table(&explanation.levels));
    }
    text
}

fn kind(explanation: &Explanation) -> &'static str {
    if explanation.is_group { "group" } else { "key" }
}

fn is_in_group(explanation: &Explanation) -> bool {
    explanation.levels.len() > 1
}

/// Returns the group above that makes it wait, if it is not the key or the group itself.
fn cause_above(explanation: &Explanation) -> Option<&LevelExplanation> {
    let (_, above) = explanation.levels.split_last()?;
    above.iter().find(|level| level.holds_up)
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
        Waiting::KeyPaused => paused(queue, key, explanation),
        Waiting::AtCap { cap } => at_cap(*cap, explanation),
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
        Waiting::MembersWait => format!(
            "waits because each of its members waits for something of its own; \
             `fila explain {queue} MEMBER` tells for what"
        ),
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

fn paused(queue: &str, key: &str, explanation: &Explanation) -> String {
    let (what, path) = match cause_above(explanation) {
        Some(group) => {
            let path = printable(&group.path);
            (format!("group `{path}`"), path)
        }
        None => ("it".to_owned(), key.to_owned()),
    };
    format!("waits because {what} is paused; `fila key resume {queue} {path}` resumes it")
}

fn at_cap(cap: u32, explanation: &Explanation) -> String {
    let cap = messages(cap.into());
    match cause_above(explanation) {
        Some(group) => {
            let path = printable(&group.path);
            format!(
                "waits for a result of group `{path}`: consumers hold {cap} of it, \
                 the most that the group may have at once"
            )
        }
        None => {
            let kind = kind(explanation);
            format!(
                "waits for a result: consumers hold {cap}, the most that the {kind} may have at once"
            )
        }
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

/// Returns the lines below the first sentence. The table of levels has the weight and the debt of a key in groups.
fn facts(explanation: &Explanation) -> Vec<(&'static str, String)> {
    let mut facts = vec![("messages", messages_of(explanation))];
    if !is_in_group(explanation) {
        facts.insert(0, ("weight", count(explanation.weight.into())));
    }
    facts.push(("share", share(explanation)));
    if !is_in_group(explanation) {
        let ahead = "messages ahead of its share, which it pays by waiting";
        facts.push(match explanation.debt {
            0.0 => ("debt", "none".to_owned()),
            debt => ("debt", format!("{} {ahead}", thousandths(debt))),
        });
    }
    facts.extend(bound(explanation).map(|bound| ("bound", bound)));
    facts.push(("next", next(explanation)));
    facts
}

fn messages_of(explanation: &Explanation) -> String {
    let (ready, delayed) = (count(explanation.ready), count(explanation.delayed));
    let leased = count(explanation.leased);
    format!("{ready} ready, {delayed} delayed, {leased} with consumers")
}

fn share(explanation: &Explanation) -> String {
    let recent = duration(explanation.recent);
    match (explanation.share, explanation.ideal_share) {
        (Some(share), Some(ideal)) => {
            let (share, ideal) = (percent(share), percent(ideal));
            format!("{share} of the last {recent}; by weight it would be {ideal}")
        }
        (Some(_), None) | (None, _) => format!("nothing was delivered in the last {recent}"),
    }
}

fn bound(explanation: &Explanation) -> Option<String> {
    let once = match explanation.waiting {
        Waiting::Runnable { .. } => "",
        _ => ", once it may run",
    };
    Some(match explanation.bound? {
        0 => format!("others get nothing before its next one{once}"),
        more => {
            let more = messages(more);
            format!("others get at most {more} before its next one{once}")
        }
    })
}

/// Returns a number of messages with as many decimal places as it needs, three at most.
fn thousandths(messages: f64) -> String {
    let messages = format!("{messages:.3}");
    let messages = messages.trim_end_matches('0').trim_end_matches('.');
    messages.to_owned()
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
        EstimateBasis::KeyPace if explanation.is_group => "at the pace of this group",
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
