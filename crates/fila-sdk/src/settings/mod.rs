//! The settings of a client: from flags, else from the environment, else from a profile.
//!
//! Each setting is looked up by itself, so a flag changes one setting of a profile. The files for TLS are no use to an
//! address without TLS: such an address turns off the files of a lower level, and contradicts those of its own or a higher
//! one.

mod error;
mod names;
mod profiles;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use error::SettingsError;
pub use profiles::{Profile, Profiles};

use crate::client::{Client, ClientBuilder};
use crate::tls::{check_certificates, check_key};
use names::{
    ADDRESS_VARIABLE, CA_FILE, CA_FILE_VARIABLE, CERT_FILE, CERT_FILE_VARIABLE, CERT_KEY_FILE,
    CERT_KEY_FILE_VARIABLE, PROFILE_VARIABLE,
};
use profiles::{read, unusable};

/// The address of a server that runs on the same machine with its defaults.
const DEFAULT_ADDRESS: &str = "http://127.0.0.1:5555";

/// The settings of a client, as flags, environment and profile give them.
///
/// ```
/// use std::ffi::OsString;
/// use fila_sdk::{Settings, SettingsFlags};
///
/// # fn main() -> Result<(), fila_sdk::SettingsError> {
/// let mut flags = SettingsFlags::default();
/// flags.address = Some("https://broker.example:5555".to_owned());
/// let environment = |name: &str| match name {
///     "FILA_ADDR" => Some(OsString::from("127.0.0.1:5555")), // the flag goes before it
///     "FILA_CA_FILE" => Some(OsString::from("ca.pem")),
///     _ => None,
/// };
/// let settings = Settings::resolve(&flags, environment)?;
/// assert_eq!(settings.address, "https://broker.example:5555");
/// assert_eq!(settings.ca_file, Some("ca.pem".into()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The address of the server; `http://127.0.0.1:5555` if none is given.
    pub address: String,
    /// The certificates of the authorities to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificate of the client.
    pub cert_file: Option<PathBuf>,
    /// The private key of that certificate.
    pub cert_key_file: Option<PathBuf>,
    /// The profile in use.
    pub profile: Option<String>,
}

/// The settings that a program gets by its own flags. They go before all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingsFlags {
    /// The address of the server.
    pub address: Option<String>,
    /// The certificates of the authorities to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificate of the client.
    pub cert_file: Option<PathBuf>,
    /// The private key of that certificate.
    pub cert_key_file: Option<PathBuf>,
    /// The name of the profile.
    pub profile: Option<String>,
}

/// Where a setting comes from, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SettingLevel {
    Default,
    Profile,
    Environment,
    Flag,
}

type Chosen<T> = Option<(SettingLevel, T)>;

impl Settings {
    /// Returns the settings of the environment and of the profile in use.
    ///
    /// It reads the variables `FILA_ADDR`, `FILA_CA_FILE`, `FILA_CERT_FILE`, `FILA_CERT_KEY_FILE` and `FILA_PROFILE`.
    /// The profiles are in `fila/config.toml` of `XDG_CONFIG_HOME`, or else of `~/.config`.
    ///
    /// # Errors
    /// If the file of profiles has a mistake, or the settings contradict each other.
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::resolve(&SettingsFlags::default(), |name| std::env::var_os(name))
    }

    /// Returns the settings of these flags, of an environment, and of the profile in use. An empty variable counts as
    /// none.
    ///
    /// # Errors
    /// If the file of profiles has a mistake, or the settings contradict each other.
    pub fn resolve(
        flags: &SettingsFlags,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, SettingsError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
        let path = |name: &str| variable(name).map(PathBuf::from);
        let asked = flags.profile.clone().or_else(|| text(PROFILE_VARIABLE));
        let (name, profile) = find_profile(asked, Profiles::path(variable))?.unzip();
        let Profile {
            address,
            ca_file,
            cert_file,
            cert_key_file,
        } = profile.unwrap_or_default();
        let in_profile = Some(address).filter(|address| !address.is_empty());
        let address = choose(flags.address.clone(), text(ADDRESS_VARIABLE), in_profile);
        let address =
            address.unwrap_or_else(|| (SettingLevel::Default, DEFAULT_ADDRESS.to_owned()));
        let file = |setting, flag: &Option<PathBuf>, name, in_profile| {
            fitting(
                &address,
                setting,
                choose(flag.clone(), path(name), in_profile),
            )
        };
        let settings = Self {
            ca_file: file(CA_FILE, &flags.ca_file, CA_FILE_VARIABLE, ca_file)?,
            cert_file: file(CERT_FILE, &flags.cert_file, CERT_FILE_VARIABLE, cert_file)?,
            cert_key_file: file(
                CERT_KEY_FILE,
                &flags.cert_key_file,
                CERT_KEY_FILE_VARIABLE,
                cert_key_file,
            )?,
            address: address.1,
            profile: name,
        };
        settings.complete()
    }

    fn complete(self) -> Result<Self, SettingsError> {
        let (given, missing) = match (&self.cert_file, &self.cert_key_file) {
            (Some(_), None) => (CERT_FILE, CERT_KEY_FILE),
            (None, Some(_)) => (CERT_KEY_FILE, CERT_FILE),
            (Some(_), Some(_)) | (None, None) => return Ok(self),
        };
        Err(SettingsError::Incomplete { given, missing })
    }

    /// Begins to build a client with these settings. Reads the files.
    ///
    /// # Errors
    /// If a file cannot be read, or has no certificate or key.
    pub fn builder(&self) -> Result<ClientBuilder, SettingsError> {
        let mut builder = Client::builder(&self.address);
        if let Some(path) = &self.ca_file {
            builder = builder.ca_certificate(read_pem(path, check_certificates)?);
        }
        if let (Some(certificate), Some(key)) = (&self.cert_file, &self.cert_key_file) {
            let certificate = read_pem(certificate, check_certificates)?;
            builder = builder.client_certificate(certificate, read_pem(key, check_key)?);
        }
        Ok(builder)
    }
}

fn read_pem(
    path: &Path,
    check: impl Fn(&[u8]) -> Result<(), String>,
) -> Result<Vec<u8>, SettingsError> {
    let pem = read(path).map_err(|error| unusable(path, &error))?;
    match check(&pem) {
        Ok(()) => Ok(pem),
        Err(problem) => Err(unusable(path, &problem)),
    }
}

/// Returns the profile of this name, or else the default one, if there is one.
fn find_profile(
    asked: Option<String>,
    path: Option<PathBuf>,
) -> Result<Option<(String, Profile)>, SettingsError> {
    let mut profiles = match &path {
        Some(path) => Profiles::load(path)?,
        None => Profiles::default(),
    };
    let Some(name) = asked.or_else(|| profiles.default.take()) else {
        return Ok(None);
    };
    match profiles.all.remove(&name) {
        Some(profile) => Ok(Some((name, profile))),
        None => Err(SettingsError::UnknownProfile {
            name,
            path,
            known: profiles.all.into_keys().collect(),
        }),
    }
}

fn choose<T>(flag: Option<T>, variable: Option<T>, profile: Option<T>) -> Chosen<T> {
    let flag = flag.map(|value| (SettingLevel::Flag, value));
    let variable = variable.map(|value| (SettingLevel::Environment, value));
    let profile = profile.map(|value| (SettingLevel::Profile, value));
    flag.or(variable).or(profile)
}

/// Returns a file for TLS, if the address is one with TLS.
fn fitting(
    (address_level, address): &(SettingLevel, String),
    setting: &'static str,
    file: Chosen<PathBuf>,
) -> Result<Option<PathBuf>, SettingsError> {
    match file {
        Some((_, file)) if address.starts_with("https://") => Ok(Some(file)),
        Some((level, _)) if level >= *address_level => Err(SettingsError::PlainAddress {
            address: address.clone(),
            setting,
        }),
        Some(_) | None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A folder with a file of profiles, and the variables of a process.
    struct Environment {
        folder: tempfile::TempDir,
        variables: HashMap<&'static str, OsString>,
    }

    impl Environment {
        fn new(profiles: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("fila")).unwrap();
            std::fs::write(folder.path().join("fila/config.toml"), profiles).unwrap();
            let variables = HashMap::from([("XDG_CONFIG_HOME", folder.path().into())]);
            Self { folder, variables }
        }

        fn set(mut self, name: &'static str, value: &str) -> Self {
            self.variables.insert(name, value.into());
            self
        }

        fn resolve(
            &self,
            flags: impl FnOnce(&mut SettingsFlags),
        ) -> Result<Settings, SettingsError> {
            let mut given = SettingsFlags::default();
            flags(&mut given);
            Settings::resolve(&given, |name| self.variables.get(name).cloned())
        }

        fn plain(&self) -> Settings {
            self.resolve(|_| ()).unwrap()
        }
    }

    const PROFILES: &str = "default = 'prod'
        [profile.prod]
        address = 'https://prod:1'
        ca_file = 'prod.pem'
        [profile.local]
        address = 'http://localhost:1'";

    #[test]
    fn without_any_settings_it_is_the_server_of_this_machine() {
        let settings = Settings::resolve(&SettingsFlags::default(), |_| None).unwrap();
        assert_eq!(settings.address, "http://127.0.0.1:5555");
        assert_eq!((settings.ca_file, settings.profile), (None, None));
    }

    #[test]
    fn the_default_profile_is_used_unless_another_is_asked_for() {
        let environment = Environment::new(PROFILES);
        let settings = environment.plain();
        assert_eq!(settings.address, "https://prod:1");
        assert_eq!(settings.profile.as_deref(), Some("prod"));
        let ca = environment.folder.path().join("fila/prod.pem");
        assert_eq!(settings.ca_file, Some(ca));

        let environment = environment.set("FILA_PROFILE", "local");
        assert_eq!(environment.plain().address, "http://localhost:1");
        let flag = |flags: &mut SettingsFlags| flags.profile = Some("prod".to_owned());
        assert_eq!(environment.resolve(flag).unwrap().address, "https://prod:1");
    }

    #[test]
    fn flags_go_before_the_environment_and_that_before_the_profile() {
        let environment = Environment::new(PROFILES);
        assert_eq!(environment.plain().address, "https://prod:1");
        let environment = environment.set("FILA_ADDR", "https://variable:1");
        assert_eq!(environment.plain().address, "https://variable:1");
        let flag = |flags: &mut SettingsFlags| flags.address = Some("https://flag:1".to_owned());
        let settings = environment.resolve(flag).unwrap();
        assert_eq!(settings.address, "https://flag:1");
        assert!(settings.ca_file.unwrap().ends_with("fila/prod.pem"));

        let environment = environment.set("FILA_CA_FILE", "variable.pem");
        assert_eq!(environment.plain().ca_file, Some("variable.pem".into()));
        let flag = |flags: &mut SettingsFlags| flags.ca_file = Some("flag.pem".into());
        let settings = environment.resolve(flag).unwrap();
        assert_eq!(settings.ca_file, Some("flag.pem".into()));
    }

    #[test]
    fn an_empty_variable_is_none() {
        let environment = Environment::new(PROFILES)
            .set("FILA_ADDR", "")
            .set("FILA_PROFILE", "")
            .set("FILA_CA_FILE", "");
        let settings = environment.plain();
        assert_eq!(settings.address, "https://prod:1");
        assert!(settings.ca_file.unwrap().ends_with("fila/prod.pem"));
    }

    #[test]
    fn an_unknown_profile_is_an_error_that_lists_the_others() {
        let environment = Environment::new(PROFILES).set("FILA_PROFILE", "dev");
        let error = environment.resolve(|_| ()).unwrap_err().to_string();
        assert!(
            error.starts_with("there is no profile `dev` in `"),
            "{error}"
        );
        assert!(error.ends_with("; there are local, prod"), "{error}");
    }

    #[test]
    fn a_plain_address_turns_off_the_files_of_a_lower_level() {
        let environment = Environment::new(PROFILES).set("FILA_ADDR", "127.0.0.1:5555");
        assert_eq!(environment.plain().ca_file, None);
    }

    #[test]
    fn a_plain_address_contradicts_the_files_of_its_own_level() {
        let environment = Environment::new("")
            .set("FILA_ADDR", "broker:5555")
            .set("FILA_CA_FILE", "ca.pem");
        let error = environment.resolve(|_| ()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`ca_file` is set, but the address `broker:5555` is without TLS; write it with https://, or remove `ca_file`"
        );
        let environment = Environment::new("").set("FILA_CERT_FILE", "me.pem");
        let error = environment.resolve(|_| ()).unwrap_err();
        assert!(
            matches!(error, SettingsError::PlainAddress { .. }),
            "{error}"
        );
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let environment = Environment::new(PROFILES).set("FILA_CERT_FILE", "me.pem");
        let error = environment.resolve(|_| ()).unwrap_err().to_string();
        assert!(error.contains("without `cert_key_file`"), "{error}");
        let environment = environment.set("FILA_CERT_KEY_FILE", "me.key");
        assert_eq!(environment.plain().cert_key_file, Some("me.key".into()));
    }

    #[test]
    fn a_file_without_a_certificate_is_named() {
        let environment = Environment::new(PROFILES);
        let settings = environment.plain();
        let error = settings.builder().unwrap_err().to_string();
        assert!(error.contains("fila/prod.pem` cannot be used: "), "{error}");
        std::fs::write(settings.ca_file.as_ref().unwrap(), "no PEM").unwrap();
        let error = settings.builder().unwrap_err().to_string();
        assert!(error.contains("BEGIN CERTIFICATE"), "{error}");
    }
}
