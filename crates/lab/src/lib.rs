#![doc = include_str!("../README.md")]

mod bars;
mod numbers;
mod svg;
mod table;

pub use bars::{Bar, BarChart, BarGroup, Range, Scale};
pub use numbers::{Latencies, median, millis, thousands};
pub use svg::Svg;
pub use table::Table;
