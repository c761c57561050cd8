//! The file: TOML, with the line and column of every value.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::draft::Draft;
use super::error::Location;
use super::keys::{Key, Section};
use super::kinds::Given;

/// The largest file that is read: hundreds of times what all keys need.
const FILE_MAX: u64 = 1 << 20;

/// Returns the text of a file.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    // One byte beyond the bound shows that the file is too large.
    File::open(path)?
        .take(FILE_MAX + 1)
        .read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_MAX) {
        let message = format!("the file is larger than {FILE_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Sets the values of a TOML text.
///
/// Notes only the syntax errors of a text that is not TOML: a parser that goes on after an error guesses.
pub(super) fn apply(draft: &mut Draft, path: &Path, text: &str) {
    let (root, mut errors) = DeTable::parse_recoverable(text);
    errors.sort_by_key(|error| error.span().map(|span| span.start));
    let document = Document { path, text };
    for error in &errors {
        let location = document.location(error.span().map_or(0, |span| span.start));
        draft.note(location, error.message().replace('\n', ", "));
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
            let message = match (Section::find(name.get_ref()), value.get_ref()) {
                (Ok(section), DeValue::Table(table)) => {
                    self.apply_section(draft, section, table);
                    continue;
                }
                (Ok(section), _) => {
                    let section = section.name();
                    format!("`{section}` is a section; write `[{section}]`")
                }
                (Err(unknown), _) => match Key::all().find(|key| key.name() == name.get_ref()) {
                    Some(key) => {
                        let section = key.section().name();
                        format!("`{}` belongs below `[{section}]`", key.name())
                    }
                    None => unknown,
                },
            };
            draft.note(self.location(name.span().start), message);
        }
    }

    fn apply_section(&self, draft: &mut Draft, section: Section, table: &DeTable<'_>) {
        for (name, value) in in_order(table) {
            match section.find_key(name.get_ref()) {
                Ok(key) => {
                    let location = self.location(value.span().start);
                    draft.set(key, location, &Given::from_toml(value.get_ref()));
                }
                Err(unknown) => draft.note(self.location(name.span().start), unknown),
            }
        }
    }

    /// Returns the location of the character that begins at this byte.
    fn location(&self, offset: usize) -> Location {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Location::Position {
            file: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

type TableEntry<'a, 'i> = (&'a Spanned<Cow<'i, str>>, &'a Spanned<DeValue<'i>>);

/// Returns a table's entries in the order of the file.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<TableEntry<'a, 'i>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}
