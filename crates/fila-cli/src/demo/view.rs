//! The demo on a terminal: both sides of a scene beside each other.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Paragraph, Wrap};

use super::record::{Figures, Moment, Share, TenantFigures, Wait};
use super::script::{Scene, Side, Unit};
use crate::bars::{Bar, bar};
use crate::terminal::Palette;
use crate::units;

/// The smallest window in which all text is readable.
pub(crate) const COLUMNS_MIN: u16 = 76;
pub(crate) const ROWS_MIN: u16 = 22;

/// The longest wait on the logarithmic scale, which begins at a millisecond.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// The content of the screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DemoFrame<'a> {
    /// The number of the scene, counted from 1.
    pub(crate) number: usize,
    pub(crate) of: usize,
    pub(crate) scene: &'a Scene,
    pub(crate) now: Moment,
    pub(crate) sides: &'a [Figures; 2],
}

pub(crate) fn draw(frame: &mut Frame<'_>, shown: &DemoFrame<'_>, palette: Palette) {
    let area = frame.area();
    if area.width < COLUMNS_MIN || area.height < ROWS_MIN {
        let text = format!("This needs {COLUMNS_MIN} columns and {ROWS_MIN} rows; q quits.");
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let rows = [
        Constraint::Length(1),
        Constraint::Length(3),
        Constraint::Fill(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ];
    let [head, sentence, sides, legend, keys] = Layout::vertical(rows).areas(area);
    frame.render_widget(header(shown, head.width, palette), head);
    let words = Paragraph::new(shown.scene.sentence.as_str()).wrap(Wrap { trim: true });
    frame.render_widget(words, sentence);
    let halves = [Constraint::Fill(1), Constraint::Fill(1)];
    let halves: [Rect; 2] = Layout::horizontal(halves).spacing(1).areas(sides);
    let both = shown.scene.sides.into_iter().zip(shown.sides);
    for ((side, figures), area) in both.zip(halves) {
        draw_side(frame, area, side, shown.scene, figures, palette);
    }
    let share = match shown.scene.unit {
        Unit::Messages => "█ share so far",
        Unit::Time => "█ share of time",
    };
    let text = format!("{share}   ┃ fair share   wait, from sending to a worker: p50, p99");
    frame.render_widget(Line::styled(text, palette.faint()), legend);
    frame.render_widget(
        Line::styled("q quit   space next scene", palette.faint()),
        keys,
    );
}

fn header(shown: &DemoFrame<'_>, width: u16, palette: Palette) -> Line<'static> {
    let DemoFrame {
        number, of, scene, ..
    } = shown;
    let left = format!("fila demo  {number}/{of}  {}", scene.title);
    let played = shown.now.min(scene.length).as_secs_f64();
    let length = scene.length.as_secs_f64();
    let cells: String = bar(Bar::of(played / length), 20);
    let right = format!("{cells} {played:>3.0} of {length:.0} s");
    let gap = usize::from(width).saturating_sub(left.chars().count() + right.chars().count());
    Line::from(vec![
        Span::styled(left, palette.strong()),
        Span::raw(" ".repeat(gap)),
        Span::styled(right, palette.accent()),
    ])
}

const LINES_PER_TENANT: u16 = 4;

/// The most lines of a bar.
const THICKNESS_MAX: u16 = 5;

fn draw_side(
    frame: &mut Frame<'_>,
    area: Rect,
    side: Side,
    scene: &Scene,
    figures: &Figures,
    palette: Palette,
) {
    let (title, style) = match side {
        Side::Fifo => (" FIFO: one line for all ", Style::new()),
        Side::Fair => (" Fila: a share for each ", palette.accent()),
        Side::Flat => (" flat: a share for each key ", Style::new()),
        Side::Groups => (" groups: a share for each tenant ", palette.accent()),
    };
    let rate = format!(" {} messages/s ", units::rate(figures.per_second));
    let block = Block::bordered()
        .border_style(style)
        .title(Line::styled(title, palette.strong()))
        .title_bottom(Line::raw(rate).right_aligned());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let width = usize::from(inner.width);
    // With enough room, an empty line separates tenants; with more, bars are thicker.
    let tenants = (scene.tenants.len() as u16).max(1);
    let is_roomy = inner.height + 1 >= tenants * LINES_PER_TENANT;
    let lines = (inner.height + 1) / tenants;
    let thickness = (lines.saturating_sub(2) / 2).clamp(1, THICKNESS_MAX);
    let served: u64 = figures.tenants.iter().map(|tenant| tenant.served).sum();
    let mut text = Text::default();
    for (tenant, figures) in scene.tenants.iter().zip(&figures.tenants) {
        let is_own_backlog = match scene.unit {
            Unit::Messages => figures.sent as f64 > figures.share.ideal * served as f64 + 2.0,
            Unit::Time => true,
        };
        if is_roomy && !text.lines.is_empty() {
            text.push_line("");
        }
        text.push_line(name_line(tenant.name, figures, width, palette));
        let share = share_line(figures.share, width, palette);
        let wait = wait_line(figures, width, is_own_backlog, palette);
        for line in [share, wait] {
            let further = (1..thickness).map(|_| only_bar(&line)).collect::<Vec<_>>();
            text.push_line(line);
            text.lines.extend(further);
        }
    }
    frame.render_widget(text, inner);
}

/// Returns the further lines of a thick bar, which have no words.
fn only_bar(line: &Line<'static>) -> Line<'static> {
    let blank = |span: &Span<'_>| Span::raw(" ".repeat(span.content.chars().count()));
    match &line.spans[..] {
        [name, cells, figures] => Line::from(vec![blank(name), cells.clone(), blank(figures)]),
        _ => Line::default(),
    }
}

fn name_line(name: &str, figures: &TenantFigures, width: usize, palette: Palette) -> Line<'static> {
    let count = format!(
        "{} served of {}",
        units::count(figures.served),
        units::count(figures.sent)
    );
    let gap = width.saturating_sub(name.chars().count() + count.chars().count());
    Line::from(vec![
        Span::styled(name.to_owned(), palette.strong()),
        Span::raw(" ".repeat(gap)),
        Span::raw(count),
    ])
}

fn share_line(share: Share, width: usize, palette: Palette) -> Line<'static> {
    let cells = bar(
        Bar::of(share.got).mark(share.ideal),
        width.saturating_sub(15),
    );
    // A share within a twentieth of its ideal counts as fair. Of a small share, the bar shows no more anyway.
    let is_fair = (share.got - share.ideal).abs() <= 0.05 * share.ideal.max(0.05);
    let style = if is_fair {
        palette.good()
    } else {
        palette.notable()
    };
    Line::from(vec![
        Span::raw(" share "),
        Span::styled(cells, style),
        Span::raw(format!("{:>8}", units::percent(share.got))),
    ])
}

fn wait_line(
    figures: &TenantFigures,
    width: usize,
    is_own_backlog: bool,
    palette: Palette,
) -> Line<'static> {
    let half = figures.wait_half.map(Wait::time).unwrap_or_default();
    let style = if is_own_backlog {
        palette.faint()
    } else if half < Duration::from_millis(100) {
        palette.good()
    } else if half < Duration::from_secs(1) {
        palette.notable()
    } else {
        palette.bad()
    };
    let cells = bar(Bar::of(on_scale(half)), width.saturating_sub(7 + 18));
    let texts = [figures.wait_half, figures.wait_most].map(|wait| format!("{:>9}", told(wait)));
    Line::from(vec![
        Span::raw(" wait  "),
        Span::styled(cells, style),
        Span::raw(texts.concat()),
    ])
}

fn told(wait: Option<Wait>) -> String {
    match wait {
        None => "–".to_owned(),
        Some(Wait::Over(time)) => units::time(time),
        Some(Wait::SoFar(time)) => format!("≥{}", units::time(time)),
    }
}

/// Returns the place of a wait on the scale, from 0 to 1.
fn on_scale(wait: Duration) -> f64 {
    let millis = (wait.as_secs_f64() * 1e3).max(1.0);
    (millis.ln() / (WAIT_MAX.as_secs_f64() * 1e3).ln()).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::script::{SECONDS, scenes};
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn figures(sent: u64, served: u64, got: f64, ideal: f64, waits: [Wait; 2]) -> TenantFigures {
        TenantFigures {
            sent,
            served,
            share: Share { got, ideal },
            wait_half: Some(waits[0]),
            wait_most: Some(waits[1]),
        }
    }

    fn sides() -> [Figures; 2] {
        let over = |half, most| [Wait::Over(ms(half)), Wait::Over(ms(most))];
        let so_far = |half, most| [Wait::SoFar(ms(half)), Wait::SoFar(ms(most))];
        let noisy = |waits| figures(50_000, 21_204, 0.9984, 0.9981, waits);
        let fifo = [
            noisy(so_far(4100, 5210)),
            figures(26, 0, 0.0, 0.0012, so_far(2612, 5104)),
            figures(26, 0, 0.0, 0.0012, so_far(2545, 5038)),
            figures(25, 0, 0.0, 0.0012, so_far(2478, 4971)),
        ];
        let fair = [
            noisy(so_far(4100, 5210)),
            figures(26, 26, 0.0012, 0.0012, over(2, 7)),
            figures(26, 26, 0.0012, 0.0012, over(3, 12)),
            figures(25, 25, 0.0012, 0.0012, over(2, 9)),
        ];
        [(fifo, 4081.0), (fair, 4069.0)].map(|(tenants, per_second)| Figures {
            tenants: tenants.into(),
            per_second,
            finished: None,
        })
    }

    fn screen(columns: u16, rows: u16, now: Duration) -> String {
        let scenes = scenes(Duration::from_secs(SECONDS));
        screen_of(&scenes, 1, &sides(), [columns, rows], now)
    }

    fn screen_of(
        scenes: &[Scene],
        number: usize,
        sides: &[Figures; 2],
        [columns, rows]: [u16; 2],
        now: Duration,
    ) -> String {
        let shown = DemoFrame {
            number,
            of: scenes.len(),
            scene: &scenes[number - 1],
            now,
            sides,
        };
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal
            .draw(|frame| draw(frame, &shown, Palette::Colour))
            .unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_scene_fits_the_smallest_common_window() {
        insta::assert_snapshot!(screen(80, 24, ms(5210)));
    }

    #[test]
    fn a_scene_uses_the_room_of_a_larger_window() {
        insta::assert_snapshot!(screen(120, 32, ms(15_400)));
    }

    #[test]
    fn a_scene_fills_a_large_window() {
        let shown = screen(160, 50, ms(15_400));
        let is_blank = |line: &str| line.trim_matches(['"', '│', ' ', ',']).is_empty();
        assert!(
            shown.lines().filter(|line| is_blank(line)).count() < 10,
            "{shown}"
        );
        insta::assert_snapshot!(shown);
    }

    #[test]
    fn a_split_is_shown_flat_beside_groups() {
        let waits = [Wait::SoFar(ms(2000)), Wait::SoFar(ms(3000))];
        let side = |split: u64, whole: u64| {
            let got = |served: u64| served as f64 / (split + 3 * whole) as f64;
            let of = |sent, served| figures(sent, served, got(served), 0.25, waits);
            let own = of(21_000, split);
            Figures {
                tenants: [own]
                    .into_iter()
                    .chain([0; 3].map(|_| of(5700, whole)))
                    .collect(),
                per_second: 2600.0,
                finished: None,
            }
        };
        let sides = [side(7977, 8), side(2000, 2000)];
        let scenes = scenes(Duration::from_secs(SECONDS));
        insta::assert_snapshot!(screen_of(&scenes, 5, &sides, [80, 24], ms(3000)));
    }

    #[test]
    fn a_window_that_is_too_small_says_so() {
        insta::assert_snapshot!(screen(40, 10, ms(0)));
    }

    #[test]
    fn the_scale_of_waits_grows_tenfold_by_equal_steps() {
        assert_eq!(on_scale(Duration::ZERO), 0.0);
        assert_eq!(on_scale(ms(1)), 0.0);
        let step = on_scale(ms(10));
        assert!((on_scale(ms(100)) - 2.0 * step).abs() < 1e-9);
        assert_eq!(on_scale(Duration::from_secs(60)), 1.0);
    }
}
