//! How a layer is set up.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firq_async::{
    BackpressurePolicy, EnqueueRejectReason, GroupOf, Priority, SchedulerConfig, TenantKey,
    TenantPath,
};

use crate::adaptive::Adaptive;
use crate::answer::JsonAnswer;
use crate::error::Cause;
use crate::extractors::{Extractors, IntoExtractors, NoExtractors};
use crate::gate::{Gate, Tenant};
use crate::layer::{FirqLayer, Shared};
use crate::limit::InFlight;
use crate::rejection::FirqHttpRejection;

type Weights<K> = Arc<dyn Fn(&K) -> u32 + Send + Sync>;

/// Whether requests of a refused tenant are refused before its queue is full.
#[derive(Clone, Copy, Debug)]
enum EarlyRefusals {
    /// Unless the policy is [`Reject`](BackpressurePolicy::Reject), which promises every place of the queue.
    ByPolicy,
    On,
    Off,
}

impl EarlyRefusals {
    const fn are_on(self, policy: BackpressurePolicy) -> bool {
        match self {
            Self::ByPolicy => !matches!(policy, BackpressurePolicy::Reject),
            Self::On => true,
            Self::Off => false,
        }
    }
}

/// Sets up a [`FirqLayer`].
///
/// Values out of range are brought into it, as each setter says; a layer can always be built.
///
/// Extractors read one type of request. One for another type does not compile:
///
/// ```compile_fail,E0277
/// use firq_tower::{Firq, TenantKey};
///
/// let layer = Firq::new()
///     .with_deadline_extractor::<http::Request<String>, _>(|_| None)
///     .build(|_: &http::Request<Vec<u8>>| TenantKey::from(0));
/// ```
///
/// as it does with the same type:
///
/// ```
/// use firq_tower::{Firq, TenantKey};
///
/// let layer = Firq::new()
///     .with_deadline_extractor::<http::Request<String>, _>(|_| None)
///     .build(|_: &http::Request<String>| TenantKey::from(0));
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct Firq<K: Tenant = TenantKey, E = NoExtractors, A = JsonAnswer> {
    shards: usize,
    max_global: usize,
    max_per_tenant: usize,
    max_per_group: Option<usize>,
    group_of: Option<GroupOf<K>>,
    quantum: u64,
    in_flight: InFlight,
    quota: Option<usize>,
    backpressure: BackpressurePolicy,
    early_refusals: EarlyRefusals,
    weights: HashMap<K, u32>,
    weigh: Option<Weights<K>>,
    unit: Option<Duration>,
    extractors: E,
    answer: A,
}

impl<K: Tenant> Firq<K> {
    /// Returns a builder of a layer that runs 128 requests at once and queues up to 1,000, of one tenant up to
    /// 100, all of the same weight.
    ///
    /// When the queue is full, tenants that have less than their share of it are still let in, at the expense of
    /// the tenant that has most above its share.
    pub fn new() -> Self {
        Self {
            shards: 4,
            max_global: 1_000,
            max_per_tenant: 100,
            max_per_group: None,
            group_of: groups_of_paths(),
            quantum: 1,
            in_flight: InFlight::Fixed(128),
            quota: None,
            backpressure: BackpressurePolicy::ShedFair,
            early_refusals: EarlyRefusals::ByPolicy,
            weights: HashMap::new(),
            weigh: None,
            unit: None,
            extractors: NoExtractors,
            answer: JsonAnswer::default(),
        }
    }
}

impl<K: Tenant> Default for Firq<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Tenant, E, A> Firq<K, E, A> {
    /// Sets into how many parts the queue is divided, so that threads do not wait for each other; from 1 to
    /// 4,096. It makes no difference otherwise.
    pub fn with_shards(mut self, shards: usize) -> Self {
        self.shards = shards.clamp(1, 4096);
        self
    }

    /// Sets how many requests may be queued; at least 1.
    pub fn with_max_global(mut self, max: usize) -> Self {
        self.max_global = max.clamp(1, u32::MAX as usize - 1);
        self
    }

    /// Sets how many requests of one tenant may be queued; at least 1.
    pub fn with_max_per_tenant(mut self, max: usize) -> Self {
        self.max_per_tenant = max.max(1);
        self
    }

    /// Sets how many requests all members of a [group](Self::with_groups) may have queued together; at least 1, and by
    /// default as many as one tenant, so that a tenant gains no room by splitting into many.
    pub fn with_max_per_group(mut self, max: usize) -> Self {
        self.max_per_group = Some(max.max(1));
        self
    }

    /// Lets tenants nest: `group_of` returns the group that a tenant or a group is in, or `None` if it is in none.
    ///
    /// The members of a group get together what one tenant gets, and share it among themselves: the layer is fair between
    /// tenants, and then between the users or the routes of each. If the extractor returns a [`TenantPath`] such as
    /// `acme/alice`, this is so by itself. Other keys are one call away: [`group_by_slash`](crate::group_by_slash) for
    /// strings of that form, [`group_by_first`](crate::group_by_first) for pairs, a closure for a type of your own.
    ///
    /// ```
    /// use firq_tower::{Firq, group_by_first};
    ///
    /// type Request = http::Request<String>;
    /// let tenant = |_: &Request| "acme".to_owned(); // from the credentials
    /// let layer = Firq::new()
    ///     .with_groups(group_by_first)
    ///     .with_tenant_weight(("acme".to_owned(), String::new()), 3) // all of acme
    ///     .build(move |request: &Request| (tenant(request), request.uri().path().to_owned()));
    /// ```
    ///
    /// A group is named by a key, and the weight of that key is the group's. Queue limits and
    /// [refusals](Self::with_early_refusals) respect groups, and the tenant of
    /// [`with_max_in_flight_per_tenant`](Self::with_max_in_flight_per_tenant) is the outermost one.
    /// [`SchedulerConfig::with_groups`] has the details.
    pub fn with_groups(
        mut self,
        group_of: impl Fn(&K) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        self.group_of = Some(Arc::new(group_of));
        self
    }

    /// Lets every key be a tenant of its own, also if it is a [`TenantPath`].
    pub fn without_groups(mut self) -> Self {
        self.group_of = None;
        self
    }

    /// Sets the cost that a tenant may use in a turn; at least 1, which is the default.
    ///
    /// A request costs 1 unless a [cost extractor](Self::with_cost_extractor) says otherwise, so with a quantum
    /// of 10 up to ten requests of a tenant run in a row. Shares are the same with any quantum; a small one
    /// makes shorter waits for the others.
    pub fn with_quantum(mut self, quantum: u64) -> Self {
        self.quantum = quantum.max(1);
        self
    }

    /// Sets how many requests run at once; at least 1.
    pub fn with_in_flight_limit(mut self, limit: usize) -> Self {
        self.in_flight = InFlight::Fixed(limit);
        self
    }

    /// Lets the layer find out how many requests may run at once, from how long they take.
    pub fn with_adaptive_limit(mut self, limit: Adaptive) -> Self {
        self.in_flight = InFlight::Adaptive(limit);
        self
    }

    /// Sets how many requests of one tenant run at once; at least 1, and by default as many as there are permits.
    ///
    /// A tenant that is alone may take every permit; another tenant then waits until one of its requests ends.
    /// If requests can take long or hang, set this to less than the limit: the rest is always there for others.
    /// It does not apply while the layer [drains](FirqLayer::close_drain).
    ///
    /// With [groups](Self::with_groups), it is all members of an outermost group together that run at most this many: a
    /// tenant does not get more permits by having more users.
    pub fn with_max_in_flight_per_tenant(mut self, max: usize) -> Self {
        self.quota = Some(max.max(1));
        self
    }

    /// Sets the policy for requests when there is no room.
    ///
    /// Under [`Timeout`](BackpressurePolicy::Timeout) it waits for room, without blocking a thread. Under
    /// [`Reject`](BackpressurePolicy::Reject) it is refused if the queue is full, and only then, unless
    /// [early refusals](Self::with_early_refusals) are switched on.
    pub fn with_backpressure(mut self, policy: BackpressurePolicy) -> Self {
        self.backpressure = policy;
        self
    }

    /// Sets whether a tenant that was refused because its own queue was full is then refused some requests early, as
    /// `tenant_full`: none while its queue is half empty, half of them when it is three quarters full, all of them
    /// when it is full.
    ///
    /// With [groups](Self::with_groups), the queue that counts is the fullest: that of the tenant or of one of its groups. A
    /// member that was never refused is not refused early, however full its group is.
    ///
    /// Early refusals keep room for clients that wait as `Retry-After` told them; without them, clients that do not
    /// wait take each place as it comes free. They end four seconds after the last moment that a client of this
    /// tenant was told to come back at. That moment is at most 60 seconds after the refusal, and an early refusal
    /// tells one, too. So they last 64 seconds at most from the tenant's last refusal on, and go on for as long as
    /// the tenant keeps its queue more than half full.
    ///
    /// By default they are on, and off under [`Reject`](BackpressurePolicy::Reject). Under
    /// [`Timeout`](BackpressurePolicy::Timeout) there are none in any case.
    pub fn with_early_refusals(mut self, early: bool) -> Self {
        self.early_refusals = match early {
            true => EarlyRefusals::On,
            false => EarlyRefusals::Off,
        };
        self
    }

    /// Gives a tenant a share of its own: one of weight 3 is served three times as much as one of weight 1. At
    /// least 1, which is the default.
    pub fn with_tenant_weight(mut self, tenant: K, weight: u32) -> Self {
        self.weights.insert(tenant, weight.max(1));
        self
    }

    /// Sets the function that returns the weight of a tenant without one of its own, for example by its plan. Asked
    /// when a tenant comes that is not known yet.
    pub fn with_weights(mut self, weigh: impl Fn(&K) -> u32 + Send + Sync + 'static) -> Self {
        self.weigh = Some(Arc::new(weigh));
        self
    }

    /// Charges tenants for the time that their requests run, a unit of cost for each `unit` begun, instead of
    /// what they declare: tenants then share time, and one with slow requests gets fewer of them.
    ///
    /// Until a request has ended, it costs what it declares, or 1 without an extractor.
    pub fn with_settle_by_elapsed(mut self, unit: Duration) -> Self {
        self.unit = Some(unit.max(Duration::from_nanos(1)));
        self
    }

    /// Charges tenants what their requests declare; the default.
    pub fn without_settle(mut self) -> Self {
        self.unit = None;
        self
    }

    /// Sets the function that returns the deadline of a request. If its turn has not come by then, it is answered
    /// at once, and never served.
    pub fn with_deadline_extractor<Req, F>(self, extractor: F) -> Firq<K, Extractors<Req>, A>
    where
        E: IntoExtractors<Req>,
        F: Fn(&Req) -> Option<Instant> + Send + Sync + 'static,
    {
        self.extract(|extractors| extractors.deadline = Some(Arc::new(extractor)))
    }

    /// Sets the function that returns the priority of a request among those of its own tenant.
    pub fn with_priority_extractor<Req, F>(self, extractor: F) -> Firq<K, Extractors<Req>, A>
    where
        E: IntoExtractors<Req>,
        F: Fn(&Req) -> Priority + Send + Sync + 'static,
    {
        self.extract(|extractors| extractors.priority = Some(Arc::new(extractor)))
    }

    /// Sets the function that returns the cost of a request, in units of your choice; at least 1.
    pub fn with_cost_extractor<Req, F>(self, extractor: F) -> Firq<K, Extractors<Req>, A>
    where
        E: IntoExtractors<Req>,
        F: Fn(&Req) -> u64 + Send + Sync + 'static,
    {
        self.extract(|extractors| extractors.cost = Some(Arc::new(extractor)))
    }

    /// Sets what clients are told of a request for which there was no room, as JSON. Of other refusals they are told
    /// the default; [`with_refusal_mapper`](Self::with_refusal_mapper) is asked about all of them.
    ///
    /// The last mapper or answer that is set counts.
    pub fn with_rejection_mapper<F>(self, mapper: F) -> Firq<K, E, JsonAnswer>
    where
        F: Fn(EnqueueRejectReason) -> FirqHttpRejection + Send + Sync + 'static,
    {
        self.with_answer(JsonAnswer::new(mapper))
    }

    /// Sets what clients are told of any refused request, as JSON: one for which there was no room, one that gave way
    /// to another tenant's, one whose deadline has passed, one that came to a closed layer.
    ///
    /// ```
    /// use firq_tower::{Cause, Firq, FirqHttpRejection, TenantKey};
    ///
    /// let layer = Firq::new()
    ///     .with_refusal_mapper(|cause| match cause {
    ///         Cause::Closed => FirqHttpRejection {
    ///             message: "we are moving; try the other region",
    ///             ..FirqHttpRejection::of(cause)
    ///         },
    ///         _ => FirqHttpRejection::of(cause),
    ///     })
    ///     .build(|_: &http::Request<String>| TenantKey::from(0));
    /// ```
    pub fn with_refusal_mapper<F>(self, mapper: F) -> Firq<K, E, JsonAnswer>
    where
        F: Fn(Cause) -> FirqHttpRejection<Cause> + Send + Sync + 'static,
    {
        self.with_answer(JsonAnswer::of_all(mapper))
    }

    /// Sets how refusals are told to clients: [`GrpcAnswer`](crate::GrpcAnswer) for gRPC,
    /// [`ErrorAnswer`](crate::ErrorAnswer) for services that are not HTTP, or a closure of your own.
    pub fn with_answer<B>(self, answer: B) -> Firq<K, E, B> {
        self.change(|extractors, _| (extractors, answer))
    }

    /// Returns the layer. `tenant` returns the tenant of a request: the party that competes for the service.
    pub fn build<Req, F>(self, tenant: F) -> FirqLayer<Req, K, A>
    where
        E: IntoExtractors<Req>,
        F: Fn(&Req) -> K + Send + Sync + 'static,
    {
        let quantum = self.quantum;
        let early_refusals = self.early_refusals.are_on(self.backpressure);
        let quanta = self.weights.into_iter();
        let config = SchedulerConfig {
            shards: self.shards,
            max_global: self.max_global,
            max_per_tenant: self.max_per_tenant,
            max_per_group: self.max_per_group,
            group_of: self.group_of,
            quantum,
            tenant_quanta: quanta
                .map(|(tenant, weight)| (tenant, quantum.saturating_mul(u64::from(weight))))
                .collect(),
            backpressure: self.backpressure,
            ..SchedulerConfig::default()
        };
        let gate = Gate::new(
            config,
            self.in_flight,
            self.quota,
            self.unit,
            early_refusals,
        );
        if let Some(weigh) = self.weigh {
            let quantum_of =
                move |tenant: &K| Some(quantum.saturating_mul(u64::from(weigh(tenant).max(1))));
            gate.scheduler.scheduler().set_quantum_provider(quantum_of);
        }
        FirqLayer::new(Shared {
            gate: Arc::new(gate),
            tenant: Box::new(tenant),
            extractors: self.extractors.into_extractors(),
            answer: self.answer,
        })
    }

    fn extract<Req>(self, change: impl FnOnce(&mut Extractors<Req>)) -> Firq<K, Extractors<Req>, A>
    where
        E: IntoExtractors<Req>,
    {
        self.change(|extractors, answer| {
            let mut extractors = extractors.into_extractors();
            change(&mut extractors);
            (extractors, answer)
        })
    }

    /// Returns the same builder with other extractors or another answer.
    fn change<F, B>(self, change: impl FnOnce(E, A) -> (F, B)) -> Firq<K, F, B> {
        let (extractors, answer) = change(self.extractors, self.answer);
        Firq {
            shards: self.shards,
            max_global: self.max_global,
            max_per_tenant: self.max_per_tenant,
            max_per_group: self.max_per_group,
            group_of: self.group_of,
            quantum: self.quantum,
            in_flight: self.in_flight,
            quota: self.quota,
            backpressure: self.backpressure,
            early_refusals: self.early_refusals,
            weights: self.weights,
            weigh: self.weigh,
            unit: self.unit,
            extractors,
            answer,
        }
    }
}

impl<K: Tenant, E: fmt::Debug, A: fmt::Debug> fmt::Debug for Firq<K, E, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Firq")
            .field("shards", &self.shards)
            .field("max_global", &self.max_global)
            .field("max_per_tenant", &self.max_per_tenant)
            .field("max_per_group", &self.max_per_group)
            .field("group_of", &self.group_of.is_some())
            .field("quantum", &self.quantum)
            .field("in_flight", &self.in_flight)
            .field("quota", &self.quota)
            .field("backpressure", &self.backpressure)
            .field("unit", &self.unit)
            .field("extractors", &self.extractors)
            .field("answer", &self.answer)
            .finish_non_exhaustive()
    }
}

/// Returns how keys nest that are paths; `None` for all others.
fn groups_of_paths<K: Tenant>() -> Option<GroupOf<K>> {
    let of_paths: GroupOf<TenantPath> = Arc::new(TenantPath::parent);
    let of_paths: &dyn Any = &of_paths;
    of_paths.downcast_ref::<GroupOf<K>>().cloned()
}
