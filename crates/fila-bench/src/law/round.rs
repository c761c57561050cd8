//! One round: two servers, quiet tenants on the first, and the noisy tenant on one of the two.

use std::path::Path;
use std::time::Duration;

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::{CreateQueueRequest, QueueSettings, SetConfigRequest};
use tempfile::TempDir;
use tokio::time::sleep;

use super::noise::{NOISY, Noise, NoiseCounts, NoiseKind, NoiseThread, OWN_QUEUE, TIMES};
use crate::client;
use crate::honest::{self, Honest, HonestFigures, HonestPlan, NoisyWork};
use crate::server::{Server, ServerLog, StartOptions};

/// The quiet tenants, and the messages that each sends in a second.
const TENANTS: u64 = 8;
const RATE: f64 = 20.0;

/// How long the load runs before it is measured: the noisy tenant fills its part of every pool.
const WARM_UP: Duration = Duration::from_secs(3);

/// The hook that the specification shows.
const SCRIPT: &str = r#"
function on_enqueue(msg)
  return {
    fairness_key = msg.headers["tenant"] or "default",
    weight = tonumber(msg.headers["priority"]) or 1,
    throttle_keys = { msg.headers["endpoint"] }
  }
end
"#;

/// The server that the noisy tenant sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// The one that the quiet tenants use.
    Noisy,
    /// The other one.
    Decoy,
}

#[derive(Debug)]
pub(super) struct RoundResult {
    pub(super) quiet: HonestFigures,
    pub(super) noise: NoiseCounts,
}

/// A server with the queues of a round, and the clients on it.
struct Place {
    server: Server,
    _directory: TempDir,
}

impl Place {
    async fn open(program: Option<&Path>, noise: Noise) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let settings = [
            "limits.delayed_per_queue=2000",
            "limits.deduplication_ids_per_queue=10000",
        ];
        let server = Server::start_with(
            directory.path(),
            StartOptions {
                program,
                settings: &settings.map(str::to_owned),
                log: ServerLog::Discarded,
                ..StartOptions::default()
            },
        )?;
        let channel = client::connect(&server.address).await?;
        let mut admin = FilaAdminClient::new(channel);
        for name in [honest::QUEUE, OWN_QUEUE] {
            let request = CreateQueueRequest {
                name: name.to_owned(),
                settings: Some(queue_settings(noise)),
            };
            admin.create_queue(request).await?;
        }
        let may = noise.rate() / TIMES;
        for (name, value) in [("rate", may), ("burst", may.max(1.0))] {
            let request = SetConfigRequest {
                key: format!("throttle:{NOISY}:{name}"),
                value: value.to_string(),
                version: None,
            };
            admin.set_config(request).await?;
        }
        Ok(Self {
            server,
            _directory: directory,
        })
    }
}

fn queue_settings(noise: Noise) -> QueueSettings {
    QueueSettings {
        depth_max: Some(noise.depth()),
        script: (noise.kind == NoiseKind::HostileHeaders).then(|| SCRIPT.to_owned()),
        ..QueueSettings::default()
    }
}

pub(super) async fn play(
    program: Option<&Path>,
    noise: Noise,
    aim: Aim,
    time: Duration,
) -> anyhow::Result<RoundResult> {
    let first = Place::open(program, noise).await?;
    let second = Place::open(program, noise).await?;
    let plan = |tenants| HonestPlan {
        tenants,
        rate: RATE,
        has_newcomers: false,
        noisy_work: match noise.kind {
            NoiseKind::Failing => NoisyWork::Fails,
            NoiseKind::None
            | NoiseKind::Flood
            | NoiseKind::Splitting
            | NoiseKind::HostileHeaders
            | NoiseKind::UnreadConsumers => NoisyWork::Succeeds,
        },
    };
    let quiet = Honest::start(&first.server.address, plan(TENANTS)).await?;
    // A worker, and no tenants.
    let _decoy = Honest::start(&second.server.address, plan(0)).await?;
    let place = match (noise.kind, aim) {
        (NoiseKind::None, _) | (_, Aim::Decoy) => &second,
        (_, Aim::Noisy) => &first,
    };
    let mut noisy = NoiseThread::start(noise, place.server.address.clone())?;
    noisy.connected().await?;
    sleep(WARM_UP).await;
    quiet.begin();
    sleep(time).await;
    let figures = quiet.figures();
    Ok(RoundResult {
        quiet: figures,
        noise: noisy.end().await?,
    })
}
