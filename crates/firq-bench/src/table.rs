//! Results, for people and for programs.

use std::fmt;

use serde_json::{Value, json};

/// One scenario's figures.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) title: String,
    /// What the figures mean, and what they do not.
    pub(crate) note: &'static str,
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// One figure or name.
#[derive(Clone, Debug)]
pub(crate) enum Cell {
    Text(String),
    /// A figure, and how many digits after the point are worth reading.
    Number(f64, usize),
    /// Not measured, or it does not apply.
    None,
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A whole number.
    pub(crate) fn count(value: usize) -> Self {
        Self::Number(value as f64, 0)
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Number(value, _) => json!(value),
            Self::None => Value::Null,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.pad(text),
            Self::Number(value, digits) => f.pad(&format!("{value:.digits$}")),
            Self::None => f.pad("–"),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(ToString::to_string).collect())
            .collect();
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells
                .chain([self.columns[column].chars().count()])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        writeln!(f, "\n## {}\n\n{}\n", self.title, self.note)?;
        line(
            f,
            &widths,
            self.columns.iter().map(|name| (*name).to_owned()),
        )?;
        line(f, &widths, widths.iter().map(|&width| "-".repeat(width)))?;
        rows.into_iter().try_for_each(|row| line(f, &widths, row))
    }
}

fn line(
    f: &mut fmt::Formatter<'_>,
    widths: &[usize],
    cells: impl IntoIterator<Item = String>,
) -> fmt::Result {
    f.write_str("|")?;
    for (number, (cell, width)) in cells.into_iter().zip(widths).enumerate() {
        match number {
            0 => write!(f, " {cell:<width$} |")?,
            _ => write!(f, " {cell:>width$} |")?,
        }
    }
    writeln!(f)
}

/// Renders tables as one JSON document: a list of scenarios, each with one object per row.
pub(crate) fn to_json(tables: &[Table]) -> String {
    let row = |table: &Table, row: &Vec<Cell>| -> Value {
        let cells = table.columns.iter().zip(row);
        cells
            .map(|(name, cell)| ((*name).to_owned(), cell.to_json()))
            .collect()
    };
    let table = |table: &Table| {
        let rows: Vec<Value> = table.rows.iter().map(|cells| row(table, cells)).collect();
        json!({ "title": table.title, "note": table.note, "rows": rows })
    };
    let tables: Vec<Value> = tables.iter().map(table).collect();
    serde_json::to_string_pretty(&tables).expect("strings and numbers are valid JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Table {
        Table {
            title: "Speed".to_owned(),
            note: "Less is better.",
            columns: vec!["who", "ns"],
            rows: vec![
                vec![Cell::text("floor"), Cell::Number(12.34, 1)],
                vec![Cell::text("nobody"), Cell::None],
            ],
        }
    }

    #[test]
    fn people_get_aligned_columns() {
        let expected = "\n## Speed\n\nLess is better.\n\n| who    |   ns |\n| ------ | ---- |\n\
                        | floor  | 12.3 |\n| nobody |    – |\n";
        assert_eq!(example().to_string(), expected);
    }

    #[test]
    fn programs_get_every_digit() {
        let parsed: Value = serde_json::from_str(&to_json(&[example()])).unwrap();
        assert_eq!(parsed[0]["rows"][0]["ns"], 12.34);
        assert_eq!(parsed[0]["rows"][1]["ns"], Value::Null);
    }
}
