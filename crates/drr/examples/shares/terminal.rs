//! The figures as bars in the terminal.

use std::io::IsTerminal;

use crate::scenes::{Bar, Measure, Scene};

const WIDTH: usize = 40;

pub(crate) fn draw(scenes: &[Scene]) {
    let paint = Paint::new();
    for scene in scenes {
        println!("\n{}  {}", paint.bold(scene.title), scene.question);
        for row in &scene.rows {
            for (number, bar) in row.bars.iter().enumerate() {
                let name = if number == 0 { row.scheduler } else { "" };
                let (cells, text, good) = match scene.measure {
                    Measure::Share => share(bar),
                    Measure::Wait => wait(bar),
                };
                let cells = if good {
                    paint.green(&cells)
                } else {
                    paint.red(&cells)
                };
                println!("  {name:<14} {:<12} {cells} {text}", bar.label);
            }
        }
    }
    println!("\n  bars: what each got; ┃ what it should get; every figure was counted just now");
}

fn share(bar: &Bar) -> (String, String, bool) {
    let filled = (bar.value * WIDTH as f64).round() as usize;
    let mark = ((bar.ideal * WIDTH as f64).round() as usize).min(WIDTH - 1);
    let cell = |at: usize| match (at < filled, at == mark) {
        (_, true) => '┃',
        (true, false) => '█',
        (false, false) => '·',
    };
    let text = format!(
        "{:>5.1} % (ideal {:.1} %)",
        100.0 * bar.value,
        100.0 * bar.ideal
    );
    (
        (0..WIDTH).map(cell).collect(),
        text,
        (bar.value / bar.ideal - 1.0).abs() < 0.05,
    )
}

fn wait(bar: &Bar) -> (String, String, bool) {
    let filled = ((1.0 + bar.value).log10() / 5.0 * WIDTH as f64).round() as usize;
    let cells = (0..WIDTH)
        .map(|at| if at < filled { '█' } else { '·' })
        .collect();
    (cells, format!("{:>5}", bar.value), bar.value <= 10.0)
}

/// Colour, if the terminal shows it.
struct Paint {
    colour: bool,
}

impl Paint {
    fn new() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            colour: std::io::stdout().is_terminal() && !unwanted,
        }
    }

    fn with(&self, code: &str, text: &str) -> String {
        match self.colour {
            true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            false => text.to_owned(),
        }
    }

    fn bold(&self, text: &str) -> String {
        self.with("1", text)
    }

    fn green(&self, text: &str) -> String {
        self.with("32", text)
    }

    fn red(&self, text: &str) -> String {
        self.with("31", text)
    }
}
