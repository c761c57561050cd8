//! Bar charts, for the terminal and as SVG.

use std::fmt;

use crate::Svg;

/// How wide the widest bar is in the terminal, in characters.
const COLUMNS: f64 = 50.0;
/// How wide the widest bar is in the picture.
const BAR: f64 = 420.0;
const LABELS: f64 = 190.0;
const WIDTH: f64 = LABELS + BAR + 110.0;
const ROW: f64 = 18.0;

/// Bars in groups, one below the other.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// The title.
    pub title: String,
    /// Which bars are compared by their length.
    pub range: Range,
    /// The groups, from top to bottom.
    pub groups: Vec<BarGroup>,
}

/// Which bars are compared by their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// All bars of the chart.
    Chart,
    /// The bars of each group.
    Group,
}

/// How the length of a bar follows from its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// In proportion, from zero.
    Linear,
    /// By its magnitude, from the least to the largest value.
    Logarithmic,
}

/// Bars under a title.
#[derive(Clone, Debug)]
pub struct BarGroup {
    /// The title.
    pub title: String,
    /// The scale of its bars.
    pub scale: Scale,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The name of the measured quantity.
    pub label: String,
    /// The result.
    pub value: f64,
    /// The value as text.
    pub shown: String,
    /// Whether the reader should look at this bar first.
    pub is_highlighted: bool,
}

impl BarChart {
    /// Returns the part of the longest bar that a value of this group gets, from 0 to 1.
    fn part(&self, group: &BarGroup, value: f64) -> f64 {
        let of_group = || group.bars.iter().map(|bar| bar.value.max(1e-9));
        let of_chart = || {
            let bars = self.groups.iter().flat_map(|group| &group.bars);
            bars.map(|bar| bar.value.max(1e-9))
        };
        let (least, most) = match self.range {
            Range::Group => bounds(of_group()),
            Range::Chart => bounds(of_chart()),
        };
        match group.scale {
            Scale::Linear => value / most,
            Scale::Logarithmic => {
                let part = (value.max(1e-9) / least).ln() / (most / least).ln().max(1e-9);
                0.1 + 0.9 * part.clamp(0.0, 1.0)
            }
        }
    }

    /// Draws the chart as a picture that stands by itself. Leaves out groups without bars.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let mut svg = Svg::new();
        svg.text(12.0, 26.0, "h", &self.title);
        let mut y = 56.0;
        for group in self.groups.iter().filter(|group| !group.bars.is_empty()) {
            svg.text(12.0, y, "t", &group.title);
            for bar in &group.bars {
                y += ROW;
                let length = (self.part(group, bar.value) * BAR).max(1.0);
                let class = if bar.is_highlighted { "o" } else { "p" };
                svg.text(24.0, y, "", &bar.label);
                svg.rect((LABELS, y - 11.0), (length, 13.0), class);
                svg.text(LABELS + length + 6.0, y, "", &bar.shown);
            }
            y += 2.0 * ROW;
        }
        let style = ".t{font-weight:600}.o{fill:#2f7ebc}.p{fill:#b9b9b9}";
        svg.finish((WIDTH, y), &self.title, style)
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 1e-9), |(least, most), value| {
        (least.min(value), most.max(value))
    })
}

/// As bars of characters, for the terminal.
impl fmt::Display for BarChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        for group in &self.groups {
            writeln!(f, "{}", group.title)?;
            for bar in &group.bars {
                let length = (self.part(group, bar.value) * COLUMNS).round() as usize;
                let stroke = if bar.is_highlighted { "█" } else { "░" };
                let (label, shown) = (&bar.label, &bar.shown);
                writeln!(f, "  {label:<22} {} {shown}", stroke.repeat(length))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, range: Range, groups: [&[f64]; 2]) -> BarChart {
        let group = |(index, values): (usize, &[f64])| BarGroup {
            title: format!("group {index}"),
            scale,
            bars: values.iter().map(|&value| bar(value)).collect(),
        };
        BarChart {
            title: "Title".to_owned(),
            range,
            groups: groups.into_iter().enumerate().map(group).collect(),
        }
    }

    fn bar(value: f64) -> Bar {
        Bar {
            label: format!("of {value}"),
            value,
            shown: format!("{value} ms"),
            is_highlighted: value < 50.0,
        }
    }

    #[test]
    fn linear_bars_are_in_proportion_within_their_group() {
        let chart = chart(Scale::Linear, Range::Group, [&[100.0, 50.0], &[10.0]]);
        let part = |group: usize, value| chart.part(&chart.groups[group], value);
        assert_eq!(
            [part(0, 100.0), part(0, 50.0), part(1, 10.0)],
            [1.0, 0.5, 1.0]
        );
    }

    #[test]
    fn logarithmic_bars_show_magnitudes_over_the_whole_chart() {
        let chart = chart(Scale::Logarithmic, Range::Chart, [&[1.0, 10.0], &[100.0]]);
        let part = |value| chart.part(&chart.groups[0], value);
        assert!((part(1.0) - 0.1).abs() < 1e-9 && (part(100.0) - 1.0).abs() < 1e-9);
        assert!((part(10.0) - 0.55).abs() < 1e-9);
    }

    #[test]
    fn both_pictures_name_every_bar_and_its_value() {
        let chart = chart(Scale::Logarithmic, Range::Chart, [&[1000.0, 100.0], &[1.0]]);
        for picture in [chart.to_string(), chart.to_svg()] {
            for text in [
                "Title", "group 0", "group 1", "of 1000", "1000 ms", "100 ms", "1 ms",
            ] {
                assert!(picture.contains(text), "{text} in\n{picture}");
            }
        }
    }
}
