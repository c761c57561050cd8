//! The choices of the user: selected rows, order, filter. Keys of the keyboard come in, and the next action comes out.

use std::cmp::Ordering;

use ratatui::crossterm::event::KeyCode;

use super::sample::{KeyRow, QueueRow};
use crate::queue::DeadLetters;

/// How many rows Page Up and Page Down move.
const PAGE: isize = 10;

/// The choices of the user.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) focus: Focus,
    pub(crate) queues: Pane<QueueOrder>,
    pub(crate) keys: Pane<KeyOrder>,
    pub(crate) listing: Listing,
    pub(crate) refresh: Refresh,
    pub(crate) typing: Typing,
    pub(crate) dead_letters: DeadLetters,
}

/// The table that the arrow keys act on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Focus {
    #[default]
    Queues,
    Keys,
}

/// The rows of the second table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Listing {
    #[default]
    Keys,
    Groups,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Refresh {
    #[default]
    Running,
    /// The screen shows the last sample; the server goes on.
    Frozen,
}

/// Whether letters are commands, or part of a filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Typing {
    #[default]
    Commands,
    Filter,
}

/// One of the two tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pane<O> {
    pub(crate) order: O,
    pub(crate) direction: Direction,
    /// Only rows whose names contain this are shown.
    pub(crate) filter: String,
    /// The name of the selected row, so that the row stays selected wherever it moves.
    pub(crate) chosen: Option<String>,
}

/// The direction of a sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Names from A, numbers from the largest.
    #[default]
    Usual,
    Reversed,
}

/// The column that sorts the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum QueueOrder {
    #[default]
    Name,
    Depth,
    In,
    Out,
    Wait,
}

/// The column that sorts the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyOrder {
    #[default]
    Ready,
    Out,
    Share,
    Wait,
    Name,
}

/// The action after a key press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    Draw,
    /// Sample the server now: the selected queue has changed, or the user asked for it.
    Ask,
    Quit,
}

/// A column that sorts a table.
pub(crate) trait Order: Copy {
    type Row;

    fn next(self) -> Self;

    /// Returns its name, which is the name of the column.
    fn name(self) -> &'static str;

    /// Compares in the usual direction. Rows that are equal in this column compare by their names.
    fn compare(self, one: &Self::Row, other: &Self::Row) -> Ordering;

    fn name_of(row: &Self::Row) -> &str;
}

impl Order for QueueOrder {
    type Row = QueueRow;

    fn next(self) -> Self {
        match self {
            Self::Name => Self::Depth,
            Self::Depth => Self::In,
            Self::In => Self::Out,
            Self::Out => Self::Wait,
            Self::Wait => Self::Name,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Name => "queue",
            Self::Depth => "depth",
            Self::In => "in/s",
            Self::Out => "out/s",
            Self::Wait => "wait",
        }
    }

    fn compare(self, one: &QueueRow, other: &QueueRow) -> Ordering {
        match self {
            Self::Name => Ordering::Equal,
            Self::Depth => other.depth.cmp(&one.depth),
            Self::In => larger_first(one.enqueued, other.enqueued),
            Self::Out => larger_first(one.delivered, other.delivered),
            Self::Wait => other.wait.cmp(&one.wait),
        }
    }

    fn name_of(row: &QueueRow) -> &str {
        &row.name
    }
}

impl Order for KeyOrder {
    type Row = KeyRow;

    fn next(self) -> Self {
        match self {
            Self::Ready => Self::Out,
            Self::Out => Self::Share,
            Self::Share => Self::Wait,
            Self::Wait => Self::Name,
            Self::Name => Self::Ready,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Out => "out/s",
            Self::Share => "share",
            Self::Wait => "wait",
            Self::Name => "key",
        }
    }

    fn compare(self, one: &KeyRow, other: &KeyRow) -> Ordering {
        match self {
            Self::Ready => other.ready.cmp(&one.ready),
            Self::Out => larger_first(one.delivered, other.delivered),
            Self::Share => larger_first(one.share, other.share),
            Self::Wait => other.wait.cmp(&one.wait),
            Self::Name => Ordering::Equal,
        }
    }

    fn name_of(row: &KeyRow) -> &str {
        &row.key
    }
}

impl Listing {
    /// Returns the plural of its rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Groups => "groups",
        }
    }
}

fn larger_first(one: Option<f64>, other: Option<f64>) -> Ordering {
    let [one, other] = [one, other].map(|value| value.unwrap_or(-1.0));
    other.total_cmp(&one)
}

impl<O: Order> Pane<O> {
    /// Returns the visible rows, in their order.
    pub(crate) fn arranged(&self, mut rows: Vec<O::Row>) -> Vec<O::Row> {
        let filter = self.filter.to_lowercase();
        rows.retain(|row| O::name_of(row).to_lowercase().contains(&filter));
        rows.sort_by(|one, other| {
            let by_name = || O::name_of(one).cmp(O::name_of(other));
            let usual = self.order.compare(one, other).then_with(by_name);
            match self.direction {
                Direction::Usual => usual,
                Direction::Reversed => usual.reverse(),
            }
        });
        rows
    }

    /// Returns the index of the selected row: the first, if none is selected.
    pub(crate) fn chosen_among(&self, rows: &[O::Row]) -> Option<usize> {
        let chosen = self.chosen.as_deref();
        let at = rows.iter().position(|row| Some(O::name_of(row)) == chosen);
        at.or_else(|| (!rows.is_empty()).then_some(0))
    }

    fn step(&mut self, rows: &[O::Row], steps: isize) {
        let Some(at) = self.chosen_among(rows) else {
            return;
        };
        let at = at.saturating_add_signed(steps).min(rows.len() - 1);
        self.chosen = Some(O::name_of(&rows[at]).to_owned());
    }

    fn sort(&mut self) {
        self.order = self.order.next();
        self.direction = Direction::Usual;
    }

    fn reverse(&mut self) {
        self.direction = match self.direction {
            Direction::Usual => Direction::Reversed,
            Direction::Reversed => Direction::Usual,
        };
    }
}

impl State {
    /// Acts on a key press, while these rows are visible.
    pub(crate) fn press(&mut self, key: KeyCode, queues: &[QueueRow], keys: &[KeyRow]) -> Reaction {
        match self.typing {
            Typing::Filter => self.type_filter(key),
            Typing::Commands => self.command(key, queues, keys),
        }
    }

    /// Returns the name of the selected queue.
    pub(crate) fn queue(&self, queues: &[QueueRow]) -> Option<String> {
        let at = self.queues.chosen_among(queues)?;
        Some(queues[at].name.clone())
    }

    fn command(&mut self, key: KeyCode, queues: &[QueueRow], keys: &[KeyRow]) -> Reaction {
        let steps = match key {
            KeyCode::Up | KeyCode::Char('k') => -1,
            KeyCode::Down | KeyCode::Char('j') => 1,
            KeyCode::PageUp => -PAGE,
            KeyCode::PageDown => PAGE,
            KeyCode::Home => isize::MIN,
            KeyCode::End => isize::MAX,
            _ => 0,
        };
        if steps != 0 {
            return self.step(steps, queues, keys);
        }
        match (key, self.focus) {
            (KeyCode::Char('q'), _) => return Reaction::Quit,
            (KeyCode::Left, _) => self.focus = Focus::Queues,
            (KeyCode::Right | KeyCode::Enter, _) | (KeyCode::Tab, Focus::Queues) => {
                self.focus = Focus::Keys
            }
            (KeyCode::Tab, Focus::Keys) => self.focus = Focus::Queues,
            (KeyCode::Char('s'), Focus::Queues) => self.queues.sort(),
            (KeyCode::Char('s'), Focus::Keys) => self.keys.sort(),
            (KeyCode::Char('r'), Focus::Queues) => self.queues.reverse(),
            (KeyCode::Char('r'), Focus::Keys) => self.keys.reverse(),
            (KeyCode::Char('d'), _) => {
                self.dead_letters = match self.dead_letters {
                    DeadLetters::Folded => DeadLetters::Rows,
                    DeadLetters::Rows => DeadLetters::Folded,
                };
                // The selected queue may be gone from the list.
                return Reaction::Ask;
            }
            (KeyCode::Char('g'), _) => {
                self.listing = match self.listing {
                    Listing::Keys => Listing::Groups,
                    Listing::Groups => Listing::Keys,
                };
            }
            (KeyCode::Char('/'), _) => self.typing = Typing::Filter,
            (KeyCode::Esc, _) => self.filter().clear(),
            (KeyCode::Char('p'), _) => match self.refresh {
                Refresh::Running => self.refresh = Refresh::Frozen,
                Refresh::Frozen => {
                    self.refresh = Refresh::Running;
                    return Reaction::Ask;
                }
            },
            _ => {}
        }
        Reaction::Draw
    }

    fn step(&mut self, steps: isize, queues: &[QueueRow], keys: &[KeyRow]) -> Reaction {
        match self.focus {
            Focus::Queues => {
                self.queues.step(queues, steps);
                Reaction::Ask
            }
            Focus::Keys => {
                self.keys.step(keys, steps);
                Reaction::Draw
            }
        }
    }

    fn type_filter(&mut self, key: KeyCode) -> Reaction {
        match key {
            KeyCode::Enter => self.typing = Typing::Commands,
            KeyCode::Esc => {
                self.filter().clear();
                self.typing = Typing::Commands;
            }
            KeyCode::Backspace => drop(self.filter().pop()),
            KeyCode::Char(letter) => self.filter().push(letter),
            _ => {}
        }
        match self.focus {
            // The first queue may have changed.
            Focus::Queues => Reaction::Ask,
            Focus::Keys => Reaction::Draw,
        }
    }

    fn filter(&mut self) -> &mut String {
        match self.focus {
            Focus::Queues => &mut self.queues.filter,
            Focus::Keys => &mut self.keys.filter,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{key_rows, queue_rows};
    use super::super::samples::two;
    use super::*;

    /// A state, and the rows of two samples.
    struct Desk {
        state: State,
        queues: Vec<QueueRow>,
        keys: Vec<KeyRow>,
    }

    impl Desk {
        fn new() -> Self {
            let [before, now] = two();
            Self {
                state: State::default(),
                queues: queue_rows(Some(&before), &now, DeadLetters::Folded),
                keys: key_rows(Some(&before), &now),
            }
        }

        fn press(&mut self, key: KeyCode) -> Reaction {
            let queues = self.state.queues.arranged(self.queues.clone());
            let keys = self.state.keys.arranged(self.keys.clone());
            self.state.press(key, &queues, &keys)
        }

        fn types(&mut self, text: &str) {
            for letter in text.chars() {
                self.press(KeyCode::Char(letter));
            }
        }

        fn queues(&self) -> Vec<String> {
            let rows = self.state.queues.arranged(self.queues.clone());
            rows.into_iter().map(|row| row.name).collect()
        }

        fn keys(&self) -> Vec<String> {
            let rows = self.state.keys.arranged(self.keys.clone());
            rows.into_iter().map(|row| row.key).collect()
        }

        fn queue(&self) -> Option<String> {
            let rows = self.state.queues.arranged(self.queues.clone());
            self.state.queue(&rows)
        }
    }

    #[test]
    fn the_order_goes_through_the_columns_and_back() {
        let mut desk = Desk::new();
        assert_eq!(desk.queues(), ["billing", "mails", "orders"]);
        desk.press(KeyCode::Char('s'));
        assert_eq!(desk.queues(), ["mails", "orders", "billing"]);
        desk.press(KeyCode::Char('r'));
        assert_eq!(desk.queues(), ["billing", "orders", "mails"]);
        desk.press(KeyCode::Char('s'));
        assert_eq!(desk.queues(), ["orders", "mails", "billing"]);
        desk.types("sss");
        assert_eq!(desk.state.queues.order, QueueOrder::Name);
        desk.press(KeyCode::Tab);
        assert_eq!(desk.keys(), ["noisy", "gold", "held"]);
        desk.press(KeyCode::Char('s'));
        assert_eq!(desk.keys(), ["gold", "noisy", "held"]);
        desk.types("ssss");
        assert_eq!(desk.state.keys.order, KeyOrder::Ready);
    }

    #[test]
    fn a_row_stays_chosen_when_the_order_changes() {
        let mut desk = Desk::new();
        assert_eq!(desk.queue().as_deref(), Some("billing"));
        assert_eq!(desk.press(KeyCode::Down), Reaction::Ask);
        desk.press(KeyCode::Char('r'));
        assert_eq!(desk.queue().as_deref(), Some("mails"));
        desk.press(KeyCode::End);
        assert_eq!(desk.queue().as_deref(), Some("billing"));
        desk.press(KeyCode::Home);
        desk.press(KeyCode::Up);
        assert_eq!(desk.queue().as_deref(), Some("orders"));
    }

    #[test]
    fn a_filter_is_typed_and_taken_back() {
        let mut desk = Desk::new();
        desk.types("/oRd");
        assert_eq!(desk.queues(), ["orders"]);
        assert_eq!(desk.queue().as_deref(), Some("orders"));
        // From here on letters are commands again.
        desk.press(KeyCode::Enter);
        assert_eq!(desk.press(KeyCode::Char('q')), Reaction::Quit);
        desk.press(KeyCode::Esc);
        assert_eq!(desk.queues().len(), 3);
        desk.types("/x");
        desk.press(KeyCode::Backspace);
        assert_eq!(desk.queues().len(), 3);
        desk.types("none");
        assert_eq!(desk.queue(), None);
        assert_eq!(desk.press(KeyCode::Down), Reaction::Ask);
        desk.press(KeyCode::Esc);
        assert_eq!(desk.state.typing, Typing::Commands);
    }

    #[test]
    fn the_second_table_has_keys_or_groups() {
        let mut desk = Desk::new();
        assert_eq!(desk.state.listing, Listing::Keys);
        assert_eq!(desk.press(KeyCode::Char('g')), Reaction::Draw);
        assert_eq!(desk.state.listing, Listing::Groups);
        desk.press(KeyCode::Char('g'));
        assert_eq!(desk.state.listing, Listing::Keys);
        // In a filter it is a letter.
        desk.types("/g");
        assert_eq!(desk.state.listing, Listing::Keys);
    }

    #[test]
    fn a_frozen_screen_goes_on_with_a_look() {
        let mut desk = Desk::new();
        assert_eq!(desk.press(KeyCode::Char('p')), Reaction::Draw);
        assert_eq!(desk.state.refresh, Refresh::Frozen);
        assert_eq!(desk.press(KeyCode::Char('p')), Reaction::Ask);
        assert_eq!(desk.state.refresh, Refresh::Running);
    }
}
