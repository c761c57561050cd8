//! The figures as bar charts: rates on a linear scale, latencies on a logarithmic one.

use lab::{Bar, BarChart, BarGroup, Range, Scale};

use super::contestant::Contestant;
use super::figures::{Figures, Metric};

/// Draws one figure of all contestants that have it, for payloads of this size.
pub(crate) fn group(
    figures: &Figures,
    metric: Metric,
    size: usize,
    contestants: &[&'static Contestant],
) -> BarGroup {
    let (unit, scale) = match metric.unit() {
        "us" => ("µs, logarithmic", Scale::Logarithmic),
        unit => (unit, Scale::Linear),
    };
    let bars = contestants.iter().filter_map(|contestant| {
        let value = figures.median(metric, size, contestant.name)?;
        Some(Bar {
            label: contestant.name.to_owned(),
            value,
            shown: metric.show(value),
            is_highlighted: contestant.is_ours(),
        })
    });
    BarGroup {
        title: format!("{}, {size} bytes; {unit}", metric.name()),
        scale,
        bars: bars.collect(),
    }
}

/// Draws groups one below the other, each on its own scale.
pub(crate) fn draw(title: &str, groups: Vec<BarGroup>) -> String {
    let chart = BarChart {
        title: title.to_owned(),
        range: Range::Group,
        groups,
    };
    chart.to_svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::contestant;

    fn example(metric: Metric, values: [f64; 3]) -> BarGroup {
        let mut figures = Figures::default();
        let contestants: Vec<_> = contestant::ALL[3..6].iter().collect();
        for (contestant, value) in contestants.iter().zip(values) {
            figures.add(metric, 1024, contestant, value);
        }
        group(&figures, metric, 1024, &contestants)
    }

    #[test]
    fn rates_are_drawn_from_zero_and_latencies_by_their_magnitude() {
        assert_eq!(
            example(Metric::Produce, [3.0, 2.0, 1.0]).scale,
            Scale::Linear
        );
        assert_eq!(
            example(Metric::P99, [3.0, 2.0, 1.0]).scale,
            Scale::Logarithmic
        );
    }

    #[test]
    fn the_picture_names_every_contestant_and_every_figure() {
        let picture = draw(
            "Title",
            vec![example(Metric::Produce, [123_456.0, 50.0, 7.0])],
        );
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
