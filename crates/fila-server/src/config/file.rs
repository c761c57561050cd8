//! The file: TOML, every value with its line and column.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::draft::{Draft, unknown_key, unknown_section};
use super::error::{Place, Problem};
use super::given::Given;
use super::keys::{Key, Section};

/// The largest file that is read: hundreds of times what all keys need.
const FILE_MAX: u64 = 1 << 20;

/// Returns the text of a file.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    // One byte more than is allowed, to see whether there is more.
    File::open(path)?
        .take(FILE_MAX + 1)
        .read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_MAX) {
        let message = format!("the file is larger than {FILE_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Sets what a text in TOML says.
///
/// If it is no TOML, that alone is noted of it: what a parser guesses behind its first stumble is not what was meant.
pub(super) fn apply(draft: &mut Draft, path: &Path, text: &str) {
    let (root, mut errors) = DeTable::parse_recoverable(text);
    errors.sort_by_key(|error| error.span().map(|span| span.start));
    let document = Document { path, text };
    for error in &errors {
        let place = document.place(error.span().map_or(0, |span| span.start));
        let message = error.message().replace('\n', ", ");
        draft.note(Problem::new(place, message));
    }
    if errors.is_empty() {
        document.apply(draft, root.get_ref());
    }
}

struct Document<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Document<'_> {
    fn apply(&self, draft: &mut Draft, root: &DeTable<'_>) {
        for (name, value) in in_order(root) {
            let place = self.place(name.span().start);
            match (Section::find(name.get_ref()), value.get_ref()) {
                (Some(section), DeValue::Table(table)) => {
                    self.apply_section(draft, section, table);
                }
                (Some(section), _) => {
                    let section = section.name();
                    let message = format!("`{section}` is a section; write `[{section}]`");
                    draft.note(Problem::new(place, message));
                }
                (None, _) => {
                    let message = outside_of_sections(name.get_ref());
                    draft.note(Problem::new(place, message));
                }
            }
        }
    }

    fn apply_section(&self, draft: &mut Draft, section: Section, table: &DeTable<'_>) {
        for (name, value) in in_order(table) {
            match section.keys().find(|key| key.name() == name.get_ref()) {
                Some(key) => {
                    let place = self.place(value.span().start);
                    draft.set(key, place, &Given::from_toml(value.get_ref()));
                }
                None => {
                    let place = self.place(name.span().start);
                    draft.note(Problem::new(place, unknown_key(section, name.get_ref())));
                }
            }
        }
    }

    /// Returns the place of the character that begins at this byte.
    fn place(&self, offset: usize) -> Place {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place::Position {
            file: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

type Entry<'a, 'i> = (
    &'a Spanned<std::borrow::Cow<'i, str>>,
    &'a Spanned<DeValue<'i>>,
);

/// Returns a table's entries in the order in which they stand in the file.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Entry<'a, 'i>> {
    let mut entries: Vec<Entry<'a, 'i>> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}

/// Returns the message for a name that stands where only sections do.
fn outside_of_sections(name: &str) -> String {
    match Key::all().iter().find(|key| key.name() == name) {
        Some(key) => format!("`{name}` belongs below `[{}]`", key.section().name()),
        None => unknown_section(name),
    }
}
