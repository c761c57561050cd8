//! Tables in Markdown, aligned for the terminal.

use std::fmt;

/// Rows under a header. Columns of numbers are aligned right, columns of words left.
#[derive(Clone, Debug)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with a header and no rows.
    pub fn new(header: impl IntoIterator<Item: Into<String>>) -> Self {
        Self {
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Missing cells stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns whether the table has no rows.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns each column's width, and whether it holds numbers.
    fn columns(&self) -> Vec<(usize, bool)> {
        let columns = self.header.iter().enumerate().map(|(column, title)| {
            let cells = || self.rows.iter().filter_map(move |row| row.get(column));
            let widest = cells().map(|cell| cell.chars().count()).max();
            let width = widest.unwrap_or(0).max(title.chars().count());
            (width, column > 0 && cells().all(|cell| is_number(cell)))
        });
        columns.collect()
    }
}

fn is_number(cell: &str) -> bool {
    cell.is_empty()
        || cell.starts_with('–')
        || cell.starts_with(|first: char| first.is_ascii_digit())
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns();
        line(f, &columns, &self.header)?;
        for &(width, is_number) in &columns {
            let end = if is_number { ":" } else { "-" };
            write!(f, "|{}{end}", "-".repeat(width + 1))?;
        }
        writeln!(f, "|")?;
        self.rows.iter().try_for_each(|row| line(f, &columns, row))
    }
}

fn line(f: &mut fmt::Formatter<'_>, columns: &[(usize, bool)], cells: &[String]) -> fmt::Result {
    for (index, &(width, is_number)) in columns.iter().enumerate() {
        let cell = cells.get(index).map_or("", String::as_str);
        if is_number {
            write!(f, "| {cell:>width$} ")?;
        } else {
            write!(f, "| {cell:<width$} ")?;
        }
    }
    writeln!(f, "|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_is_markdown() {
        let mut table = Table::new(["a", "n", "is"]);
        table.row(["µs", "1", "yes"].map(str::to_owned));
        table.row(["b", "1,000", "no"].map(str::to_owned));
        let expected = "| a  |     n | is  |\n|----|------:|-----|\n| µs |     1 | yes |\n| b  | 1,000 | no  |\n";
        assert_eq!(table.to_string(), expected);
    }
}
