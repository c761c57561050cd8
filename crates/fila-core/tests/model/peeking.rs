//! The messages that a peek may show.

use fila_core::{MessageState, MessageStatus, Ordering};

use super::{Held, Life, Simulation};

impl Simulation {
    /// Checks that in a quiet moment a peek shows all that is there, as it is, and nothing else.
    pub(super) fn check_peeked(&mut self) {
        let now = self.shell.now;
        let mut shown = 0;
        for (id, found) in self.shell.peek(self.queue) {
            let known = self.messages.get(&id);
            let expected = known.and_then(|known| match known.life {
                Life::Leased(Held { until, .. }) => {
                    Some((MessageState::Leased { until }, known.attempts + 1))
                }
                Life::Waiting if known.is_expired(now) => None,
                Life::Waiting if known.due > now => {
                    let until = known.due;
                    Some((MessageState::Delayed { until }, known.attempts))
                }
                Life::Waiting => Some((MessageState::Ready, known.attempts)),
                Life::Failing { until, .. } => {
                    let until = known.expires.map_or(until, |end| end.min(until));
                    Some((MessageState::Delayed { until }, known.attempts))
                }
                Life::Leaving => None,
            });
            let found = found.map(|found: MessageStatus| (found.state, found.attempts));
            assert_eq!(found, expected, "{id}: {known:?}");
            shown += u64::from(found.is_some());
        }
        let there = self.messages.values().filter(|known| match known.life {
            Life::Leased(_) | Life::Failing { .. } => true,
            Life::Waiting => !known.is_expired(now),
            Life::Leaving => false,
        });
        assert_eq!(shown, there.count() as u64);
        self.check_keys();
    }

    /// Checks that a key with messages that are ready says for how long, and no other does.
    fn check_keys(&mut self) {
        let stats = self.shell.stats(self.queue);
        let keys = self.shell.keys(self.queue);
        assert_eq!(keys.len() as u64, stats.active_keys);
        let ready: u64 = keys.iter().map(|key| key.ready).sum();
        assert_eq!(ready, stats.ready);
        for key in keys {
            match self.definition.ordering {
                Ordering::None => assert_eq!(key.head_waiting.is_some(), key.ready > 0, "{key:?}"),
                // They may stand behind one that is delayed.
                Ordering::Key => assert!(key.head_waiting.is_none() || key.ready > 0, "{key:?}"),
            }
        }
    }
}
