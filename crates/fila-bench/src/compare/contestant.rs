//! The servers that are compared, with their settings and the meaning of their confirmations.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::driver::Driver;
use super::fila::{Fila, Way};

/// A server with one set of settings.
#[derive(Debug)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    kind: Kind,
    /// The settings of this measurement.
    pub(crate) setting: &'static str,
    /// Where a message is when the server confirms it.
    pub(crate) confirms: &'static str,
    /// The failures that a confirmed message survives.
    pub(crate) survives: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fila(&'static str, Way),
    Nats,
    Redis(&'static str),
    RabbitClassic,
    RabbitQuorum,
}

/// The contestant that all others are compared with.
pub(crate) const OURS: &str = "fila-fsync";

/// Directories of programs that are often not in the path.
const PLACES: [&str; 2] = ["/usr/sbin", "/usr/local/bin"];

const KILL_AND_POWER: &str = "kill -9 and power cuts";
const KILL: &str = "kill -9";

pub(crate) const ALL: [Contestant; 9] = [
    Contestant {
        name: OURS,
        kind: Kind::Fila("fsync", Way::Sdk),
        setting: "defaults, ten fairness keys, fila-sdk",
        confirms: "synced to the disk, in groups",
        survives: KILL_AND_POWER,
    },
    Contestant {
        name: "fila-streams",
        kind: Kind::Fila("fsync", Way::Streams),
        setting: "defaults, ten fairness keys, gRPC streams by hand",
        confirms: "synced to the disk, in groups",
        survives: KILL_AND_POWER,
    },
    Contestant {
        name: "fila-os",
        kind: Kind::Fila("os", Way::Sdk),
        setting: "durability = os, ten fairness keys, fila-sdk",
        confirms: "with the operating system",
        survives: KILL,
    },
    Contestant {
        name: "fila-memory",
        kind: Kind::Fila("memory", Way::Sdk),
        setting: "durability = memory, ten fairness keys, fila-sdk",
        confirms: "in the process",
        survives: "nothing",
    },
    Contestant {
        name: "nats",
        kind: Kind::Nats,
        setting: "JetStream, file store, work queue, its default sync",
        confirms: "with the operating system, synced every two minutes",
        survives: KILL,
    },
    Contestant {
        name: "redis-everysec",
        kind: Kind::Redis("everysec"),
        setting: "Streams with a group, append-only file, appendfsync everysec",
        confirms: "with the operating system, synced each second",
        survives: KILL,
    },
    Contestant {
        name: "redis-always",
        kind: Kind::Redis("always"),
        setting: "Streams with a group, append-only file, appendfsync always",
        confirms: "synced to the disk, in groups",
        survives: KILL_AND_POWER,
    },
    Contestant {
        name: "rabbit-classic",
        kind: Kind::RabbitClassic,
        setting: "durable classic queue v2, persistent, confirms",
        confirms: "with the operating system",
        survives: KILL,
    },
    Contestant {
        name: "rabbit-quorum",
        kind: Kind::RabbitQuorum,
        setting: "quorum queue of one member, confirms",
        confirms: "synced to the disk, in groups",
        survives: KILL_AND_POWER,
    },
];

impl Contestant {
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Fila(..))
    }

    /// Tells whether a name selects this contestant: its full name or a prefix.
    pub(crate) fn is_meant_by(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// Returns its version.
    ///
    /// # Errors
    /// The reason why it cannot be measured.
    pub(crate) fn version(&self) -> Result<String, String> {
        if !self.is_ours() && !cfg!(feature = "peers") {
            return Err("its client is not built in; add `--features peers`".to_owned());
        }
        let missing = |program| format!("{program} is not installed; see scripts/peers");
        match self.kind {
            Kind::Fila(..) => Ok(env!("CARGO_PKG_VERSION").to_owned()),
            Kind::Nats => said("nats-server").ok_or_else(|| missing("nats-server")),
            Kind::Redis(_) => said("redis-server").ok_or_else(|| missing("redis-server")),
            Kind::RabbitClassic | Kind::RabbitQuorum => {
                let mut releases = std::fs::read_dir("/usr/lib/rabbitmq/lib")
                    .into_iter()
                    .flatten();
                let release = releases.find_map(|release| {
                    let name = release.ok()?.file_name().into_string().ok()?;
                    name.strip_prefix("rabbitmq_server-").map(str::to_owned)
                });
                release.ok_or_else(|| missing("rabbitmq-server"))
            }
        }
    }

    /// Starts it on a directory, possibly one from before a kill. Returns when it answers.
    pub(crate) async fn start(&self, directory: &Path) -> anyhow::Result<Box<dyn Driver>> {
        std::fs::create_dir_all(directory)?;
        Ok(match self.kind {
            Kind::Fila(level, way) => Box::new(Fila::start(directory, level, way)?),
            #[cfg(feature = "peers")]
            Kind::Nats => Box::new(super::nats::Nats::start(directory).await?),
            #[cfg(feature = "peers")]
            Kind::Redis(sync) => Box::new(super::redis::Redis::start(directory, sync).await?),
            #[cfg(feature = "peers")]
            Kind::RabbitClassic | Kind::RabbitQuorum => {
                use super::rabbit::{Queue, Rabbit};
                let queue = match self.kind == Kind::RabbitQuorum {
                    true => Queue::Quorum,
                    false => Queue::Classic,
                };
                Box::new(Rabbit::start(directory, queue).await?)
            }
            #[cfg(not(feature = "peers"))]
            _ => anyhow::bail!("{} is not built in", self.name),
        })
    }
}

/// Returns the path of a program, if it is installed.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::env::split_paths(&path).chain(PLACES.map(PathBuf::from));
    let mut programs = paths.map(|path| path.join(program));
    programs.find(|program| program.is_file())
}

/// Returns the version that a program prints.
fn said(program: &str) -> Option<String> {
    let output = Command::new(find(program)?).arg("--version").output();
    let output = String::from_utf8(output.ok()?.stdout).ok()?;
    let mut words = output.split_whitespace();
    let is_version = |word: &&str| word.contains('.') && word.chars().any(|it| it.is_ascii_digit());
    let version = words.find(is_version)?;
    Some(
        version
            .trim_start_matches("v=")
            .trim_start_matches('v')
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contestant_is_meant_by_its_name_and_by_its_family() {
        let meant = |name: &str| ALL.iter().filter(|it| it.is_meant_by(name)).count();
        assert_eq!(
            ["fila", "fila-os", "redis", "nats", "rabbit", "fil", ""].map(meant),
            [4, 1, 2, 1, 2, 0, 0]
        );
    }
}
