//! Attacks on the server's memory and patience, from outside, and what an honest client notices meanwhile.
//!
//! Each attack has a server of its own with the default limits. The attacker runs on a thread of its own:
//!
//! ```text
//! start ──▶ prepare ──▶ calm, measured ──▶ attack, measured ──▶ hang up ──▶ 10 s later
//!            memory: idle                   peak and end                     after
//! ```
//!
//! The figures are of any `fila` program, so those of two versions can be compared. An attack ends early when the server
//! takes more than `--memory-max`.

mod bodies;
mod floods;
mod log;
mod slow;
mod trial;
mod unread;

use std::path::PathBuf;

use anyhow::bail;
use lab::Table;

use self::trial::AttackReport;

#[derive(Debug, clap::Args)]
pub(crate) struct AttackArguments {
    /// The program to attack; the `fila` beside this program if absent
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Only the attack of this name; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Small attacks on a server with small limits, and only those that take seconds; fails if a bound is broken
    #[arg(long)]
    quick: bool,
    /// End an attack when the server takes more memory than this, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 3_072)]
    memory_max: u64,
}

/// The attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attack {
    StalledCalls,
    StalledConnections,
    LargeBatches,
    UnreadStreams,
    UnreadConsumers,
    HalfPrefaces,
    HalfRequests,
    SlowHeaders,
    SlowBodies,
    StuckLog,
    RapidResets,
    Pings,
    Settings,
}

impl Attack {
    const ALL: [Self; 13] = [
        Self::StalledCalls,
        Self::StalledConnections,
        Self::LargeBatches,
        Self::UnreadStreams,
        Self::UnreadConsumers,
        Self::HalfPrefaces,
        Self::HalfRequests,
        Self::SlowHeaders,
        Self::SlowBodies,
        Self::StuckLog,
        Self::RapidResets,
        Self::Pings,
        Self::Settings,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::StalledCalls => "stalled-calls",
            Self::StalledConnections => "stalled-connections",
            Self::LargeBatches => "large-batches",
            Self::UnreadStreams => "unread-streams",
            Self::UnreadConsumers => "unread-consumers",
            Self::HalfPrefaces => "half-prefaces",
            Self::HalfRequests => "half-requests",
            Self::SlowHeaders => "slow-headers",
            Self::SlowBodies => "slow-bodies",
            Self::StuckLog => "stuck-log",
            Self::RapidResets => "rapid-resets",
            Self::Pings => "pings",
            Self::Settings => "settings",
        }
    }

    /// Tells whether a short run shows something: an attack on a timeout takes as long as the timeout.
    fn is_quick(self) -> bool {
        match self {
            Self::StalledCalls
            | Self::LargeBatches
            | Self::UnreadStreams
            | Self::StuckLog
            | Self::RapidResets => true,
            Self::StalledConnections
            | Self::UnreadConsumers
            | Self::HalfPrefaces
            | Self::HalfRequests
            | Self::SlowHeaders
            | Self::SlowBodies
            | Self::Pings
            | Self::Settings => false,
        }
    }
}

pub(crate) async fn run(arguments: AttackArguments) -> anyhow::Result<()> {
    for name in &arguments.only {
        if !Attack::ALL.iter().any(|attack| attack.name() == name) {
            let names = Attack::ALL.map(Attack::name).join(", ");
            bail!("there is no attack `{name}`; choose of {names}");
        }
    }
    let chosen = |attack: &Attack| match arguments.only.as_slice() {
        [] => !arguments.quick || attack.is_quick(),
        names => names.iter().any(|name| name == attack.name()),
    };
    let setup = trial::AttackSetup {
        program: arguments.binary,
        is_quick: arguments.quick,
        memory_max: arguments.memory_max,
    };
    let mut table = Table::new(AttackReport::HEADER);
    let mut broken = 0;
    for attack in Attack::ALL.into_iter().filter(chosen) {
        eprintln!("{} …", attack.name());
        let report = trial::play(attack, &setup).await?;
        broken += report.faults().len();
        for fault in report.faults() {
            eprintln!("  BROKEN: {}: {fault}", attack.name());
        }
        table.row(report.cells());
    }
    print!("{table}");
    if broken > 0 {
        bail!("{broken} bounds were broken");
    }
    Ok(())
}
