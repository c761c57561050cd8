//! A service that does what the test says, and requests to it.
#![allow(dead_code, reason = "not every test needs everything")]

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use firq_tower::{ErrorAnswer, Extractors, Firq, FirqLayer, Refusal, TenantKey};
use tower::{Layer, Service};

/// A request of a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Req {
    pub(crate) tenant: u64,
    pub(crate) id: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) cost: u64,
    pub(crate) takes: Duration,
}

impl Req {
    pub(crate) fn of(tenant: u64) -> Self {
        Self {
            tenant,
            cost: 1,
            takes: MILLI,
            ..Self::default()
        }
    }

    pub(crate) fn id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    pub(crate) fn taking(self, takes: Duration) -> Self {
        Self { takes, ..self }
    }

    pub(crate) fn within(self, time: Duration) -> Self {
        let deadline = tokio::time::Instant::now() + time;
        Self {
            deadline: Some(deadline.into_std()),
            ..self
        }
    }
}

pub(crate) const MILLI: Duration = Duration::from_millis(1);

pub(crate) type TestFirq = Firq<TenantKey, Extractors<Req>, ErrorAnswer>;
pub(crate) type TestLayer = FirqLayer<Req, TenantKey, ErrorAnswer>;

/// A builder that reads test requests and fails with the refusal.
pub(crate) fn firq() -> TestFirq {
    Firq::new()
        .with_deadline_extractor(|req: &Req| req.deadline)
        .with_cost_extractor(|req: &Req| req.cost)
        .with_answer(ErrorAnswer)
}

pub(crate) fn build(firq: TestFirq) -> TestLayer {
    firq.build(|req: &Req| TenantKey::from(req.tenant))
}

/// Why a test request failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Refused(Refusal),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Infallible> for Failure {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// A service whose requests take as long as they say, and that notes which ones it has begun.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timed {
    pub(crate) begun: Arc<Mutex<Vec<Req>>>,
}

impl Timed {
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.begun
            .lock()
            .unwrap()
            .iter()
            .map(|req| req.id)
            .collect()
    }

    pub(crate) fn of(&self, tenant: u64) -> usize {
        let begun = self.begun.lock().unwrap();
        begun.iter().filter(|req| req.tenant == tenant).count()
    }
}

impl Service<Req> for Timed {
    type Response = Req;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Req, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Req) -> Self::Future {
        self.begun.lock().unwrap().push(req);
        Box::pin(async move {
            tokio::time::sleep(req.takes).await;
            Ok(req)
        })
    }
}

/// Sends a request in a task of its own.
pub(crate) fn send<S>(service: &S, req: Req) -> tokio::task::JoinHandle<Result<Req, Failure>>
where
    S: Service<Req, Response = Req, Error = Failure> + Clone + Send + 'static,
    S::Future: Send,
{
    let mut service = service.clone();
    // Called here, so that requests are queued in the order they are sent.
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    tokio::spawn(service.call(req))
}

/// A layer and a service behind it.
pub(crate) fn world(firq: TestFirq) -> (TestLayer, Timed, impl TestService) {
    let (layer, timed) = (build(firq), Timed::default());
    let service = layer.layer(timed.clone());
    (layer, timed, service)
}

pub(crate) trait TestService:
    Service<Req, Response = Req, Error = Failure, Future: Send> + Clone + Send + 'static
{
}

impl<S> TestService for S where
    S: Service<Req, Response = Req, Error = Failure, Future: Send> + Clone + Send + 'static
{
}

/// Lets all tasks come as far as they get while the time stands still.
pub(crate) async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

/// The refusal that a request got.
pub(crate) fn refusal(result: Result<Req, Failure>) -> Refusal {
    let Failure::Refused(refusal) = result.expect_err("it was refused");
    refusal
}
