//! The figures as a picture, readable on light and dark pages.

use lab::Svg;

use crate::scenes::{Bar, Measure, Row, Scene};

const WIDTH: f64 = 900.0;
const PANEL: f64 = 280.0;
const BARS: f64 = 150.0;
const LINE: f64 = 16.0;

pub(crate) fn draw(scenes: &[Scene]) -> String {
    let mut svg = Svg::new();
    let mut top = 12.0;
    for scene in scenes {
        top = panel(&mut svg, scene, top);
    }
    let legend = "Bars: what each got. Line: what it should get. Made by: cargo run -p drr --example shares -- --svg FILE";
    svg.text(16.0, top + 4.0, "", legend);
    let label = "Shares under FIFO, one task per visit, and drr";
    let style = ".s{font-weight:600}.b{fill:#d0d7de}.g{fill:#2da44e}.r{fill:#cf222e}.i{stroke:#1f2328;stroke-width:2}";
    svg.finish((WIDTH, top + 20.0), label, style)
}

fn panel(svg: &mut Svg, scene: &Scene, top: f64) -> f64 {
    svg.text(16.0, top + 14.0, "h", scene.title);
    let top = top + 24.0;
    let lines = scene.rows.iter().map(|row| row.bars.len()).max();
    for (column, row) in scene.rows.iter().enumerate() {
        let left = 16.0 + column as f64 * (PANEL + 12.0);
        rows(svg, scene.measure, row, left, top);
    }
    top + (lines.unwrap_or(0) as f64 + 1.0) * LINE + 22.0
}

fn rows(svg: &mut Svg, measure: Measure, row: &Row, left: f64, top: f64) {
    svg.text(left, top + 12.0, "s", row.scheduler);
    for (line, bar) in row.bars.iter().enumerate() {
        let y = top + (line as f64 + 1.0) * LINE + 4.0;
        let (part, is_good, label) = match measure {
            Measure::Share => (
                bar.value,
                (bar.value / bar.ideal - 1.0).abs() < 0.05,
                format!("{} · {:.1} %", bar.label, 100.0 * bar.value),
            ),
            Measure::Wait => (
                (1.0 + bar.value).log10() / 5.0,
                bar.value <= 10.0,
                format!("{} go first", bar.value),
            ),
        };
        let class = if is_good { "g" } else { "r" };
        svg.rect((left, y), (BARS, 11.0), "b");
        svg.rect((left, y), ((BARS * part).max(1.0), 11.0), class);
        if measure == Measure::Share {
            ideal(svg, left, y, bar);
        }
        svg.text(left + BARS + 8.0, y + 10.0, "", &label);
    }
}

fn ideal(svg: &mut Svg, left: f64, y: f64, bar: &Bar) {
    let x = left + BARS * bar.ideal;
    svg.line((x, y - 1.0), (x, y + 12.0), "i");
}
