//! Tables for people: aligned columns, two spaces apart, as wide as their widest cell.

use std::fmt;

use unicode_width::UnicodeWidthStr;

use super::{bold, printable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Columns with titles, and rows.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<(&'static str, Align)>>) -> Self {
        Self {
            columns: columns.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Cells may hold foreign text.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len(), "a cell for every column");
        self.rows.push(cells.map(|cell| printable(&cell)).into());
    }

    fn widths(&self) -> Vec<usize> {
        let titles = self.columns.iter().map(|(title, _)| title.width());
        let mut widths: Vec<usize> = titles.collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        widths
    }

    fn line<'a>(&self, widths: &[usize], cells: impl Iterator<Item = &'a str>) -> String {
        let mut line = String::new();
        for ((cell, &width), &(_, align)) in cells.zip(widths).zip(&self.columns) {
            let padding = " ".repeat(width.saturating_sub(cell.width()));
            match align {
                Align::Left => line += &format!("{cell}{padding}  "),
                Align::Right => line += &format!("{padding}{cell}  "),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Without a newline at the end.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let titles = self.columns.iter().map(|(title, _)| *title);
        write!(f, "{}", bold(&self.line(&widths, titles)))?;
        for row in &self.rows {
            let cells = row.iter().map(String::as_str);
            write!(f, "\n{}", self.line(&widths, cells))?;
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
}
