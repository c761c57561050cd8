//! The figures as a picture, readable on light and dark pages.

use std::fmt::Write;

use crate::scenes::{Bar, Measure, Row, Scene};

const WIDTH: f64 = 900.0;
const PANEL: f64 = 280.0;
const BARS: f64 = 150.0;
const LINE: f64 = 16.0;

pub(crate) fn draw(scenes: &[Scene]) -> String {
    let mut body = String::new();
    let mut top = 12.0;
    for scene in scenes {
        top = panel(&mut body, scene, top);
    }
    let legend = "Bars: what each got. Line: what it should get. Made by: cargo run -p drr --example shares -- --svg FILE";
    text(&mut body, 16.0, top + 4.0, "", legend);
    top += 20.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{top}\" viewBox=\"0 0 {WIDTH} {top}\" \
         role=\"img\" aria-label=\"Shares under FIFO, one task per visit, and drr\">\n\
         <style>text{{font:12px system-ui,sans-serif;fill:#1f2328}}.t{{font-weight:600;font-size:14px}}\
         .s{{font-weight:600}}.b{{fill:#d0d7de}}.g{{fill:#2da44e}}.r{{fill:#cf222e}}\
         .i{{stroke:#1f2328;stroke-width:2}}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

fn panel(body: &mut String, scene: &Scene, top: f64) -> f64 {
    text(body, 16.0, top + 14.0, "t", scene.title);
    let top = top + 24.0;
    let lines = scene
        .rows
        .iter()
        .map(|row| row.bars.len())
        .max()
        .unwrap_or(0);
    for (column, row) in scene.rows.iter().enumerate() {
        rows(
            body,
            scene.measure,
            row,
            16.0 + column as f64 * (PANEL + 12.0),
            top,
        );
    }
    top + (lines as f64 + 1.0) * LINE + 22.0
}

fn rows(body: &mut String, measure: Measure, row: &Row, left: f64, top: f64) {
    text(body, left, top + 12.0, "s", row.scheduler);
    for (line, bar) in row.bars.iter().enumerate() {
        let y = top + (line as f64 + 1.0) * LINE + 4.0;
        let (part, good, label) = match measure {
            Measure::Share => {
                let good = (bar.value / bar.ideal - 1.0).abs() < 0.05;
                (
                    bar.value,
                    good,
                    format!("{} · {:.1} %", bar.label, 100.0 * bar.value),
                )
            }
            Measure::Wait => (
                (1.0 + bar.value).log10() / 5.0,
                bar.value <= 10.0,
                format!("{} go first", bar.value),
            ),
        };
        draw_bar(body, left, y, part, good);
        if measure == Measure::Share {
            ideal(body, left, y, bar);
        }
        text(body, left + BARS + 8.0, y + 10.0, "", &label);
    }
}

fn draw_bar(body: &mut String, left: f64, y: f64, part: f64, good: bool) {
    let class = if good { "g" } else { "r" };
    rect(body, left, y, BARS, "b");
    rect(body, left, y, (BARS * part).max(1.0), class);
}

fn rect(body: &mut String, x: f64, y: f64, width: f64, class: &str) {
    writeln!(
        body,
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width:.1}\" height=\"11\"/>"
    )
    .expect("memory");
}

fn ideal(body: &mut String, left: f64, y: f64, bar: &Bar) {
    let x = left + BARS * bar.ideal;
    let (from, to) = (y - 1.0, y + 12.0);
    writeln!(
        body,
        "<line class=\"i\" x1=\"{x:.1}\" y1=\"{from}\" x2=\"{x:.1}\" y2=\"{to}\"/>"
    )
    .expect("memory");
}

fn text(body: &mut String, x: f64, y: f64, class: &str, text: &str) {
    writeln!(
        body,
        "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>"
    )
    .expect("memory");
}
