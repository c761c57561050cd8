//! Every setting acts when `docs/cli.md` says, before and after a restart, while messages are in every state.
//!
//! A setting of a queue has a function of its name in [`of_queue`]: without it this does not compile. The settings of keys
//! and of throttles are taken apart field by field, with the same effect. Run with `--nocapture` to see the table.

mod of_queue;
mod others;
mod scene;

use std::future::Future;
use std::pin::Pin;

use futures_util::StreamExt;

use self::scene::{IN_MEMORY, STATES, Scene};

const BOOK: &str = include_str!("../../../../docs/cli.md");

/// How many servers run at once.
const SCENES: usize = 6;

/// What a change acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActsOn {
    Deliveries,
    Failures,
    Sent,
    /// A script has a hook for each.
    SentAndFailures,
    /// A separator makes paths of keys: new ones are checked, and all of them are put into groups.
    SentAndDeliveries,
}

impl ActsOn {
    fn text(self) -> &'static str {
        match self {
            Self::Deliveries => "every delivery from now on, whatever state its message is in",
            Self::Failures => "every failed delivery from now on, whatever state its message is in",
            Self::Sent => "messages sent from now on",
            Self::SentAndFailures => {
                "messages sent from now on, and every failed delivery from now on"
            }
            Self::SentAndDeliveries => {
                "messages sent from now on, and every delivery from now on, whatever state its message is in"
            }
        }
    }

    /// Tells whether messages notice that were in the queue before.
    fn reaches_states(self) -> bool {
        self != Self::Sent
    }
}

type Play = fn(Scene) -> Pin<Box<dyn Future<Output = ()>>>;

struct Row {
    name: &'static str,
    acts_on: ActsOn,
    play: Play,
}

impl Row {
    /// Returns what was seen of messages that were in this state when the setting changed.
    fn seen_in(&self, state: &str) -> &'static str {
        // The order of deliveries shows these, and only for messages that need not be read first.
        let is_by_order = matches!(self.name, "charge" | "key weight");
        if !self.acts_on.reaches_states() {
            "-"
        } else if is_by_order && !IN_MEMORY.contains(&state)
            || self.name == "key_separator" && state != "waiting"
        {
            "unseen"
        } else {
            "acts"
        }
    }
}

macro_rules! rows_of_queue {
    ($($name:ident: $type:ty, $wire:ident, $core:ident $(.$inner:ident)?, default $default:literal,
        $(zero $zero:literal,)? $help:literal;)*) => {
        fn rows_of_queue() -> Vec<Row> {
            vec![$(Row {
                name: stringify!($name),
                acts_on: of_queue::acts_on::$name,
                play: |scene| Box::pin(of_queue::$name(scene)),
            }),*]
        }
    };
}

fila_proto::queue_settings!(rows_of_queue);

#[tokio::test(flavor = "multi_thread")]
async fn every_setting_acts_when_the_book_says_with_messages_in_every_state() {
    let rows: Vec<Row> = rows_of_queue().into_iter().chain(others::rows()).collect();
    let plays = rows.iter().flat_map(|row| [(row, false), (row, true)]);
    let plays = plays.map(|(row, restarts)| async move {
        let scene = Scene::set_up(row.name, restarts).await;
        (row.play)(scene).await;
    });
    let played = futures_util::stream::iter(plays).buffer_unordered(SCENES);
    assert_eq!(played.count().await, 2 * rows.len());
    println!("{:24} {} sent later  restart", "setting", STATES.join("  "));
    for row in &rows {
        let sent = match row.acts_on {
            ActsOn::Failures => "when failed",
            ActsOn::Deliveries
            | ActsOn::Sent
            | ActsOn::SentAndFailures
            | ActsOn::SentAndDeliveries => "acts",
        };
        let states = STATES.map(|state| {
            let seen = row.seen_in(state);
            format!("{seen:width$}", width = state.len())
        });
        println!("{:24} {} {sent:11} acts", row.name, states.join("  "));
        let line = format!("\n| `{}` | {} |\n", row.name, row.acts_on.text());
        assert!(
            BOOK.contains(&line),
            "docs/cli.md has no row as this: {line}"
        );
    }
}
