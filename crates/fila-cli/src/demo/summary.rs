//! The summary: sentences for people, and JSON for programs.

use std::iter;
use std::time::Duration;

use serde_json::{Value, json};

use super::record::{Moment, Record, Wait};
use super::script::{Plot, Scene, Side, Unit};
use super::stage::Played;
use crate::units;
use crate::wrap::wrap;

/// The width of wrapped text, beside the titles.
const WIDTH: usize = 62;

const FINE_PRINT: &str = "Both sides ran in this process at the same time, on one server, with the same messages at the \
    same moments and the same number of workers. FIFO is a queue on which all messages have one fairness key. Without \
    groups, a queue has no key separator, so it takes each key as one name (key_separator: off). The time \
    that a worker takes for a message is simulated. The server writes messages to disk without waiting for fsync \
    (durability: os).";

/// The whole scene.
const EVER: std::ops::Range<Moment> = Duration::ZERO..Duration::MAX;

/// Returns the lines of the summary.
pub(crate) fn text(played: &[Played]) -> Vec<String> {
    if played.is_empty() {
        return vec!["Nothing was played.".to_owned()];
    }
    let mut lines = vec![
        String::new(),
        "Measured just now on this machine:".to_owned(),
    ];
    for played in played {
        lines.push(String::new());
        let title = iter::once(played.scene.title).chain(iter::repeat(""));
        let said = wrap(&sentences(played).join(" "), WIDTH);
        let said = title.zip(said);
        lines.extend(said.map(|(title, line)| format!("  {title:<14} {line}")));
    }
    lines.push(String::new());
    lines.extend(wrap(FINE_PRINT, WIDTH + 17));
    lines.extend(
        [
            "",
            "Next:  fila server                  start a broker",
            "       fila queue create orders     make a queue, and read docs/quickstart.md",
        ]
        .map(str::to_owned),
    );
    lines
}

fn sentences(played: &Played) -> Vec<String> {
    let is_seen =
        |record: &Record| (0..played.scene.tenants.len()).any(|tenant| record.served(tenant) > 0);
    if !played.records.iter().all(is_seen) {
        return vec!["It was skipped before anything was served.".to_owned()];
    }
    match played.scene.plot {
        Plot::Flood { noisy, quiet } => flood(played, noisy, &quiet),
        Plot::Weights { heavy, light } => weights(played, heavy, light),
        Plot::Slow { slow, fast } => slow_tenant(played, slow, fast),
        Plot::Burst { burst, steady, at } => burst_of(played, burst, steady, at),
        Plot::Split { split, whole } => split_tenant(played, split, whole),
    }
}

fn flood(played: &Played, noisy: usize, quiet: &[usize]) -> Vec<String> {
    let [fifo, fair] = &played.records;
    let [fifo_waits, fair_waits] =
        [fifo, fair].map(|record| record.waits(quiet, EVER, played.length));
    let (Some(fifo_half), Some(fair_half)) = (fifo_waits.quantile(0.5), fair_waits.quantile(0.5))
    else {
        return vec!["It was skipped before the quiet tenants had sent anything.".to_owned()];
    };
    let longest = |wait: Option<Wait>| wait.map(said).unwrap_or_default();
    let mut lines = vec![
        format!(
            "Beside a flood of {}, a quiet tenant's message waited {} under FIFO and {} under Fila{}.",
            units::count(fifo.sends(noisy)),
            said(fifo_half),
            said(fair_half),
            times_less(fifo_half, fair_half),
        ),
        format!(
            "These are medians; the longest waits were {} and {}.",
            longest(fifo_waits.longest()),
            longest(fair_waits.longest())
        ),
    ];
    let [fifo_rate, fair_rate] = throughput(played, noisy);
    if fifo_rate > 0.0 && fair_rate > 0.0 {
        let lost = 1.0 - fair_rate / fifo_rate;
        let verdict = match lost >= 0.0 {
            true => format!("fairness cost {}", units::percent(lost)),
            false => format!(
                "fairness cost nothing, Fila was {} ahead",
                units::percent(-lost)
            ),
        };
        lines.push(format!(
            "Meanwhile the workers processed {} messages/s under FIFO and {} under Fila: {verdict}.",
            units::rate(fifo_rate),
            units::rate(fair_rate),
        ));
    }
    lines
}

/// Returns the deliveries per second of both sides while both had enough messages.
fn throughput(played: &Played, noisy: usize) -> [f64; 2] {
    let ends = played.records.iter();
    let ends = ends.map(|record| record.last_delivery(noisy).unwrap_or(played.length));
    let end = ends.min().unwrap_or(played.length);
    played
        .records
        .each_ref()
        .map(|record| record.rate(Duration::ZERO..end))
}

fn weights(played: &Played, heavy: usize, light: usize) -> Vec<String> {
    let [fifo, fair] = played
        .records
        .each_ref()
        .map(|record| record.shares(&played.scene, played.length));
    let ratio = match fair[light].got > 0.0 {
        true => format!("{:.2} times as much", fair[heavy].got / fair[light].got),
        false => "all, and the others nothing".to_owned(),
    };
    vec![format!(
        "The tenant of weight {} got {} under Fila ({} of all, ideal {}), and {} of all under FIFO.",
        played.scene.tenants[heavy].weight,
        ratio,
        units::percent(fair[heavy].got),
        units::percent(fair[heavy].ideal),
        units::percent(fifo[heavy].got),
    )]
}

fn slow_tenant(played: &Played, slow: usize, fast: usize) -> Vec<String> {
    let [fifo, fair] = &played.records;
    let time = |record: &Record| record.shares(&played.scene, played.length)[slow].got;
    let rate = |record: &Record| record.rate_of(fast, Duration::ZERO..played.length);
    let (fifo_rate, fair_rate) = (rate(fifo), rate(fair));
    let times = match fifo_rate > 0.0 {
        true => format!(" ({:.1} times as many)", fair_rate / fifo_rate),
        false => String::new(),
    };
    vec![
        format!(
            "A tenant whose messages take 20 times as long had {} of the workers' time under FIFO, and {} under Fila",
            units::percent(time(fifo)),
            units::percent(time(fair)),
        ),
        format!(
            "(its share is {}). Each of the others was served {} messages/s under FIFO and {} under Fila{times}.",
            units::percent(fair.shares(&played.scene, played.length)[slow].ideal),
            units::rate(fifo_rate),
            units::rate(fair_rate),
        ),
    ]
}

fn burst_of(played: &Played, burst: usize, steady: usize, at: Moment) -> Vec<String> {
    let [fifo, fair] = &played.records;
    let waits = |record: &Record| record.waits(&[burst], EVER, played.length);
    let (fifo_waits, fair_waits) = (waits(fifo), waits(fair));
    let ends = [
        fifo_waits.shortest(),
        fifo_waits.longest(),
        fair_waits.shortest(),
        fair_waits.longest(),
    ];
    let [
        Some(fifo_first),
        Some(fifo_last),
        Some(fair_first),
        Some(fair_last),
    ] = ends
    else {
        return vec!["It was skipped before the burst came.".to_owned()];
    };
    let mut lines = vec![format!(
        "Of {} messages sent at once, the first was served after {} under Fila (FIFO: {}), the last after {} (FIFO: {}).",
        units::count(fair.sends(burst)),
        said(fair_first),
        said(fifo_first),
        said(fair_last),
        said(fifo_last),
    )];
    let over = fair.last_delivery(burst).unwrap_or(played.length);
    let longest = |record: &Record, span| record.waits(&[steady], span, played.length).longest();
    let (before, during) = (longest(fair, Duration::ZERO..at), longest(fair, at..over));
    if let (Some(before), Some(during), Some(in_fifo)) = (before, during, longest(fifo, EVER)) {
        lines.push(format!(
            "A tenant that sends little waited at most {} before the burst and {} during it (FIFO: {}).",
            said(before),
            said(during),
            said(in_fifo),
        ));
    }
    lines
}

fn split_tenant(played: &Played, split: usize, whole: usize) -> Vec<String> {
    let [flat, groups] = &played.records;
    let share = |record: &Record| record.shares(&played.scene, played.length)[split];
    let rate = |record: &Record| record.rate_of(whole, Duration::ZERO..played.length);
    vec![
        format!(
            "A tenant that splits itself into {} keys got {} of all without groups, and {} with groups (its share is \
             {}).",
            units::count(played.scene.tenants[split].keys.into()),
            units::percent(share(flat).got),
            units::percent(share(groups).got),
            units::percent(share(groups).ideal),
        ),
        format!(
            "Each of the others was served {} messages/s without groups and {} with groups.",
            units::rate(rate(flat)),
            units::rate(rate(groups)),
        ),
    ]
}

fn said(wait: Wait) -> String {
    match wait {
        Wait::Over(time) => units::time(time),
        Wait::SoFar(time) => format!("more than {}", units::time(time)),
    }
}

/// Returns how many times shorter the second wait is, if the difference is worth a note.
fn times_less(more: Wait, less: Wait) -> String {
    let less = less.time().as_secs_f64();
    let times = more.time().as_secs_f64() / less;
    if less > 0.0 && (2.0..10.0).contains(&times) {
        format!(" ({times:.1} times less)")
    } else if less > 0.0 && times >= 10.0 {
        // A run like this supports two digits at most.
        let grain = 10f64.powf(times.log10().floor() - 1.0);
        let times = (times / grain).round() * grain;
        format!(" ({} times less)", units::count(times.round() as u64))
    } else {
        String::new()
    }
}

/// Returns all measurements.
pub(crate) fn json(played: &[Played]) -> Value {
    let scenes: Vec<Value> = played.iter().map(scene_json).collect();
    json!({ "scenes": scenes })
}

fn scene_json(played: &Played) -> Value {
    let scene = &played.scene;
    let sides = scene.sides.into_iter().zip(&played.records);
    let sides = sides.map(|(side, record)| {
        let side = match side {
            Side::Fifo => "fifo",
            Side::Fair => "fair",
            Side::Flat => "flat",
            Side::Groups => "groups",
        };
        (side.to_owned(), side_json(scene, record, played.length))
    });
    json!({
        "title": scene.title,
        "seconds": played.length.as_secs_f64(),
        "workers": scene.workers,
        "shares_of": match scene.unit {
            Unit::Messages => "messages",
            Unit::Time => "time",
        },
        "sides": Value::Object(sides.collect()),
        "said": sentences(played),
    })
}

fn side_json(scene: &Scene, record: &Record, length: Duration) -> Value {
    let figures = record.figures(scene, length);
    let tenants = scene.tenants.iter().zip(figures.tenants).enumerate();
    let tenants = tenants.map(|(at, (tenant, figures))| {
        json!({
            "tenant": tenant.name,
            "weight": tenant.weight,
            "keys": tenant.keys,
            "work_ms": tenant.work.as_secs_f64() * 1e3,
            "sent": figures.sent,
            "served": figures.served,
            "share": figures.share.got,
            "share_ideal": figures.share.ideal,
            "wait_p50_ms": figures.wait_half.map(millis),
            "wait_p99_ms": figures.wait_most.map(millis),
            // These waits are lower bounds while messages of the tenant still wait.
            "waits_are_over": figures.sent == figures.served,
            "overtaken_by_p50": record.overtaken(&[at]),
        })
    });
    json!({
        "messages_per_second": record.rate(Duration::ZERO..length),
        "tenants": tenants.collect::<Vec<Value>>(),
    })
}

fn millis(wait: Wait) -> f64 {
    wait.time().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::script::{SECONDS, scenes};
    use super::*;

    fn at(millis: u64) -> Moment {
        Duration::from_millis(millis)
    }

    /// A flood whose messages are served one a millisecond, after the messages of a quiet tenant or before them.
    fn flood(quiet_waits: [u64; 2]) -> Played {
        let [scene, ..] = scenes(Duration::from_secs(SECONDS));
        let records = quiet_waits.map(|wait| {
            let mut record = Record::new(scene.tenants.len());
            for number in 0..1000 {
                record.sent(0, at(0));
                record.delivered(0, number, at(u64::from(number)));
            }
            record.sent(1, at(10));
            record.delivered(1, 0, at(10 + wait));
            record
        });
        Played {
            scene: Arc::new(scene),
            records,
            length: at(2000),
        }
    }

    #[test]
    fn a_flood_is_told_in_waits_and_throughput() {
        let said = sentences(&flood([990, 3])).join(" ");
        assert_eq!(
            said,
            "Beside a flood of 1,000, a quiet tenant's message waited 990 ms under FIFO and 3.0 ms under Fila (330 \
             times less). These are medians; the longest waits were 990 ms and 3.0 ms. Meanwhile the workers processed \
             1,000 messages/s under FIFO and 1,001 under Fila: fairness cost nothing, Fila was 0.1 % ahead."
        );
    }

    /// A tenant that splits itself, on a side that has served it and each of the others so often.
    fn split(served: [(u32, u32); 2]) -> Played {
        let [.., scene] = scenes(Duration::from_secs(SECONDS));
        let records = served.map(|(split, whole)| {
            let mut record = Record::new(scene.tenants.len());
            for (tenant, count) in [split, whole, whole, whole].into_iter().enumerate() {
                for _ in 0..1000 {
                    record.sent(tenant, at(0));
                }
                for number in 0..count {
                    record.delivered(tenant, number, at(1));
                }
            }
            record
        });
        Played {
            scene: Arc::new(scene),
            records,
            length: at(2000),
        }
    }

    #[test]
    fn a_split_is_told_in_shares_without_and_with_groups() {
        let said = sentences(&split([(994, 2), (250, 250)])).join(" ");
        assert_eq!(
            said,
            "A tenant that splits itself into 1,000 keys got 99.4 % of all without groups, and 25.0 % with groups (its \
             share is 25.0 %). Each of the others was served 1.0 messages/s without groups and 125 with groups."
        );
    }

    #[test]
    fn what_contradicts_the_scene_is_told_all_the_same() {
        let said = sentences(&flood([3, 990])).join(" ");
        assert!(
            said.contains("waited 3.0 ms under FIFO and 990 ms under Fila."),
            "{said}"
        );
        assert!(said.contains("fairness cost 0.1 %."), "{said}");
    }

    #[test]
    fn a_scene_that_was_skipped_says_so() {
        for scene in scenes(Duration::from_secs(SECONDS)) {
            let records = [0, 1].map(|_| Record::new(scene.tenants.len()));
            let played = Played {
                scene: Arc::new(scene),
                records,
                length: at(1),
            };
            assert_eq!(
                sentences(&played),
                ["It was skipped before anything was served."]
            );
        }
        assert_eq!(text(&[]), ["Nothing was played."]);
    }

    #[test]
    fn a_multiple_has_two_digits() {
        let wait = |millis| Wait::Over(at(millis));
        assert_eq!(times_less(wait(5337), wait(4)), " (1,300 times less)");
        assert_eq!(times_less(wait(25), wait(10)), " (2.5 times less)");
        assert_eq!(times_less(wait(15), wait(10)), "");
        assert_eq!(times_less(wait(15), wait(0)), "");
    }
}
