//! `fila whatif`: what other settings of keys and groups would change, before they are applied.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use fila_sdk::{
    Admin, ErrorCode, KeyChange, Outlook, PaceBasis, Prediction, PredictionKind, PredictionRow,
    WhatIf,
};
use serde::Serialize;

use crate::confirmation;
use crate::failure::Failure;
use crate::general::General;
use crate::output::{Align, Output, Table, count, duration, printable};
use crate::units::{percent, rate};
use crate::values;

/// The prediction rests on this.
const ASSUMPTIONS: &str = "This takes for granted that messages arrive as in the last minute, that consumers hold each \
                           message for as long as of late, and that every delivery succeeds.";

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila whatif orders --weight acme=3
  fila whatif orders --cap globex=8 --pause initech/batch --levels 2
  fila whatif orders --weight acme=default --over 1h --json | jq '.rows[] | [.path, .then.share]'
  fila whatif orders --weight acme=3 --apply

The command changes nothing without --apply. A path is a key, or the group of all keys below it.")]
pub(crate) struct WhatIfArguments {
    /// The queue
    queue: String,
    #[command(flatten)]
    changes: Changes,
    /// Show shares and rates of this time, at most a day
    #[arg(long, value_name = "TIME", value_parser = values::duration, default_value = "1m")]
    over: Duration,
    /// Show this many levels of groups; changed keys and groups are shown on every level
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    levels: u32,
    /// Show at most this many keys and groups
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Make the change, unless the settings have changed since the prediction
    #[arg(long)]
    apply: bool,
    /// Do not ask before the change
    #[arg(long, requires = "apply")]
    yes: bool,
}

#[derive(Debug, Default, Args)]
struct Changes {
    /// Try this weight of a key or group; `default` leaves it to the producers
    #[arg(long, value_name = "PATH=NUMBER", value_parser = setting)]
    weight: Vec<(String, u32)>,
    /// Try that at most this many messages of a key or group are leased at once; `default` leaves it to the queue
    #[arg(long, value_name = "PATH=NUMBER", value_parser = setting)]
    cap: Vec<(String, u32)>,
    /// Try to pause a key or group
    #[arg(long, value_name = "PATH")]
    pause: Vec<String>,
    /// Try to resume a key or group
    #[arg(long, value_name = "PATH")]
    resume: Vec<String>,
}

/// Parses `PATH=NUMBER`. A path may contain `=`, so the last one counts.
fn setting(text: &str) -> Result<(String, u32), String> {
    let wrong = || "expected PATH=NUMBER or PATH=default, as acme=3".to_owned();
    let (path, value) = text.rsplit_once('=').ok_or_else(wrong)?;
    if path.is_empty() {
        return Err(wrong());
    }
    let value = match value {
        "default" => 0,
        number => match number.parse() {
            Ok(number) if number > 0 => number,
            Ok(_) | Err(_) => return Err(wrong()),
        },
    };
    Ok((path.to_owned(), value))
}

impl Changes {
    /// Returns one change for each path.
    fn by_path(self) -> Result<BTreeMap<String, KeyChange>, Failure> {
        let mut changes: BTreeMap<String, KeyChange> = BTreeMap::new();
        let twice = |path: &str, flags: &str| {
            Failure::Usage(format!("`{path}` is named twice by {flags}; name it once"))
        };
        for (path, weight) in self.weight {
            let change = changes.entry(path.clone()).or_default();
            if change.weight.replace(weight).is_some() {
                return Err(twice(&path, "--weight"));
            }
        }
        for (path, cap) in self.cap {
            let change = changes.entry(path.clone()).or_default();
            if change.concurrency.replace(cap).is_some() {
                return Err(twice(&path, "--cap"));
            }
        }
        let pauses = self.pause.into_iter().map(|path| (path, true));
        let resumes = self.resume.into_iter().map(|path| (path, false));
        for (path, paused) in pauses.chain(resumes) {
            let change = changes.entry(path.clone()).or_default();
            if change.paused.replace(paused).is_some() {
                return Err(twice(&path, "--pause and --resume"));
            }
        }
        Ok(changes)
    }
}

/// The result of `--apply` for programs.
#[derive(Debug, Serialize)]
struct AppliedJson {
    applied: bool,
    version: u64,
}

pub(crate) fn run(general: &General, arguments: WhatIfArguments) -> Result<(), Failure> {
    let WhatIfArguments { queue, .. } = &arguments;
    let queue = queue.clone();
    let changes = arguments.changes.by_path()?;
    if arguments.apply {
        if changes.is_empty() {
            let text = "--apply needs a change; name one with --weight, --cap, --pause or --resume";
            return Err(Failure::Usage(text.to_owned()));
        }
        confirmation::expect_answer(arguments.yes)?;
    }
    let question = WhatIf::new()
        .over(arguments.over)
        .levels(arguments.levels)
        .rows_max(arguments.limit);
    let question = changes.into_iter().fold(question, |question, change| {
        question.change(change.0, change.1)
    });
    general.talk(Some(&queue), async |session| {
        let admin = session.client.admin();
        let prediction = admin.what_if(&queue, &question).await?;
        session.output.result(&prediction, || text(&prediction))?;
        if !arguments.apply {
            return Ok(());
        }
        let said = format!("Make this change to queue `{}`?", printable(&queue));
        confirmation::confirm(&said, arguments.yes)?;
        let version = prediction.version;
        apply(&admin, session.output, &queue, &question, version).await
    })
}

/// Makes the change with the version that the prediction looked at.
async fn apply(
    admin: &Admin,
    output: Output,
    queue: &str,
    question: &WhatIf,
    version: u64,
) -> Result<(), Failure> {
    let applied = admin.update_keys(queue, question.changes(), Some(version));
    let version = match applied.await {
        Ok(version) => version,
        Err(error) if error.code() == Some(ErrorCode::QueueChanged) => {
            return Err(Failure::Other(anyhow::anyhow!(
                "the settings of queue `{}` have changed since the prediction, so nothing was applied; run the command again",
                printable(queue)
            )));
        }
        Err(error) => return Err(error.into()),
    };
    let applied = AppliedJson {
        applied: true,
        version,
    };
    output.result(&applied, || {
        format!("\nqueue `{}` has the new settings", printable(queue))
    })
}

/// Returns the table with the lines below it.
fn text(prediction: &Prediction) -> String {
    let mut text = match prediction.rows.is_empty() {
        true => "no key of the queue has messages, and none has got any of late".to_owned(),
        false => table(prediction).to_string(),
    };
    text.push('\n');
    for line in remarks(prediction) {
        text.push('\n');
        text += &line;
    }
    text
}

fn table(prediction: &Prediction) -> Table {
    let drained = match prediction.basis {
        PaceBasis::Nothing => "DRAINED AFTER",
        _ => "DRAINED IN",
    };
    let mut table = Table::new([
        ("KEY", Align::Name),
        ("SETTINGS", Align::Text),
        ("BACKLOG", Align::Right),
        ("SHARE", Align::Left),
        ("RATE", Align::Left),
        (drained, Align::Left),
    ])
    .spare(&["RATE", "BACKLOG"]);
    for row in &prediction.rows {
        table.row([
            name(row),
            settings(row),
            count(row.ready),
            beside(&percent(row.now.share), &percent(row.then.share)),
            beside(&deliveries(&row.now), &deliveries(&row.then)),
            beside(&drained_in(&row.now), &drained_in(&row.then)),
        ]);
    }
    table
}

/// Returns the present value beside the other one, or one value if they are the same.
fn beside(now: &str, then: &str) -> String {
    if now == then {
        now.to_owned()
    } else {
        format!("{now} → {then}")
    }
}

/// Returns the name of a row, below that of its group.
fn name(row: &PredictionRow) -> String {
    let below = "  ".repeat(row.level.min(8) as usize);
    let mark = if row.changed { "* " } else { "" };
    let own = match row.kind {
        PredictionKind::OwnMessages => " (own messages)",
        PredictionKind::Group => " (group)",
        _ => "",
    };
    format!("{below}{mark}{}{own}", printable(&row.path))
}

/// Returns the weight, and the cap and the pause where there is one.
fn settings(row: &PredictionRow) -> String {
    let (now, then) = (&row.now, &row.then);
    let weight = |outlook: &Outlook| count(outlook.weight.into());
    let mut parts = vec![format!("weight {}", beside(&weight(now), &weight(then)))];
    let cap = |outlook: &Outlook| {
        let cap = outlook.cap;
        cap.map_or_else(|| "none".to_owned(), |cap| count(cap.into()))
    };
    if now.cap.is_some() || then.cap.is_some() {
        parts.push(format!("cap {}", beside(&cap(now), &cap(then))));
    }
    let state = |outlook: &Outlook| if outlook.paused { "paused" } else { "running" };
    if now.paused || then.paused {
        parts.push(beside(state(now), state(then)));
    }
    parts.join(", ")
}

fn deliveries(outlook: &Outlook) -> String {
    outlook
        .rate
        .map_or_else(|| "-".to_owned(), |per_second| rate(per_second) + "/s")
}

fn drained_in(outlook: &Outlook) -> String {
    let after = match (outlook.drained, outlook.drained_deliveries) {
        (Some(Duration::ZERO), _) | (None, Some(0)) => return "empty".to_owned(),
        (Some(time), _) => duration(time),
        (None, Some(deliveries)) => count(deliveries),
        (None, None) => return "never".to_owned(),
    };
    if outlook.drained_extrapolated {
        format!("about {after}")
    } else {
        after
    }
}

/// Returns the lines below the table: the basis of the figures, what they leave out, and what they take for granted.
fn remarks(prediction: &Prediction) -> Vec<String> {
    let mut remarks = vec![basis(prediction)];
    if prediction.queue_paused {
        let paused = "The queue is paused; this is what happens once it is resumed.";
        remarks.push(paused.to_owned());
    }
    if prediction.left_out > 0 {
        remarks.push(format!(
            "{} more keys and groups are left out; --limit shows more of them.",
            count(prediction.left_out)
        ));
    }
    // A group has the messages of its members.
    let top = prediction.rows.iter().filter(|row| row.level == 0);
    let held_back: u64 = top.map(|row| row.held_back).sum();
    if held_back > 0 {
        remarks.push(format!(
            "{} messages that wait for their time or for a token are left out.",
            count(held_back)
        ));
    }
    remarks.push(ASSUMPTIONS.to_owned());
    remarks
}

fn basis(prediction: &Prediction) -> String {
    let over = prediction.over.unwrap_or_default();
    let of = format!("Shares and rates are of the next {}", duration(over));
    let pace = rate(prediction.pace.unwrap_or_default());
    match prediction.basis {
        PaceBasis::Measured => {
            format!(
                "{of}, at the {pace} deliveries/s of the last minute: the consumers have no room for more."
            )
        }
        PaceBasis::Credit => format!(
            "{of}. The consumers have room for more than the {pace} deliveries/s of the last minute, and take what they ask for."
        ),
        PaceBasis::Nothing => format!(
            "Nothing was delivered in the last minute, so this counts deliveries and tells no times: shares are of the \
             next {} deliveries.",
            count(prediction.over_deliveries.unwrap_or_default())
        ),
        _ => format!("{of}, on a basis that this version does not know; use a newer `fila`."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_contain_an_equals_sign() {
        let parsed = |text| setting(text).unwrap();
        assert_eq!(parsed("acme=3"), ("acme".to_owned(), 3));
        assert_eq!(parsed("acme/user=7=default"), ("acme/user=7".to_owned(), 0));
        for odd in ["", "acme", "=3", "acme=", "acme=0", "acme=-1", "acme=x"] {
            assert!(setting(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn changes_of_one_path_are_one_change_and_contradictions_are_refused() {
        let path = || "acme".to_owned();
        let both = Changes {
            weight: vec![(path(), 3)],
            cap: vec![(path(), 8)],
            pause: vec![path()],
            resume: vec!["globex".to_owned()],
        };
        let changes = both.by_path().unwrap_or_default();
        assert_eq!(changes.len(), 2);
        let acme = changes["acme"];
        let found = (acme.weight, acme.concurrency, acme.paused);
        assert_eq!(found, (Some(3), Some(8), Some(true)));
        for odd in [
            Changes {
                weight: vec![(path(), 3), (path(), 4)],
                ..Changes::default()
            },
            Changes {
                cap: vec![(path(), 3), (path(), 3)],
                ..Changes::default()
            },
            Changes {
                pause: vec![path()],
                resume: vec![path()],
                ..Changes::default()
            },
        ] {
            assert!(matches!(odd.by_path(), Err(Failure::Usage(_))));
        }
    }

    fn outlook(weight: u32, share: f64, rate: f64, drained: Option<u64>) -> Outlook {
        let mut outlook = Outlook::default();
        (outlook.weight, outlook.share, outlook.rate) = (weight, share, Some(rate));
        outlook.drained = drained.map(Duration::from_secs);
        outlook
    }

    fn row(
        path: &str,
        kind: PredictionKind,
        level: u32,
        (now, then): (Outlook, Outlook),
    ) -> PredictionRow {
        let mut row = PredictionRow::default();
        row.path = path.to_owned();
        (row.kind, row.level) = (kind, level);
        (row.now, row.then) = (now, then);
        row.ready = 123_456;
        row
    }

    fn prediction() -> Prediction {
        let mut group = row(
            "customer-000001-of-a-reseller",
            PredictionKind::Group,
            0,
            (
                outlook(1, 0.5, 1_000.0, Some(250)),
                outlook(3, 0.75, 1_500.0, Some(170)),
            ),
        );
        group.changed = true;
        group.held_back = 12;
        group.then.cap = Some(8);
        let mut member = row(
            "customer-000001-of-a-reseller/batch",
            PredictionKind::Key,
            1,
            (
                outlook(1, 0.25, 500.0, Some(250)),
                outlook(1, 0.0, 0.0, None),
            ),
        );
        member.changed = true;
        member.then.paused = true;
        let own = row(
            "customer-000001-of-a-reseller",
            PredictionKind::OwnMessages,
            1,
            (
                outlook(1, 0.25, 500.0, Some(250)),
                outlook(1, 0.75, 1_500.0, Some(170)),
            ),
        );
        let mut other = row(
            "customer-000002-of-a-reseller",
            PredictionKind::Key,
            0,
            (
                outlook(1, 0.5, 1_000.0, Some(10_800)),
                outlook(1, 0.25, 500.0, Some(0)),
            ),
        );
        other.now.drained_extrapolated = true;
        let mut prediction = Prediction::default();
        prediction.rows = vec![group, member, own, other];
        prediction.over = Some(Duration::from_secs(300));
        prediction.pace = Some(2_000.0);
        prediction.basis = PaceBasis::Measured;
        prediction.left_out = 1_200;
        prediction
    }

    #[test]
    fn now_and_then_are_beside_each_other_at_every_width() {
        let prediction = prediction();
        for window in [80, 120, 200] {
            let text = table(&prediction).plain(window);
            insta::assert_snapshot!(format!("whatif_{window}"), text);
        }
    }

    #[test]
    fn the_lines_below_say_the_basis_and_what_is_left_out() {
        let mut prediction = prediction();
        let measured = remarks(&prediction).join("\n");
        prediction.basis = PaceBasis::Credit;
        prediction.queue_paused = true;
        let credit = remarks(&prediction).join("\n");
        prediction.basis = PaceBasis::Nothing;
        prediction.over_deliveries = Some(1_000);
        let nothing = remarks(&prediction).join("\n");
        let all = [measured, credit, nothing].join("\n\n");
        insta::assert_snapshot!("whatif_remarks", all);
    }

    #[test]
    fn a_path_cannot_steer_the_terminal() {
        let mut prediction = prediction();
        prediction.rows[0].path = "a\x1b[2Jb".to_owned();
        let text = table(&prediction).plain(200);
        assert!(!text.contains('\x1b'), "{text}");
        assert!(text.contains("a\\u{1b}[2Jb"), "{text}");
    }
}
