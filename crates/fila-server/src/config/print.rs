//! The configuration as a commented file.

use std::fmt::Write;

use super::keys::Section;
use super::sections::Config;

impl Config {
    /// Returns the configuration as TOML that, read again, gives the same configuration. Every key is there, with what
    /// it is for, what it may be, and its default.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for section in Section::ALL {
            if !text.is_empty() {
                text.push('\n');
            }
            push_line(&mut text, format_args!("# {}", section.doc()));
            push_line(&mut text, format_args!("[{}]", section.name()));
            for key in section.keys() {
                let (allowed, default) = (key.allowed(), key.default_toml());
                push_line(&mut text, format_args!("\n# {}", key.doc()));
                push_line(
                    &mut text,
                    format_args!("# Takes {allowed}; {default} by default."),
                );
                push_line(
                    &mut text,
                    format_args!("{} = {}", key.name(), key.toml(self)),
                );
            }
        }
        text
    }
}

fn push_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a string takes whatever is written to it");
}

/// Returns a text as a basic string of TOML.
pub(super) fn toml_string(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            c if c.is_control() => {
                write!(quoted, "\\u{:04X}", u32::from(c))
                    .expect("a string takes whatever is written to it");
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
