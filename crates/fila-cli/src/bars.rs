//! Bars of characters.

/// A bar for a part of a whole, with a mark at its target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    part: f64,
    mark: Option<f64>,
}

impl Bar {
    /// Returns a bar of this length, from 0 to 1.
    pub(crate) fn of(part: f64) -> Self {
        Self { part, mark: None }
    }

    /// Sets the mark, from 0 to 1.
    pub(crate) fn mark(mut self, part: f64) -> Self {
        self.mark = Some(part);
        self
    }
}

/// Draws a bar of `width` characters.
pub(crate) fn bar(bar: Bar, width: usize) -> String {
    let cell = |part: f64| (part.clamp(0.0, 1.0) * width as f64).round() as usize;
    let filled = cell(bar.part);
    let mark = bar.mark.map(|mark| cell(mark).min(width.saturating_sub(1)));
    let cells = (0..width).map(|at| match (Some(at) == mark, at < filled) {
        (true, _) => '┃',
        (false, true) => '█',
        (false, false) => '·',
    });
    cells.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_a_part_and_where_it_should_end() {
        assert_eq!(bar(Bar::of(0.5), 8), "████····");
        assert_eq!(bar(Bar::of(0.25).mark(0.5), 8), "██··┃···");
        assert_eq!(bar(Bar::of(0.5).mark(0.25), 8), "██┃█····");
        assert_eq!(bar(Bar::of(1.0).mark(1.0), 4), "███┃");
        assert_eq!(bar(Bar::of(7.0), 3), "███");
        assert_eq!(bar(Bar::of(f64::NAN).mark(0.0), 3), "┃··");
        assert_eq!(bar(Bar::of(0.5).mark(0.5), 0), "");
    }
}
