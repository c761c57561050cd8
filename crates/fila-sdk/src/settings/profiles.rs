//! The file of profiles: TOML, read as a tree, so that every mistake has its line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::SettingsError;
use super::names::{ADDRESS, CA_FILE, CERT_FILE, CERT_KEY_FILE, PROFILE_FIELDS};

/// The largest file that is read: a bundle of all public authorities has a quarter of this.
const FILE_MAX: u64 = 1 << 20;

/// The file of profiles, `~/.config/fila/config.toml`.
///
/// ```
/// use std::path::Path;
/// use fila_sdk::Profiles;
///
/// # fn main() -> Result<(), fila_sdk::SettingsError> {
/// let text = r#"
///     default = "prod"
///
///     [profile.prod]
///     address = "https://broker.example:5555"
///     ca_file = "ca.pem"
/// "#;
/// let profiles = Profiles::parse(Path::new("/etc/fila/config.toml"), text)?;
/// let prod = &profiles.all["prod"];
/// assert_eq!(prod.address, "https://broker.example:5555");
/// assert_eq!(prod.ca_file.as_deref(), Some(Path::new("/etc/fila/ca.pem")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profiles {
    /// The profile that is used if none is asked for.
    pub default: Option<String>,
    /// All profiles, by name.
    pub all: BTreeMap<String, Profile>,
}

/// The settings of one server, by name. Its paths are relative to the working directory, or absolute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// The address of the server.
    pub address: String,
    /// The certificates of the authorities to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificate of the client.
    pub cert_file: Option<PathBuf>,
    /// The private key of that certificate.
    pub cert_key_file: Option<PathBuf>,
}

impl Profiles {
    /// Returns the path of the file: in `XDG_CONFIG_HOME`, or else in `.config` of `HOME`. None if neither is set.
    pub fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let folder = |name| variable(name).filter(|folder| !folder.is_empty());
        let config = folder("XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.or_else(|| Some(Path::new(&folder("HOME")?).join(".config")))?;
        Some(config.join("fila").join("config.toml"))
    }

    /// Reads a file. A file that does not exist has no profiles.
    ///
    /// # Errors
    /// If the file cannot be read, or has a mistake.
    pub fn load(path: &Path) -> Result<Self, SettingsError> {
        let bytes = match read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.map_err(|error| unusable(path, &error))?,
        };
        let text = String::from_utf8(bytes).map_err(|error| unusable(path, &error))?;
        Self::parse(path, &text)
    }

    /// Reads the text of the file at `path`, whose folder is the one that relative paths begin at.
    ///
    /// # Errors
    /// If the text is not TOML, has a field that is not known, or lacks one.
    pub fn parse(path: &Path, text: &str) -> Result<Self, SettingsError> {
        let source = ProfileSource { path, text };
        let root = DeTable::parse(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            source.mistake(offset, error.message().replace('\n', ", "))
        })?;
        source.profiles(root.get_ref())
    }
}

/// Reads a file of bounded size.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte beyond the bound shows that the file is too large.
    File::open(path)?
        .take(FILE_MAX + 1)
        .read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_MAX) {
        let message = format!("the file is larger than {FILE_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

pub(super) fn unusable(path: &Path, problem: &impl ToString) -> SettingsError {
    SettingsError::UnusableFile {
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}

/// The text of the file, for the lines of mistakes.
struct ProfileSource<'a> {
    path: &'a Path,
    text: &'a str,
}

impl ProfileSource<'_> {
    fn profiles(&self, root: &DeTable<'_>) -> Result<Profiles, SettingsError> {
        let mut profiles = Profiles::default();
        let mut default_at = 0;
        for (name, value) in root {
            match (&**name.get_ref(), value.get_ref()) {
                ("default", _) => {
                    default_at = value.span().start;
                    profiles.default = Some(self.text_of("default", value)?);
                }
                ("profile", DeValue::Table(all)) => profiles.all = self.all(all)?,
                ("profile", _) => {
                    let problem = "`profile` is a section; write `[profile.NAME]`".to_owned();
                    return Err(self.mistake(name.span().start, problem));
                }
                (unknown, _) => {
                    let problem =
                        format!("unknown field `{unknown}`; the fields are default, profile");
                    return Err(self.mistake(name.span().start, problem));
                }
            }
        }
        match &profiles.default {
            Some(default) if !profiles.all.contains_key(default) => {
                let problem = format!("`default` names `{default}`, which is no profile");
                Err(self.mistake(default_at, problem))
            }
            _ => Ok(profiles),
        }
    }

    fn all(&self, table: &DeTable<'_>) -> Result<BTreeMap<String, Profile>, SettingsError> {
        let mut all = BTreeMap::new();
        for (name, value) in table {
            let at = name.span().start;
            let name = name.get_ref();
            let DeValue::Table(fields) = value.get_ref() else {
                let problem = format!("a profile is a section; write `[profile.{name}]`");
                return Err(self.mistake(at, problem));
            };
            all.insert(name.to_string(), self.profile(name, at, fields)?);
        }
        Ok(all)
    }

    fn profile(&self, of: &str, at: usize, table: &DeTable<'_>) -> Result<Profile, SettingsError> {
        let mut profile = Profile::default();
        for (name, value) in table {
            let field = &**name.get_ref();
            match field {
                ADDRESS => profile.address = self.text_of(field, value)?,
                CA_FILE => profile.ca_file = Some(self.path_of(field, value)?),
                CERT_FILE => profile.cert_file = Some(self.path_of(field, value)?),
                CERT_KEY_FILE => profile.cert_key_file = Some(self.path_of(field, value)?),
                _ => {
                    let known = PROFILE_FIELDS.join(", ");
                    let problem = format!(
                        "unknown field `{field}` of profile `{of}`; the fields are {known}"
                    );
                    return Err(self.mistake(name.span().start, problem));
                }
            }
        }
        if profile.address.is_empty() {
            let problem = format!("profile `{of}` has no address; add `address = \"https://…\"`");
            return Err(self.mistake(at, problem));
        }
        Ok(profile)
    }

    fn path_of(&self, field: &str, value: &Spanned<DeValue<'_>>) -> Result<PathBuf, SettingsError> {
        let folder = self.path.parent().unwrap_or_else(|| Path::new(""));
        Ok(folder.join(self.text_of(field, value)?))
    }

    fn text_of(&self, field: &str, value: &Spanned<DeValue<'_>>) -> Result<String, SettingsError> {
        match value.get_ref() {
            DeValue::String(text) if !text.is_empty() => Ok(text.to_string()),
            _ => {
                let problem = format!("`{field}` must be text in quotes that is not empty");
                Err(self.mistake(value.span().start, problem))
            }
        }
    }

    fn mistake(&self, offset: usize, problem: String) -> SettingsError {
        let before = self.text.get(..offset).unwrap_or(self.text);
        SettingsError::File {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Profiles, String> {
        let parsed = Profiles::parse(Path::new("/home/me/fila/config.toml"), text);
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_has_profiles_and_a_default() {
        let profiles = parse(
            "default = 'local'\n[profile.local]\naddress = '127.0.0.1:5555'\n[profile.prod]\naddress = 'https://b:1'\n\
             ca_file = 'prod/ca.pem'\ncert_file = '/etc/me.pem'\ncert_key_file = '../me.key'\n",
        )
        .unwrap();
        assert_eq!(profiles.default.as_deref(), Some("local"));
        assert_eq!(profiles.all["local"].ca_file, None);
        let prod = Profile {
            address: "https://b:1".to_owned(),
            ca_file: Some("/home/me/fila/prod/ca.pem".into()),
            cert_file: Some("/etc/me.pem".into()),
            cert_key_file: Some("/home/me/fila/../me.key".into()),
        };
        assert_eq!(profiles.all["prod"], prod);
        assert_eq!(parse(""), Ok(Profiles::default()));
    }

    #[test]
    fn an_unknown_field_is_named_with_those_that_are_known() {
        assert_eq!(
            parse("[profile.prod]\naddress = 'b:1'\nca-file = 'ca.pem'").unwrap_err(),
            "/home/me/fila/config.toml:3: unknown field `ca-file` of profile `prod`; the fields are address, ca_file, \
             cert_file, cert_key_file"
        );
        assert_eq!(
            parse("\ndefualt = 'prod'").unwrap_err(),
            "/home/me/fila/config.toml:2: unknown field `defualt`; the fields are default, profile"
        );
    }

    #[test]
    fn every_mistake_has_its_line() {
        let line = |text| {
            let parsed = Profiles::parse(Path::new("config.toml"), text);
            match parsed.unwrap_err() {
                SettingsError::File { line, .. } => line,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(line("[profile.prod]\naddress = 'b:1"), 2, "no TOML");
        assert_eq!(
            line("[profile.a]\naddress = 'b'\n[profile.b]"),
            3,
            "no address"
        );
        assert_eq!(line("[profile.a]\naddress = 5"), 2, "no text");
        assert_eq!(line("[profile.a]\naddress = ''"), 2, "empty");
        assert_eq!(line("\n\ndefault = 'a'"), 3, "no such profile");
        assert_eq!(line("profile = 'a'"), 1, "no section");
        assert_eq!(line("[profile]\na = 'b:1'"), 2, "no section");
    }

    #[test]
    fn the_file_is_in_the_folder_for_configurations() {
        let path = |xdg: &str, home: &str| {
            Profiles::path(|name| match name {
                "XDG_CONFIG_HOME" => Some(xdg.into()),
                "HOME" => Some(home.into()),
                _ => None,
            })
        };
        let expected = |path: &str| Some(PathBuf::from(path));
        assert_eq!(path("/x", "/h"), expected("/x/fila/config.toml"));
        assert_eq!(path("", "/h"), expected("/h/.config/fila/config.toml"));
        assert_eq!(path("", ""), None);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("config.toml");
        assert_eq!(Profiles::load(&missing), Ok(Profiles::default()));
        let error = Profiles::load(folder.path()).unwrap_err();
        assert!(
            matches!(&error, SettingsError::UnusableFile { path, .. } if path == folder.path())
        );
    }
}
