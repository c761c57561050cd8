//! The live view: the server's line, its queues, and the keys of one of them.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Row, Table, TableState};

use super::columns::{
    Column, KEY_COLUMNS, QUEUE_COLUMNS, TopLayout, key_cells, keys_title, queue_cells, server,
};
use super::sample::{KeyRow, QueueRow, Sample};
use super::state::{Direction, Focus, Order, Pane, Refresh, State, Typing};
use crate::bars::{Bar, bar};
use crate::output::{LeftOut, printable};
use crate::terminal::Palette;
use crate::wrap::wrap;

/// The width of bars, where there is room for them.
const BAR: u16 = 20;
const COLUMNS_WITH_BARS: u16 = 120;

/// The content of the screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopFrame<'a> {
    pub(crate) address: &'a str,
    /// The latest sample; none before the first.
    pub(crate) sample: Option<&'a Sample>,
    pub(crate) state: &'a State,
    /// Rows in display order.
    pub(crate) queues: &'a [QueueRow],
    pub(crate) keys: &'a [KeyRow],
    /// Why the last sample failed.
    pub(crate) trouble: Option<&'a str>,
}

pub(crate) fn draw(frame: &mut Frame<'_>, shown: &TopFrame<'_>, palette: Palette) {
    let queues = u16::try_from(shown.queues.len()).unwrap_or(u16::MAX);
    let (text, style) = header(shown, palette);
    let lines = wrap(&text, frame.area().width.into());
    let rows = [
        Constraint::Length(lines.len() as u16),
        // As many queues as there are, up to half of the room.
        Constraint::Length(
            queues
                .saturating_add(3)
                .clamp(4, (frame.area().height / 2).max(4)),
        ),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [head, queues, keys, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Text::from_iter(lines).style(style), head);
    draw_queues(frame, queues, shown, palette);
    draw_keys(frame, keys, shown, palette);
    frame.render_widget(footer(shown.state, palette), foot);
}

fn header(shown: &TopFrame<'_>, palette: Palette) -> (String, Style) {
    let address = shown.address;
    match (shown.trouble, shown.sample) {
        (Some(trouble), _) => {
            let text = format!("no answer from {address}, trying again ({trouble})");
            (printable(&text), palette.bad())
        }
        (None, None) => (format!("asking {address}"), Style::new()),
        (None, Some(sample)) if !sample.server.writable => (server(address, sample), palette.bad()),
        (None, Some(sample)) => (server(address, sample), palette.strong()),
    }
}

fn draw_queues(frame: &mut Frame<'_>, area: Rect, shown: &TopFrame<'_>, palette: Palette) {
    let pane = &shown.state.queues;
    let is_focused = shown.state.focus == Focus::Queues;
    let title = match shown.sample {
        Some(_) => format!("queues: {}", crate::units::count(shown.queues.len() as u64)),
        None => "queues".to_owned(),
    };
    let texts: Vec<_> = shown.queues.iter().map(queue_cells).collect();
    let layout = QUEUE_COLUMNS.layout(&texts, inner_width(area));
    let rows = texts
        .iter()
        .map(|texts| Row::new(cells(&layout, texts, Style::new())));
    let table = Table::new(rows, widths(&layout, &QUEUE_COLUMNS.all))
        .header(Row::new(titles(
            &layout,
            &QUEUE_COLUMNS.all,
            pane.order.name(),
            palette,
        )))
        .block(frame_of(&title, pane, is_focused, area.width, palette))
        .row_highlight_style(palette.cursor());
    let mut chosen = TableState::new().with_selected(pane.chosen_among(shown.queues));
    frame.render_stateful_widget(table, area, &mut chosen);
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, shown: &TopFrame<'_>, palette: Palette) {
    let pane = &shown.state.keys;
    let is_focused = shown.state.focus == Focus::Keys;
    let listing = shown.state.listing;
    let title = match shown.sample {
        Some(sample) => keys_title(sample, listing),
        None => listing.name().to_owned(),
    };
    let has_bars = area.width >= COLUMNS_WITH_BARS;
    let texts: Vec<_> = shown.keys.iter().map(key_cells).collect();
    let bars = if has_bars { usize::from(BAR) + 1 } else { 0 };
    let layout = KEY_COLUMNS.layout(&texts, inner_width(area).saturating_sub(bars));
    let rows = shown.keys.iter().zip(&texts).map(|(row, texts)| {
        let share = share_style(row, palette);
        let mut line = cells(&layout, texts, share);
        if has_bars {
            line.push(Cell::new(share_bar(row)).style(share));
        }
        Row::new(line)
    });
    let mut widths = widths(&layout, &KEY_COLUMNS.all);
    let mut titles = titles(&layout, &KEY_COLUMNS.all, pane.order.name(), palette);
    if has_bars {
        widths.push(Constraint::Length(BAR));
        titles.push(Cell::new("share ┃ ideal").style(palette.faint()));
    }
    let table = Table::new(rows, widths)
        .header(Row::new(titles))
        .block(frame_of(&title, pane, is_focused, area.width, palette))
        .row_highlight_style(match is_focused {
            true => palette.cursor(),
            false => Style::new(),
        });
    let mut chosen = TableState::new().with_selected(pane.chosen_among(shown.keys));
    frame.render_stateful_widget(table, area, &mut chosen);
}

/// Marks a share that is a tenth off its ideal. The view cannot tell whether a key gets less because it has fewer
/// messages.
fn share_style(row: &KeyRow, palette: Palette) -> Style {
    match row.share.zip(row.ideal) {
        Some((share, ideal)) if (share - ideal).abs() <= 0.1 * ideal => palette.good(),
        Some(_) => palette.notable(),
        None => Style::new(),
    }
}

fn share_bar(row: &KeyRow) -> String {
    let Some(share) = row.share else {
        return String::new();
    };
    let shape = Bar::of(share);
    bar(
        row.ideal.map_or(shape, |ideal| shape.mark(ideal)),
        BAR.into(),
    )
}

/// Returns the width within a border.
fn inner_width(area: Rect) -> usize {
    area.width.saturating_sub(2).into()
}

/// Returns the cells of a row, with a style for its share.
fn cells(layout: &TopLayout, texts: &[String], share: Style) -> Vec<Cell<'static>> {
    let texts = layout.cells(|at| &texts[at]).into_iter();
    let cells = texts.zip(&layout.shown).map(|(text, &at)| {
        let cell = Cell::new(Text::raw(text).alignment(alignment(at)));
        match KEY_COLUMNS.all.get(at) {
            Some(("share", _)) => cell.style(share),
            _ => cell,
        }
    });
    cells.collect()
}

/// Returns the alignment of a column: names to the left, numbers to the right.
fn alignment(column: usize) -> Alignment {
    match column {
        0 => Alignment::Left,
        _ => Alignment::Right,
    }
}

fn titles(
    layout: &TopLayout,
    columns: &[Column],
    sorted_by: &str,
    palette: Palette,
) -> Vec<Cell<'static>> {
    let titles = layout.shown.iter().map(|&at| {
        let (title, _) = columns[at];
        let style = match title == sorted_by {
            true => palette.strong(),
            false => palette.faint(),
        };
        Cell::new(Text::raw(title).alignment(alignment(at))).style(style)
    });
    titles.collect()
}

fn widths(layout: &TopLayout, columns: &[Column]) -> Vec<Constraint> {
    let widths = layout.shown.iter().map(|&at| match at {
        0 => Constraint::Fill(1),
        _ => Constraint::Length(u16::try_from(columns[at].1).unwrap_or(u16::MAX)),
    });
    widths.collect()
}

fn frame_of<O: Order>(
    title: &str,
    pane: &Pane<O>,
    is_focused: bool,
    width: u16,
    palette: Palette,
) -> Block<'static> {
    let mut title = format!(" {title}, by {}", pane.order.name());
    if pane.direction == Direction::Reversed {
        title.push_str(" reversed");
    }
    if !pane.filter.is_empty() {
        title.push_str(&format!(", with `{}`", pane.filter));
    }
    title.push(' ');
    let title = LeftOut::Middle.shorten(&title, width.saturating_sub(2).into());
    let style = match is_focused {
        true => palette.accent(),
        false => palette.faint(),
    };
    Block::bordered()
        .border_style(style)
        .title(Line::styled(title, palette.strong()))
}

fn footer(state: &State, palette: Palette) -> Line<'static> {
    if state.typing == Typing::Filter {
        let filter = match state.focus {
            Focus::Queues => &state.queues.filter,
            Focus::Keys => &state.keys.filter,
        };
        return Line::styled(
            format!("filter: {filter}█   enter keep   esc clear"),
            palette.strong(),
        );
    }
    match state.refresh {
        Refresh::Running => Line::styled(
            "↑↓ row  ←→ pane  g groups  s sort  r reverse  / filter  d dead  p freeze  q quit",
            palette.faint(),
        ),
        Refresh::Frozen => Line::styled(
            "the screen is frozen, the server is not: p goes on  q quit",
            palette.notable(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use super::super::sample::{group_rows, key_rows, queue_rows};
    use super::super::samples::{long_names, two, with_groups};
    use super::super::state::Listing;
    use super::*;

    /// Draws two samples after these keys were pressed.
    fn screen(columns: u16, rows: u16, keys: &[KeyCode], trouble: Option<&str>) -> String {
        draw_samples(two(), columns, rows, keys, trouble)
    }

    fn draw_samples(
        samples: [Sample; 2],
        columns: u16,
        rows: u16,
        keys: &[KeyCode],
        trouble: Option<&str>,
    ) -> String {
        let [before, now] = samples;
        let mut state = State::default();
        state.queues.chosen = Some("orders".to_owned());
        let all = |state: &State| {
            (
                state
                    .queues
                    .arranged(queue_rows(Some(&before), &now, state.dead_letters)),
                state.keys.arranged(match state.listing {
                    Listing::Keys => key_rows(Some(&before), &now),
                    Listing::Groups => group_rows(Some(&before), &now),
                }),
            )
        };
        for &key in keys {
            let (queues, keys) = all(&state);
            state.press(key, &queues, &keys);
        }
        let (queues, keys) = all(&state);
        let shown = TopFrame {
            address: "http://127.0.0.1:5555",
            sample: Some(&now),
            state: &state,
            queues: &queues,
            keys: &keys,
            trouble,
        };
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        let draw_on = |frame: &mut Frame<'_>| draw(frame, &shown, Palette::Colour);
        terminal.draw(draw_on).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn queues_and_the_keys_of_one_fit_the_smallest_common_window() {
        insta::assert_snapshot!(screen(80, 24, &[], None));
    }

    #[test]
    fn a_wider_window_has_bars_of_shares() {
        insta::assert_snapshot!(screen(120, 20, &[KeyCode::Tab, KeyCode::Char('s')], None));
    }

    #[test]
    fn long_names_can_be_told_apart_at_every_width() {
        for columns in [80, 120, 200] {
            let shown = draw_samples(long_names(), columns, 24, &[], None);
            insta::assert_snapshot!(format!("long_names_{columns}"), shown);
        }
    }

    #[test]
    fn groups_take_the_place_of_keys_when_they_are_asked_for() {
        let keys = [KeyCode::Char('g')];
        let shown = draw_samples(with_groups(), 80, 16, &keys, None);
        insta::assert_snapshot!(shown);
    }

    #[test]
    fn dead_letters_are_a_column_until_they_are_asked_for() {
        assert!(!screen(80, 24, &[], None).contains("orders.dlq"));
        assert!(screen(80, 24, &[KeyCode::Char('d')], None).contains("orders.dlq"));
    }

    #[test]
    fn a_server_that_does_not_answer_is_tried_again() {
        let shown = screen(80, 12, &[], Some("connection refused"));
        assert!(
            shown.contains(
                "no answer from http://127.0.0.1:5555, trying again (connection refused)"
            )
        );
    }

    #[test]
    fn a_filter_is_seen_while_it_is_typed() {
        let keys = [KeyCode::Char('/'), KeyCode::Char('m')];
        let shown = screen(80, 12, &keys, None);
        assert!(shown.contains("filter: m█"), "{shown}");
        assert!(!shown.contains("orders  "), "{shown}");
    }

    #[test]
    fn a_frozen_screen_says_so() {
        assert!(screen(80, 12, &[KeyCode::Char('p')], None).contains("the screen is frozen"));
    }
}
