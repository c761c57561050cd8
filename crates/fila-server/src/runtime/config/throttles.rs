//! Applies the throttles of the runtime configuration to the token buckets.
//!
//! Before a change is answered, the buckets have it, and every scheduler thread has a command in its inbox to check the
//! throttled messages again. No thread polls.

use std::sync::Arc;

use fila_core::{Command, Throttle};
use fila_store::ThrottleKey;

use super::shared_buckets::SharedBuckets;
use crate::runtime::Clock;
use crate::runtime::threads::inbox::{Inbox, Input};
use crate::runtime_config::{ThrottleSetting, Throttles};

#[derive(Debug)]
pub(crate) struct Throttling {
    pub(crate) buckets: SharedBuckets,
    pub(crate) inboxes: Arc<[Inbox]>,
    pub(crate) clock: Clock,
}

impl Throttling {
    /// Sets up the stored throttles. Their buckets begin empty, so that a restart gives no second burst.
    pub(crate) fn resume(&self, throttles: &Throttles) {
        let now = self.clock.now();
        for (name, setting) in throttles.iter() {
            if let Ok(key) = ThrottleKey::parse(name)
                && let Some(throttle) = throttle(setting)
            {
                self.buckets.resume(now, &key, throttle);
            }
        }
    }

    /// Applies a change, and tells the scheduler threads which keys have changed.
    pub(crate) fn follow(&self, before: &Throttles, after: &Throttles) {
        let now = self.clock.now();
        let mut keys = Vec::new();
        let names = before.iter().chain(after.iter()).map(|(name, _)| name);
        for name in names {
            let (old, new) = (before.get(name), after.get(name));
            let Ok(key) = ThrottleKey::parse(name) else {
                continue; // no message can have this key
            };
            if old == new || keys.contains(&key) {
                continue;
            }
            match new.and_then(throttle) {
                Some(throttle) => self.buckets.set(now, &key, throttle),
                None => self.buckets.remove(&key),
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return;
        }
        for inbox in &*self.inboxes {
            let keys = keys.clone();
            inbox.put_now(Input::Command(Command::Rethrottle { keys }));
        }
    }
}

fn throttle(setting: ThrottleSetting) -> Option<Throttle> {
    Throttle::new(setting.rate.per_second(), setting.burst.tokens())
}
