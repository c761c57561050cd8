//! Pictures that stand by themselves, readable on light and dark pages.

use std::fmt::Write;

/// An SVG picture, drawn shape by shape. Classes name the styles that [`finish`](Self::finish) takes.
#[derive(Clone, Debug, Default)]
pub struct Svg {
    body: String,
}

impl Svg {
    /// Returns an empty picture.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes a text at a point on its base line.
    pub fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        self.shape(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
        ));
    }

    /// Draws a filled rectangle.
    pub fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str) {
        self.shape(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        ));
    }

    /// Draws a filled circle.
    pub fn circle(&mut self, (x, y): (f64, f64), radius: f64, class: &str) {
        self.shape(format_args!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"/>"
        ));
    }

    /// Draws a line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.shape(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    /// Returns the picture as a file: `label` says what it shows, `style` adds rules of CSS. The class `h` is a heading.
    #[must_use]
    pub fn finish(self, (width, height): (f64, f64), label: &str, style: &str) -> String {
        let (body, label) = (self.body, escape(label));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\" aria-label=\"{label}\">\n<style>text{{font:12px system-ui,sans-serif;fill:#1f2328}}\
             .h{{font-weight:600;font-size:14px}}{style}</style>\n\
             <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }

    fn shape(&mut self, shape: std::fmt::Arguments<'_>) {
        writeln!(self.body, "{shape}").expect("writing to a string does not fail");
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_every_shape_is_in_the_picture() {
        let mut svg = Svg::new();
        svg.text(1.0, 2.0, "h", "a < b & c");
        svg.rect((0.0, 0.0), (3.0, 4.0), "r");
        svg.circle((5.0, 6.0), 2.2, "c");
        svg.line((0.0, 0.0), (7.0, 8.0), "l");
        let picture = svg.finish((100.0, 50.0), "say \"it\"", ".r{fill:red}");
        for part in [
            "a &lt; b &amp; c",
            "width=\"3.0\"",
            "cx=\"5.0\"",
            "x2=\"7.0\"",
            "say &quot;it&quot;",
            ".r{fill:red}",
            "viewBox=\"0 0 100 50\"",
        ] {
            assert!(picture.contains(part), "{part} in\n{picture}");
        }
    }
}
