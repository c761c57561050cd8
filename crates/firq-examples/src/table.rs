//! Tables for people.

use std::fmt;

/// Rows of text under a header, with aligned columns: the first to the left, the others to the right.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table that has a header and no rows yet.
    #[must_use]
    pub fn new<const N: usize>(header: [&str; N]) -> Self {
        let header = header.map(str::to_owned).into();
        Self { rows: vec![header] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self
                .rows
                .iter()
                .filter_map(|row: &Vec<String>| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::from(" ");
            for (column, cell) in row.iter().enumerate() {
                let width = width(column);
                line += &match column {
                    0 => format!(" {cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
            if number == 0 {
                writeln!(f, "  {}", "-".repeat(line.chars().count() - 2))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["tenant", "n"]);
        table.row(["a".to_owned(), "100".to_owned()]);
        assert_eq!(
            table.to_string(),
            "  tenant    n\n  -----------\n  a       100\n"
        );
    }
}
