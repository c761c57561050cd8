//! What can be wrong with settings.

use std::path::PathBuf;

/// Why the settings of the flags, the environment or a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The file of profiles has a mistake.
    #[error("{}:{line}: {problem}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The line of the mistake; the first is 1.
        line: usize,
        /// The mistake, and what is allowed there.
        problem: String,
    },
    /// A file cannot be read, or has the wrong contents.
    #[error("`{}` cannot be used: {problem}", .path.display())]
    UnusableFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
    /// There is no profile of the wanted name.
    #[error("there is no profile `{name}`{}; {}", in_file(.path.as_ref()), known_profiles(.known))]
    UnknownProfile {
        /// The wanted name.
        name: String,
        /// The file of profiles; none if neither `XDG_CONFIG_HOME` nor `HOME` is set.
        path: Option<PathBuf>,
        /// The names in the file.
        known: Vec<String>,
    },
    /// A file for TLS is given, and the address is one without TLS.
    #[error(
        "`{setting}` is set, but the address `{address}` is without TLS; write it with https://, or remove `{setting}`"
    )]
    PlainAddress {
        /// The address.
        address: String,
        /// The setting of the file.
        setting: &'static str,
    },
    /// A certificate is given without its key, or a key without its certificate.
    #[error("`{given}` is set without `{missing}`; a client proves itself with both")]
    Incomplete {
        /// The setting that is there.
        given: &'static str,
        /// The setting that is not.
        missing: &'static str,
    },
}

fn in_file(path: Option<&PathBuf>) -> String {
    path.map_or_else(String::new, |path| format!(" in `{}`", path.display()))
}

fn known_profiles(known: &[String]) -> String {
    if known.is_empty() {
        return "add it with `fila profile add`".to_owned();
    }
    format!("there are {}", known.join(", "))
}
