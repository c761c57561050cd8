//! The runtime configuration: texts under keys that an operator can change while the server runs.

use std::str::FromStr;

use fila_proto::v1;

use crate::admin::{Admin, PAGE};
use crate::{Error, ErrorCode};

/// An entry of the runtime configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ConfigEntry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// The version. It grows with every change.
    pub version: u64,
}

impl ConfigEntry {
    /// Returns the value as a number, a boolean, or any other type that parses from text.
    ///
    /// # Errors
    /// If the value does not parse.
    pub fn parse<T: FromStr>(&self) -> Result<T, T::Err> {
        self.value.parse()
    }
}

/// The state of an entry that a change requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expected {
    /// Any state, including absent.
    #[default]
    Any,
    /// Absent.
    Absent,
    /// At this version.
    Version(u64),
}

/// The runtime configuration.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fila_sdk::Error> {
/// # let client = fila_sdk::testing::Broker::new().client();
/// use fila_sdk::Expected;
///
/// let admin = client.admin();
/// admin.set_config("throttle:api:rate", 10, Expected::Any).await?;
/// let rate = admin.config("throttle:api:rate").await?;
/// let rate: Option<f64> = rate.and_then(|entry| entry.parse().ok());
/// # let _ = rate;
/// # Ok(())
/// # }
/// ```
impl Admin {
    /// Sets an entry, if it is in the expected state, and returns it. The server answers when the entry is stored and
    /// in effect for all queues.
    ///
    /// # Errors
    /// If the server refuses the key or the value, or the entry is in another state
    /// ([`ConfigChanged`](ErrorCode::ConfigChanged)).
    pub async fn set_config(
        &self,
        key: &str,
        value: impl ToString,
        expected: Expected,
    ) -> Result<ConfigEntry, Error> {
        let request = v1::SetConfigRequest {
            key: key.to_owned(),
            value: value.to_string(),
            version: match expected {
                Expected::Any => None,
                Expected::Absent => Some(0),
                Expected::Version(version) => Some(version),
            },
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.set_config(request).await
        });
        Ok(ConfigEntry::from(answer.await?.entry.unwrap_or_default()))
    }

    /// Returns an entry; none if it is not set.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn config(&self, key: &str) -> Result<Option<ConfigEntry>, Error> {
        let request = v1::GetConfigRequest {
            key: key.to_owned(),
        };
        let answer = self.look(request, |mut admin, request| async move {
            admin.get_config(request).await
        });
        match answer.await {
            Ok(answer) => Ok(answer.entry.map(ConfigEntry::from)),
            Err(error) if error.code() == Some(ErrorCode::ConfigNotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns all entries whose keys begin with `prefix`, sorted by key. An empty prefix selects every entry.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn configs(&self, prefix: &str) -> Result<Vec<ConfigEntry>, Error> {
        let mut entries = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListConfigRequest {
                prefix: prefix.to_owned(),
                page_size: PAGE,
                page_token,
            };
            let page = self.look(request, |mut admin, request| async move {
                admin.list_config(request).await
            });
            let page = page.await?;
            entries.extend(page.entries.into_iter().map(ConfigEntry::from));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(entries);
            }
        }
    }

    /// Removes an entry. With a `version`, only if the entry still has this version.
    ///
    /// # Errors
    /// If the entry is not set ([`ConfigNotFound`](ErrorCode::ConfigNotFound)), or has another version.
    pub async fn delete_config(&self, key: &str, version: Option<u64>) -> Result<(), Error> {
        let request = v1::DeleteConfigRequest {
            key: key.to_owned(),
            version,
        };
        let answer = self.once(request, |mut admin, request| async move {
            admin.delete_config(request).await
        });
        answer.await.map(drop)
    }
}

impl From<v1::ConfigEntry> for ConfigEntry {
    fn from(wire: v1::ConfigEntry) -> Self {
        Self {
            key: wire.key,
            value: wire.value,
            version: wire.version,
        }
    }
}
