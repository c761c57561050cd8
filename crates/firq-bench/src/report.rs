//! Results as tables and as JSON.

use std::fmt;

use serde_json::{Value, json};

/// One scenario's figures.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) title: String,
    /// How the figures were measured, and the goal.
    pub(crate) note: &'static str,
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// One figure or name.
#[derive(Clone, Debug)]
pub(crate) enum Cell {
    Text(String),
    /// A figure, and how many digits after the point to show.
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
            Self::Text(text) => f.write_str(text),
            Self::Number(value, digits) => write!(f, "{value:.digits$}"),
            Self::None => f.write_str("–"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = lab::Table::new(self.columns.iter().copied());
        for row in &self.rows {
            table.row(row.iter().map(ToString::to_string));
        }
        writeln!(f, "\n## {}\n\n{}\n\n{table}", self.title, self.note)
    }
}

/// Renders reports as one JSON document: a list of scenarios, each with one object per row.
pub(crate) fn to_json(reports: &[Report]) -> String {
    let row = |report: &Report, cells: &Vec<Cell>| -> Value {
        let cells = report.columns.iter().zip(cells);
        cells
            .map(|(name, cell)| ((*name).to_owned(), cell.to_json()))
            .collect()
    };
    let scenario = |report: &Report| {
        let rows: Vec<Value> = report.rows.iter().map(|cells| row(report, cells)).collect();
        json!({ "title": report.title, "note": report.note, "rows": rows })
    };
    let scenarios: Vec<Value> = reports.iter().map(scenario).collect();
    serde_json::to_string_pretty(&scenarios).expect("strings and numbers are valid JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Report {
        Report {
            title: "Speed".to_owned(),
            note: "Less is better.",
            columns: vec!["who", "ns"],
            rows: vec![
                vec![Cell::text("floor"), Cell::Number(12.34, 1)],
                vec![Cell::text("ring"), Cell::None],
            ],
        }
    }

    #[test]
    fn people_get_aligned_columns() {
        let expected = "\n## Speed\n\nLess is better.\n\n| who   |   ns |\n|-------|-----:|\n\
                        | floor | 12.3 |\n| ring  |    – |\n\n";
        assert_eq!(example().to_string(), expected);
    }

    #[test]
    fn programs_get_every_digit() {
        let parsed: Value = serde_json::from_str(&to_json(&[example()])).unwrap();
        assert_eq!(parsed[0]["rows"][0]["ns"], 12.34);
        assert_eq!(parsed[0]["rows"][1]["ns"], Value::Null);
    }
}
