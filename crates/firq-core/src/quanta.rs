//! The quantum of each tenant: the one that was set, or else the provider's, or else the base.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use drr::Weight;

use crate::share::{Scale, Shares};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// Returns the quantum of a tenant, or `None` for the base quantum.
pub type QuantumProvider<K> = Arc<dyn Fn(&K) -> Option<u64> + Send + Sync>;

/// The lock is taken when a tenant comes, never while another one is held, and not held while the provider
/// is asked.
pub(crate) struct Quanta<K> {
    shares: Shares,
    /// Whether any tenant may have another quantum than the base.
    differ: AtomicBool,
    /// Whether the fine scale is in use. Once it is, it stays.
    is_fine: AtomicBool,
    /// Counts the changes, so that a weight that was found before one is not used after it.
    version: AtomicU64,
    set: Mutex<Set<K>>,
}

/// The answer to a question for a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Weight(Weight),
    /// The scale has just become finer: give every lane its new weight, then ask again.
    Refined,
}

struct Set<K> {
    by_tenant: HashMap<K, u64>,
    provider: Option<QuantumProvider<K>>,
}

impl<K: Hash + Eq> Quanta<K> {
    pub(crate) fn new(base: u64, by_tenant: HashMap<K, u64>) -> Self {
        let shares = Shares::new(base);
        let is_fine = by_tenant
            .values()
            .any(|&quantum| shares.needs(quantum) == Scale::Fine);
        Self {
            shares,
            differ: AtomicBool::new(!by_tenant.is_empty()),
            is_fine: AtomicBool::new(is_fine),
            version: AtomicU64::new(0),
            set: Mutex::new(Set {
                by_tenant,
                provider: None,
            }),
        }
    }

    /// Returns the weight of a tenant with the base quantum.
    #[inline]
    pub(crate) fn neutral(&self) -> Weight {
        self.shares.neutral(self.scale())
    }

    fn scale(&self) -> Scale {
        if self.is_fine.load(Ordering::Acquire) {
            Scale::Fine
        } else {
            Scale::Coarse
        }
    }

    /// Returns whether all tenants have the same weight.
    #[inline]
    pub(crate) fn are_equal(&self) -> bool {
        !self.differ.load(Ordering::Acquire)
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns a tenant's weight. The caller holds no lock: the provider may do anything.
    pub(crate) fn weight(&self, tenant: &K) -> Found {
        let set = lock(&self.set);
        let mut quantum = set.by_tenant.get(tenant).copied();
        let provider = set.provider.clone();
        drop(set);
        if quantum.is_none() {
            quantum = provider.and_then(|provider| provider(tenant));
        }
        let Some(quantum) = quantum else {
            return Found::Weight(self.neutral());
        };
        if self.shares.needs(quantum) == Scale::Fine && self.scale() == Scale::Coarse {
            self.change(|_| self.is_fine.store(true, Ordering::Release));
            return Found::Refined;
        }
        Found::Weight(self.shares.weight(quantum, self.scale()))
    }

    pub(crate) fn set(&self, tenant: K, quantum: u64) {
        self.change(|set| set.by_tenant.insert(tenant, quantum));
    }

    pub(crate) fn clear(&self, tenant: &K) {
        self.change(|set| set.by_tenant.remove(tenant));
    }

    pub(crate) fn set_provider(&self, provider: QuantumProvider<K>) {
        let before = self.change(|set| set.provider.replace(provider));
        drop(before); // not while the lock is held
    }

    fn change<R>(&self, f: impl FnOnce(&mut Set<K>) -> R) -> R {
        let mut set = lock(&self.set);
        let result = f(&mut set);
        self.differ.store(true, Ordering::Release);
        self.version.fetch_add(1, Ordering::AcqRel);
        result
    }
}

impl<K> fmt::Debug for Quanta<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quanta")
            .field("shares", &self.shares)
            .finish_non_exhaustive()
    }
}
