//! The figures as pictures: bars for each piece of work, and latency on a logarithmic scale. Readable on light and dark pages.

use std::fmt::{self, Write};

use super::contestant::Contestant;
use super::figures::{Figures, Metric};

const LABELS: f64 = 130.0;
const BAR: f64 = 420.0;
const WIDTH: f64 = 680.0;
const ROW: f64 = 18.0;

/// How long a bar is for its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    /// From the least to the largest, where they are orders of magnitude apart.
    Logarithmic,
}

/// Bars under a title.
#[derive(Debug)]
pub(crate) struct Panel {
    title: String,
    scale: Scale,
    bars: Vec<Bar>,
}

#[derive(Debug)]
struct Bar {
    label: &'static str,
    value: f64,
    shown: String,
    is_ours: bool,
}

impl Panel {
    /// Makes a panel of one figure of all who have it.
    pub(crate) fn new(
        figures: &Figures,
        metric: Metric,
        size: usize,
        contestants: &[&'static Contestant],
    ) -> Self {
        let (unit, scale) = match metric.unit() {
            "us" => ("µs, logarithmic", Scale::Logarithmic),
            unit => (unit, Scale::Linear),
        };
        let bars = contestants.iter().filter_map(|contestant| {
            let value = figures.median(metric, size, contestant.name)?;
            Some(Bar {
                label: contestant.name,
                value,
                shown: metric.show(value),
                is_ours: contestant.is_ours(),
            })
        });
        Self {
            title: format!("{}, {size} bytes; {unit}", metric.name()),
            scale,
            bars: bars.collect(),
        }
    }

    /// Returns the part of the longest bar that a value gets.
    fn part(&self, value: f64) -> f64 {
        let values = self.bars.iter().map(|bar| bar.value.max(1e-9));
        let most = values.clone().fold(1e-9, f64::max);
        match self.scale {
            Scale::Linear => value / most,
            Scale::Logarithmic => {
                let least = values.fold(f64::INFINITY, f64::min);
                let part = (value.max(1e-9) / least).ln() / (most / least).ln().max(1e-9);
                0.1 + 0.9 * part.clamp(0.0, 1.0)
            }
        }
    }

    fn draw(&self, svg: &mut String, top: f64) -> Result<f64, fmt::Error> {
        let mut y = top;
        let title = &self.title;
        writeln!(svg, "<text class=\"t\" x=\"12\" y=\"{y}\">{title}</text>")?;
        for bar in &self.bars {
            y += ROW;
            let length = (self.part(bar.value) * BAR).max(1.0);
            let class = if bar.is_ours { "o" } else { "p" };
            let (label, shown) = (bar.label, &bar.shown);
            writeln!(svg, "<text x=\"24\" y=\"{y}\">{label}</text>")?;
            writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{LABELS}\" y=\"{:.0}\" width=\"{length:.1}\" height=\"13\"/>",
                y - 11.0
            )?;
            writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{y}\">{shown}</text>",
                LABELS + length + 6.0
            )?;
        }
        Ok(y + 2.0 * ROW)
    }
}

/// Draws panels one below the other, as a picture that stands by itself.
pub(crate) fn draw(title: &str, panels: &[Panel]) -> String {
    let mut body = String::new();
    let mut y = 56.0;
    for panel in panels.iter().filter(|panel| !panel.bars.is_empty()) {
        y = panel
            .draw(&mut body, y)
            .expect("writing to a string does not fail");
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\" viewBox=\"0 0 {WIDTH} {y}\" role=\"img\" \
         aria-label=\"{title}\">\n<style>text{{font:12px system-ui,sans-serif;fill:#1f2328}}.h{{font-weight:600;font-size:14px}}\
         .t{{font-weight:600}}.o{{fill:#2f7ebc}}.p{{fill:#b9b9b9}}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#ffffff\"/>\n\
         <text class=\"h\" x=\"12\" y=\"26\">{title}</text>\n{body}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::contestant;

    fn panel(metric: Metric, values: [f64; 3]) -> Panel {
        let mut figures = Figures::default();
        let contestants: Vec<_> = contestant::ALL[3..6].iter().collect();
        for (contestant, value) in contestants.iter().zip(values) {
            figures.add(metric, 1024, contestant, value);
        }
        Panel::new(&figures, metric, 1024, &contestants)
    }

    #[test]
    fn rates_are_drawn_from_zero_and_latencies_by_their_magnitude() {
        let rates = panel(Metric::Produce, [100.0, 50.0, 25.0]);
        assert_eq!(
            [100.0, 50.0, 25.0].map(|rate| rates.part(rate)),
            [1.0, 0.5, 0.25]
        );
        let times = panel(Metric::P99, [1.0, 10.0, 100.0]);
        assert!((times.part(1.0) - 0.1).abs() < 1e-9 && (times.part(100.0) - 1.0).abs() < 1e-9);
        assert!((times.part(10.0) - 0.55).abs() < 1e-9);
    }

    #[test]
    fn the_picture_names_everybody_and_every_figure() {
        let picture = draw("Title", &[panel(Metric::Produce, [123_456.0, 50.0, 7.0])]);
        for text in [
            "Title",
            "fila-memory",
            "nats",
            "redis-everysec",
            "123,456",
            "messages/s",
        ] {
            assert!(picture.contains(text), "{text} in\n{picture}");
        }
    }
}
