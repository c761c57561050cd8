//! Tables for people: aligned columns, two spaces apart, as wide as their widest cell.
//!
//! On a terminal a table is as wide as the window: names and texts are shortened, and where that is not enough, columns
//! are left out in an order of their own. In a pipe or a file it is complete.

use std::fmt;

use unicode_width::UnicodeWidthStr;

use super::fit::LeftOut;
use super::{bold, printable};
use crate::terminal;

/// The width below which a column is shortened only if no other can be left out.
const SHORTENED_MIN: usize = 12;

/// The space between two columns.
const GAP: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
    /// To the left, and shortened so that names can be told apart where room is scarce.
    Name,
    /// To the left, and cut at the end where room is scarce.
    Text,
}

/// Columns with titles, and rows.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
    /// The columns of the window; none without a terminal.
    window: Option<usize>,
    /// Titles of columns that are left out where room is scarce, the first one first.
    spare: &'static [&'static str],
}

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<(&'static str, Align)>>) -> Self {
        Self {
            columns: columns.into(),
            rows: Vec::new(),
            window: terminal::columns(),
            spare: &[],
        }
    }

    /// Names the columns that a narrow window leaves out, the first one first.
    pub(crate) fn spare(mut self, titles: &'static [&'static str]) -> Self {
        self.spare = titles;
        self
    }

    /// Takes this much of the window for the caller.
    pub(crate) fn indented(mut self, columns: usize) -> Self {
        self.window = self.window.map(|window| window.saturating_sub(columns));
        self
    }

    /// Returns the table in a window of this width, without colours. No line of it wraps.
    #[cfg(test)]
    pub(crate) fn plain(mut self, window: usize) -> String {
        self.window = Some(window);
        let text = self.to_string().replace(['\u{fdd0}', '\u{fdd1}'], "");
        let is_fitting = |line: &str| line.width() <= window;
        assert!(text.lines().all(is_fitting), "{window} columns:\n{text}");
        text
    }

    /// Adds a row. Cells may hold foreign text.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len(), "a cell for every column");
        self.rows.push(cells.map(|cell| printable(&cell)).into());
    }

    /// Returns the columns that are shown, with their widths.
    fn layout(&self) -> Vec<(usize, usize)> {
        let natural = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].width());
            (at, cells.fold(self.columns[at].0.width(), usize::max))
        };
        let mut layout: Vec<(usize, usize)> = (0..self.columns.len()).map(natural).collect();
        let Some(window) = self.window else {
            return layout;
        };
        for title in self.spare {
            let least = layout.iter().map(|&(at, width)| self.least(at, width));
            if taken(least) <= window {
                break;
            }
            layout.retain(|&(at, _)| self.columns[at].0 != *title);
        }
        // The widest column gives first, so that all end up alike.
        while taken(layout.iter().map(|&(_, width)| width)) > window {
            let may_give = layout.iter_mut().filter(|(at, width)| {
                *width > 1 && matches!(self.columns[*at].1, Align::Name | Align::Text)
            });
            let Some((_, width)) = may_give.max_by_key(|(_, width)| *width) else {
                break;
            };
            *width -= 1;
        }
        layout
    }

    /// Returns the width of a column that has this one, once it is shortened.
    fn least(&self, at: usize, width: usize) -> usize {
        match self.columns[at] {
            (_, Align::Left | Align::Right) => width,
            (title, Align::Name | Align::Text) => width.min(SHORTENED_MIN.max(title.width())),
        }
    }

    /// Returns the part of names that a column leaves out.
    fn left_out(&self, at: usize, width: usize) -> LeftOut {
        match self.columns[at].1 {
            Align::Name => LeftOut::of(&self.rows.iter().map(|row| &*row[at]), width),
            Align::Left | Align::Right | Align::Text => LeftOut::End,
        }
    }

    fn line<'a>(
        &self,
        layout: &[(usize, usize, LeftOut)],
        cell: impl Fn(usize) -> &'a str,
    ) -> String {
        let mut line = String::new();
        for &(at, width, left_out) in layout {
            let cell = left_out.shorten(cell(at), width);
            let padding = " ".repeat(width.saturating_sub(cell.width()));
            match self.columns[at].1 {
                Align::Left | Align::Name | Align::Text => line += &format!("{cell}{padding}  "),
                Align::Right => line += &format!("{padding}{cell}  "),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Returns the width of columns with the space between them.
fn taken(widths: impl ExactSizeIterator<Item = usize>) -> usize {
    let gaps = GAP * widths.len().saturating_sub(1);
    widths.sum::<usize>() + gaps
}

/// Without a newline at the end.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layout = self.layout().into_iter();
        let layout: Vec<_> = layout
            .map(|(at, width)| (at, width, self.left_out(at, width)))
            .collect();
        let titles = self.line(&layout, |at| self.columns[at].0);
        write!(f, "{}", bold(&titles))?;
        for row in &self.rows {
            write!(f, "\n{}", self.line(&layout, |at| &row[at]))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new([
            ("NAME", Align::Left),
            ("READY", Align::Right),
            ("", Align::Left),
        ]);
        table.row(["a".to_owned(), "1,234,567".to_owned(), "paused".to_owned()]);
        table.row(["大大大".to_owned(), "7".to_owned(), String::new()]);
        let text = table.to_string().replace(['\u{fdd0}', '\u{fdd1}'], "");
        assert_eq!(
            text,
            "NAME        READY\na       1,234,567  paused\n大大大          7"
        );
    }

    #[test]
    fn a_table_is_no_wider_than_its_window_and_complete_without_one() {
        let table = || {
            let mut table = Table::new([
                ("NAME", Align::Name),
                ("READY", Align::Right),
                ("SIZE", Align::Right),
                ("PAYLOAD", Align::Text),
            ]);
            for number in 1..=2 {
                table.row([
                    format!("大きな顧客-customer-of-europe-{number:06}"),
                    "1,234,567".to_owned(),
                    "12 MiB".to_owned(),
                    "x".repeat(50),
                ]);
            }
            table.spare(&["SIZE"])
        };
        for window in 20..120 {
            let text = table().plain(window);
            assert_eq!(
                text.contains("SIZE"),
                window >= 12 + 9 + 6 + 12 + 6,
                "{text}"
            );
            let is_shown = |end| text.contains(end) || window < 37;
            assert!(is_shown("01 ") && is_shown("02 "), "{text}");
        }
        assert!(
            table()
                .to_string()
                .contains("大きな顧客-customer-of-europe-000002")
        );
    }
}
