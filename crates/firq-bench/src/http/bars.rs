//! The tail latency of each tenant as bars, for the terminal and as SVG.
//!
//! The scale is logarithmic, from the least to the largest, since they are orders of magnitude apart.

use std::fmt::{self, Write};
use std::time::Duration;

/// How wide the widest bar is, in characters.
const COLUMNS: f64 = 50.0;
/// The same in the picture, in pixels.
const PIXELS: f64 = 420.0;
const ROW: usize = 18;
const LABELS: usize = 190;

/// Bars in groups, one group for each server.
#[derive(Debug, Default)]
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) groups: Vec<(&'static str, Vec<Bar>)>,
}

/// One tenant's.
#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) tenant: String,
    pub(crate) is_noisy: bool,
    pub(crate) p99: Duration,
}

impl Bars {
    /// Returns how long a bar is, from 0 to 1.
    fn length(&self, time: Duration) -> f64 {
        let all = self.groups.iter().flat_map(|(_, bars)| bars);
        let logs = all.map(|bar| bar.p99.as_secs_f64().max(1e-6).ln());
        let (least, most) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), log| {
            (least.min(log), most.max(log))
        });
        let part = (time.as_secs_f64().max(1e-6).ln() - least) / (most - least).max(1e-9);
        0.1 + 0.9 * part.clamp(0.0, 1.0)
    }

    /// Draws the bars as a picture that stands by itself.
    pub(crate) fn to_svg(&self) -> String {
        let rows: usize = self.groups.iter().map(|(_, bars)| bars.len() + 2).sum();
        let (width, height) = (LABELS + PIXELS as usize + 110, 50 + rows * ROW);
        let mut svg = String::new();
        let mut draw = || -> fmt::Result {
            writeln!(
                svg,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
                 viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">"
            )?;
            writeln!(
                svg,
                "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"
            )?;
            let title = &self.title;
            writeln!(
                svg,
                "<text x=\"12\" y=\"24\" font-size=\"14\" fill=\"#222222\">{title}</text>"
            )?;
            let mut y = 50;
            for (server, bars) in &self.groups {
                writeln!(
                    svg,
                    "<text x=\"12\" y=\"{y}\" font-weight=\"bold\" fill=\"#222222\">{server}</text>"
                )?;
                for bar in bars {
                    y += ROW;
                    let length = self.length(bar.p99) * PIXELS;
                    let colour = if bar.is_noisy { "#b9b9b9" } else { "#2f7ebc" };
                    let (top, end) = (y - 11, LABELS as f64 + length + 6.0);
                    let (tenant, time) = (&bar.tenant, millis(bar.p99));
                    writeln!(
                        svg,
                        "<text x=\"24\" y=\"{y}\" fill=\"#444444\">{tenant}</text>"
                    )?;
                    writeln!(
                        svg,
                        "<rect x=\"{LABELS}\" y=\"{top}\" width=\"{length:.0}\" height=\"13\" fill=\"{colour}\"/>"
                    )?;
                    writeln!(
                        svg,
                        "<text x=\"{end:.0}\" y=\"{y}\" fill=\"#444444\">{time}</text>"
                    )?;
                }
                y += 2 * ROW;
            }
            writeln!(svg, "</svg>")
        };
        draw().expect("writing to a string does not fail");
        svg
    }
}

impl fmt::Display for Bars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        for (server, bars) in &self.groups {
            writeln!(f, "{server}")?;
            for bar in bars {
                let length = (self.length(bar.p99) * COLUMNS).round() as usize;
                let stroke = if bar.is_noisy { "░" } else { "█" };
                writeln!(
                    f,
                    "  {:<22} {} {}",
                    bar.tenant,
                    stroke.repeat(length),
                    millis(bar.p99)
                )?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn millis(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    match millis {
        100.0.. => format!("{millis:.0} ms"),
        10.0.. => format!("{millis:.1} ms"),
        _ => format!("{millis:.2} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Bars {
        let bar = |tenant: &str, is_noisy, millis| Bar {
            tenant: tenant.to_owned(),
            is_noisy,
            p99: Duration::from_millis(millis),
        };
        Bars {
            title: "p99 of each tenant".to_owned(),
            groups: vec![
                (
                    "slow",
                    vec![bar("noisy", true, 1_000), bar("quiet", false, 100)],
                ),
                ("fast", vec![bar("quiet", false, 1)]),
            ],
        }
    }

    #[test]
    fn the_longest_bar_is_the_largest_value_and_the_scale_is_logarithmic() {
        let bars = example();
        let length = |millis| bars.length(Duration::from_millis(millis));
        assert!((length(1_000) - 1.0).abs() < 1e-9 && (length(1) - 0.1).abs() < 1e-9);
        assert!(((length(100) - length(10)) - (length(10) - length(1))).abs() < 1e-9);
    }

    #[test]
    fn both_pictures_name_every_tenant_and_its_time() {
        for picture in [example().to_string(), example().to_svg()] {
            for text in [
                "noisy", "quiet", "slow", "fast", "1000 ms", "100 ms", "1.00 ms",
            ] {
                assert!(picture.contains(text), "{text} in\n{picture}");
            }
        }
    }
}
