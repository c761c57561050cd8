//! An operator that keeps changing weights and caps of keys, pausing and resuming, and the settings that must be there
//! after a crash. A queue or key that was paused before the server started stays paused until the operator resumes it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::{
    InspectQueueRequest, KeySettings, PauseQueueRequest, QueueInfo, ResumeQueueRequest,
    UpdateKeyRequest,
};
use tonic::Status;
use tonic::transport::Channel;

use super::account::Account;
use super::chance::Chance;
use super::consumer::Watch;
use super::traffic::{self, KEYS};

type Admin = FilaAdminClient<Channel>;

/// Something that is set, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    /// The weight of a key; 0 if producers say it.
    Weight(u64),
    /// How many of a key may be leased at once; 0 if the queue says it.
    Cap(u64),
    /// 1 if the key is paused.
    KeyPause(u64),
    /// 1 if the queue is paused.
    QueuePause,
}

/// The operator's books.
pub(crate) struct Operator {
    /// Whose keys are changed.
    pub(crate) keys_of: &'static str,
    pub(crate) first_key: u64,
    /// The queue that is paused as a whole.
    pub(crate) pauses: &'static str,
    accounts: BTreeMap<Setting, Account<u32>>,
    pub(crate) rules: Watch,
}

pub(crate) type Shared = Arc<Mutex<Operator>>;

/// The queue's cap of leased messages for each key, and the operator's: it sets one key's cap once, and another's again
/// and again.
pub(crate) const CAP: u32 = 3;
const CAP_FIXED: u32 = 2;
const CAP_MOST: u32 = 4;

impl Operator {
    pub(crate) fn new(
        keys_of: &'static str,
        first_key: u64,
        pauses: &'static str,
        rules: Watch,
    ) -> Self {
        Self {
            keys_of,
            first_key,
            pauses,
            accounts: BTreeMap::new(),
            rules,
        }
    }

    fn fixed(&self) -> Setting {
        Setting::Cap(self.first_key + 1)
    }

    /// Chooses what to set, and how.
    fn choose(&self, chance: &mut Chance) -> (Setting, u32) {
        match chance.below(8) {
            0..3 => {
                let key = self.first_key + chance.below(KEYS);
                (Setting::Weight(key), chance.below(6) as u32)
            }
            3..5 => {
                let cap = chance.below(u64::from(CAP_MOST) + 1) as u32;
                (Setting::Cap(self.first_key + 2), cap)
            }
            5..7 => (
                Setting::KeyPause(self.first_key + 3),
                chance.below(2) as u32,
            ),
            _ => (Setting::QueuePause, chance.below(2) as u32),
        }
    }

    /// Writes down what is about to be sent.
    fn begin(&mut self, setting: Setting, value: u32) {
        self.accounts.entry(setting).or_default().begin(value);
        if value == 0 {
            self.bar(setting, false);
        }
    }

    fn confirm(&mut self, setting: Setting) {
        self.accounts.entry(setting).or_default().confirm();
    }

    /// Says that nothing may be delivered of what this setting pauses, or that it may again.
    fn bar(&self, setting: Setting, is_barred: bool) {
        let bar = match setting {
            Setting::KeyPause(key) => (self.keys_of, Some(key)),
            Setting::QueuePause => (self.pauses, None),
            Setting::Weight(_) | Setting::Cap(_) => return,
        };
        self.rules.lock().unwrap().bar(bar, is_barred);
    }

    pub(crate) fn changes(&self) -> u64 {
        self.accounts.values().map(|account| account.changes).sum()
    }

    /// Compares what is set with what was confirmed, before anybody consumes.
    fn audit(&mut self, keys: &[KeySettings], is_paused: bool) {
        let mut accounts = std::mem::take(&mut self.accounts);
        for (setting, account) in &mut accounts {
            let of = |key: u64| {
                let key = key.to_string();
                keys.iter().find(|it| it.fairness_key == key)
            };
            let found = match setting {
                Setting::Weight(key) => of(*key).and_then(|it| it.weight).unwrap_or_default(),
                Setting::Cap(key) => of(*key).and_then(|it| it.concurrency).unwrap_or_default(),
                Setting::KeyPause(key) => u32::from(of(*key).is_some_and(|it| it.paused)),
                Setting::QueuePause => u32::from(is_paused),
            };
            account.audit(setting, found);
            self.bar(*setting, account.confirmed == 1);
        }
        self.accounts = accounts;
    }
}

async fn send(
    admin: &mut Admin,
    operator: &Shared,
    setting: Setting,
    value: u32,
) -> Result<(), Status> {
    let (queue, pauses) = {
        let mut operator = operator.lock().unwrap();
        operator.begin(setting, value);
        (operator.keys_of.to_owned(), operator.pauses.to_owned())
    };
    let of_key = |key: u64| UpdateKeyRequest {
        queue,
        fairness_key: key.to_string(),
        ..UpdateKeyRequest::default()
    };
    match setting {
        Setting::Weight(key) => {
            let mut request = of_key(key);
            request.weight = Some(value);
            admin.update_key(request).await.map(drop)?;
        }
        Setting::Cap(key) => {
            let mut request = of_key(key);
            request.concurrency = Some(value);
            admin.update_key(request).await.map(drop)?;
        }
        Setting::KeyPause(key) => {
            let mut request = of_key(key);
            request.paused = Some(value == 1);
            admin.update_key(request).await.map(drop)?;
        }
        Setting::QueuePause if value == 1 => {
            let request = PauseQueueRequest { name: pauses };
            admin.pause_queue(request).await.map(drop)?;
        }
        Setting::QueuePause => {
            let request = ResumeQueueRequest { name: pauses };
            admin.resume_queue(request).await.map(drop)?;
        }
    }
    operator.lock().unwrap().confirm(setting);
    Ok(())
}

/// Sets the cap of each key, and fixes one of them for the whole run.
pub(crate) async fn prepare(address: &str, operator: &Shared) {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    let fixed = operator.lock().unwrap().fixed();
    send(&mut admin, operator, fixed, CAP_FIXED).await.unwrap();
    let operator = operator.lock().unwrap();
    let mut rules = operator.rules.lock().unwrap();
    for key in 0..KEYS {
        let cap = match key {
            1 => CAP_FIXED,
            2 => CAP_MOST,
            _ => CAP,
        };
        rules.cap(operator.first_key + key, cap);
    }
}

/// Changes one thing after the other until the server is gone.
pub(crate) async fn change(
    address: &str,
    operator: &Shared,
    mut chance: Chance,
) -> Result<(), Status> {
    let mut admin = FilaAdminClient::new(traffic::reach(address).await?);
    loop {
        let (setting, value) = operator.lock().unwrap().choose(&mut chance);
        send(&mut admin, operator, setting, value).await?;
        // An operator does not type faster, and the other clients need the disk as well.
        tokio::time::sleep(Duration::from_millis(chance.below(6))).await;
    }
}

/// Resumes whatever is paused.
pub(crate) async fn resume(address: &str, operator: &Shared) {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    let paused: Vec<Setting> = {
        let operator = operator.lock().unwrap();
        let pauses = operator.accounts.iter().filter(|(setting, account)| {
            let is_pause = matches!(setting, Setting::KeyPause(_) | Setting::QueuePause);
            is_pause && account.confirmed == 1
        });
        pauses.map(|(setting, _)| *setting).collect()
    };
    for setting in paused {
        send(&mut admin, operator, setting, 0).await.unwrap();
    }
}

/// Compares what is set with what was confirmed.
pub(crate) async fn audit(address: &str, operator: &Shared) {
    let (keys_of, pauses) = {
        let operator = operator.lock().unwrap();
        (operator.keys_of, operator.pauses)
    };
    let keys = inspect(address, keys_of).await.keys;
    let is_paused = inspect(address, pauses).await.paused;
    operator.lock().unwrap().audit(&keys, is_paused);
}

async fn inspect(address: &str, queue: &str) -> QueueInfo {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    let name = queue.to_owned();
    let answer = admin.inspect_queue(InspectQueueRequest { name }).await;
    answer.unwrap().into_inner().queue.unwrap()
}
