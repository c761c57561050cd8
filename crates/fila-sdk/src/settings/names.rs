//! The names of settings: fields of a profile, and variables.

pub(super) const ADDRESS: &str = "address";
pub(super) const CA_FILE: &str = "ca_file";
pub(super) const CERT_FILE: &str = "cert_file";
pub(super) const CERT_KEY_FILE: &str = "cert_key_file";

pub(super) const PROFILE_FIELDS: [&str; 4] = [ADDRESS, CA_FILE, CERT_FILE, CERT_KEY_FILE];

pub(super) const ADDRESS_VARIABLE: &str = "FILA_ADDR";
pub(super) const CA_FILE_VARIABLE: &str = "FILA_CA_FILE";
pub(super) const CERT_FILE_VARIABLE: &str = "FILA_CERT_FILE";
pub(super) const CERT_KEY_FILE_VARIABLE: &str = "FILA_CERT_KEY_FILE";
pub(super) const PROFILE_VARIABLE: &str = "FILA_PROFILE";
