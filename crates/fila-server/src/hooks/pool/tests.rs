use std::sync::mpsc::{Receiver, TryRecvError, channel};

use fila_core::{HookFallback, Judgement, NewMessage, Source};
use fila_store::{
    ConfigKey, DeathReason, FairnessKey, Payload, QueueId, QueueName, Schedule, Version,
};

use super::*;
use crate::config::Config;
use crate::hooks::call_line::Producer;
use crate::hooks::job::Questions;
use crate::hooks::queue_hooks::{HookSettings, QueueHooks};
use crate::hooks::verdict::{Failed, Verdict};
use crate::runtime_config::Entry;

const PATIENCE: Duration = Duration::from_secs(60);
const TENANT: &str = "function on_enqueue(msg) return { fairness_key = msg.headers['tenant'] } end";
const SPIN: &str = "function on_enqueue(msg) while true do end end";

/// Returns a message whose producer claims this fairness key.
fn claimed(key: &str) -> NewMessage {
    let mut message = message(key);
    message.schedule = FairnessKey::new(key.to_owned()).unwrap().into();
    message
}

struct Rig {
    pool: Pool,
    config: watch::Sender<Arc<Entries>>,
    settings: Arc<HookSettings>,
}

impl Rig {
    fn new(workers: usize, patience: Duration, timeout: Duration) -> Self {
        let config = watch::Sender::new(Arc::new(Entries::default()));
        let pool = Pool::start_with(workers, patience, config.subscribe()).unwrap();
        let mut given = Config::default();
        given.lua.default_timeout = timeout;
        Self {
            pool,
            config,
            settings: Arc::new(HookSettings::new(&given)),
        }
    }

    fn hooks(&self, number: u64, source: &str) -> Arc<QueueHooks> {
        self.hooks_after(number, source, HookFallback::Default, None)
    }

    fn hooks_after(
        &self,
        number: u64,
        source: &str,
        fallback: HookFallback,
        before: Option<&QueueHooks>,
    ) -> Arc<QueueHooks> {
        let mut definition = fila_core::QueueSettings::default();
        definition.hook_fallback = fallback;
        self.hooks_of(number, source, &definition, before)
    }

    fn hooks_of(
        &self,
        number: u64,
        source: &str,
        definition: &fila_core::QueueSettings,
        before: Option<&QueueHooks>,
    ) -> Arc<QueueHooks> {
        Arc::new(QueueHooks::new(
            QueueId::new(number),
            QueueName::parse("orders").unwrap(),
            self.settings.compile(source).unwrap(),
            definition,
            &self.settings,
            before,
        ))
    }

    fn submit(&self, hooks: &Arc<QueueHooks>, tenants: &[&str]) -> Receiver<Vec<Answer>> {
        let (done, answers) = channel();
        let messages: Vec<NewMessage> = tenants.iter().map(|tenant| message(tenant)).collect();
        let messages = Arc::new(messages);
        let questions = Questions::Enqueue(messages.clone());
        self.pool
            .submit(Job::new(hooks.clone(), questions, move |answers| {
                // The caller that waits for the answers holds the messages, too.
                drop(messages);
                let _ = done.send(answers);
            }));
        answers
    }

    /// Asks and waits.
    fn keys(&self, hooks: &Arc<QueueHooks>, tenants: &[&str]) -> Vec<String> {
        keys(&self.submit(hooks, tenants))
    }
}

impl PoolState {
    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.crew().running.is_empty()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.pool.stop();
    }
}

fn message(tenant: &str) -> NewMessage {
    let headers = vec![("tenant".to_owned(), tenant.to_owned())];
    let payload = Payload::new(headers, "payload").unwrap();
    NewMessage::new(FairnessKey::new("the producer's").unwrap(), payload)
}

/// Waits for answers, and returns the fairness keys that they give.
fn keys(answers: &Receiver<Vec<Answer>>) -> Vec<String> {
    let answers = answers.recv_timeout(PATIENCE).unwrap();
    let key = |answer: &Answer| match answer {
        Answer::Verdict(Verdict::Scheduled(Schedule { fairness_key, .. })) => {
            String::from_utf8(fairness_key.as_bytes().to_vec()).unwrap()
        }
        other => panic!("{other:?} is no placement"),
    };
    answers.iter().map(key).collect()
}

fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it happens within patience");
        std::thread::yield_now();
    }
}

#[test]
fn answers_are_in_the_order_of_the_questions() {
    let rig = Rig::new(4, PATIENCE, Duration::from_millis(10));
    let hooks = rig.hooks(1, TENANT);
    let tenants: Vec<String> = (0..5_000).map(|number| number.to_string()).collect();
    let asked: Vec<&str> = tenants.iter().map(String::as_str).collect();
    // Others make it a job of several parts.
    let others: Vec<_> = (2..6)
        .map(|number| rig.submit(&rig.hooks(number, TENANT), &asked))
        .collect();
    assert_eq!(rig.keys(&hooks, &asked), tenants);
    for other in others {
        assert_eq!(keys(&other), tenants);
    }
    until(|| rig.pool.0.is_idle());
}

#[test]
fn queues_whose_scripts_spin_do_not_keep_others_from_being_answered() {
    // A call takes a millisecond or more, and there are many more of them than anybody waits for.
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(20));
    let spinning: Vec<_> = (0..4)
        .map(|number| {
            // One that does not fail, or it would be left alone.
            let source = "function on_enqueue(msg)
                for number = 1, 30000 do end
                return { fairness_key = 'slow' }
            end";
            rig.submit(&rig.hooks(10 + number, source), &vec!["x"; 1 << 15])
        })
        .collect();
    let quick = rig.hooks(1, TENANT);
    for round in 0..50 {
        let name = round.to_string();
        assert_eq!(rig.keys(&quick, &[&name]), [name]);
    }
    for answers in &spinning {
        assert!(matches!(answers.try_recv(), Err(TryRecvError::Empty)));
    }
}

#[test]
fn a_worker_that_does_not_come_back_is_replaced_and_its_messages_are_answered() {
    let timeout = Duration::from_secs(2);
    let rig = Rig::new(2, Duration::from_millis(300), timeout);
    let spinning = rig.hooks(
        1,
        "function on_enqueue(msg)
           while msg.headers['tenant'] == 'a' do end
           return { fairness_key = msg.headers['tenant'] }
         end",
    );
    let answers = keys(&rig.submit(&spinning, &["a", "b", "c"]));
    assert_eq!(answers[0], "default");
    assert_eq!(answers.len(), 3);
    let figures = spinning.figures(Instant::now());
    assert!(figures[0].failures >= 1);
    let error = figures[0].last_error.clone().unwrap();
    assert!(error.contains("did not end within"), "{error}");
    let quick = rig.hooks(2, TENANT);
    // On a busy machine the pool may take even the worker of this call for lost, but not every time.
    until(|| rig.keys(&quick, &["acme"]) == ["acme"]);
    // It has come back, and left; and others are there.
    until(|| rig.pool.0.crew().abandoned == 0);
    until(|| rig.pool.0.crew().slots.len() == 2);
}

#[test]
fn after_three_failures_a_script_is_left_alone_and_after_the_cooldown_it_is_tried_again() {
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    let hooks = rig.hooks(
        1,
        "function on_enqueue(msg)
           if fila.get('works') then return { fairness_key = 'good' } end
           error('as planned')
         end",
    );
    assert_eq!(rig.keys(&hooks, &["a"; 5]), ["default"; 5]);
    let now = Instant::now();
    let figures = hooks.figures(now).remove(0);
    assert_eq!(
        (figures.calls, figures.failures, figures.fallbacks),
        (3, 3, 5)
    );
    assert_eq!(
        figures.last_error.as_deref(),
        Some("the hook failed: line 3: as planned")
    );
    assert!(hooks.without_asking(&[message("a")], now).is_some());
    let later = now + Duration::from_secs(10);
    assert!(hooks.without_asking(&[message("a")], later).is_none());

    // The test does the work of a worker, at a time that has not come yet.
    let entry = Entry::new(
        ConfigKey::parse("works").unwrap(),
        "yes".to_owned(),
        Version::new(1),
    );
    rig.config
        .send_modify(|entries| *entries = Arc::new(entries.with(Arc::new(entry))));
    let count = AtomicUsize::new(0);
    let receiver = rig.config.subscribe();
    let mut sandboxes = SandboxCache::new(&receiver, &count);
    sandboxes.sandbox(hooks.loaded().unwrap());
    let verdict = hooks.schedule(sandboxes.current(), (&message("a")).into(), later);
    assert!(matches!(verdict, Verdict::Scheduled(it) if it.fairness_key.as_bytes() == b"good"));
    assert_eq!(
        hooks.figures(later)[0].state,
        crate::hooks::HookState::Closed
    );
}

#[test]
fn what_stands_in_for_an_answer_is_the_queues_choice() {
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    let source = "function on_enqueue(msg)
        if fila.get('broken') then error('as planned') end
        return { fairness_key = msg.headers['tenant'], weight = 7, throttle_keys = { 'api' } }
    end";
    let of = |fallback| rig.hooks_after(1, source, fallback, None);
    let (plain, last_good, refuse) = (
        of(HookFallback::Default),
        of(HookFallback::LastGood),
        of(HookFallback::Refuse),
    );
    for hooks in [&plain, &last_good, &refuse] {
        assert_eq!(rig.keys(hooks, &["acme"]), ["acme"]);
    }
    let entry = Entry::new(
        ConfigKey::parse("broken").unwrap(),
        String::new(),
        Version::new(1),
    );
    rig.config
        .send_modify(|entries| *entries = Arc::new(entries.with(Arc::new(entry))));
    let asked = ["acme", "other", "acme", "other", "acme"];
    assert_eq!(rig.keys(&plain, &asked), ["default"; 5]);
    let own = "the producer's";
    let expected = ["acme", own, "acme", own, "acme"];
    assert_eq!(rig.keys(&last_good, &asked), expected);
    let good = last_good.without_asking(&[message("acme")], Instant::now());
    let Some([Verdict::Scheduled(good)]) = good.as_deref() else {
        panic!("{good:?}");
    };
    assert_eq!(
        (good.weight.get(), good.throttle_keys[0].as_str()),
        (7, "api")
    );
    let refused = rig
        .submit(&refuse, &["acme"])
        .recv_timeout(PATIENCE)
        .unwrap();
    let [Answer::Verdict(Verdict::Refused(error))] = &refused[..] else {
        panic!("{refused:?}");
    };
    assert_eq!(&**error, "the hook failed: line 2: as planned");
}

#[test]
fn a_change_of_the_configuration_is_seen_by_the_next_message() {
    let rig = Rig::new(3, PATIENCE, Duration::from_millis(10));
    let hooks = rig.hooks(
        1,
        "function on_enqueue(msg) return { fairness_key = fila.get('key') } end",
    );
    assert_eq!(rig.keys(&hooks, &["a"]), ["default"]);
    for round in 0..200 {
        let value = format!("round {round}");
        let entry = Entry::new(
            ConfigKey::parse("key").unwrap(),
            value.clone(),
            Version::new(round),
        );
        rig.config
            .send_modify(|entries| *entries = Arc::new(entries.with(Arc::new(entry))));
        assert_eq!(rig.keys(&hooks, &["a"]), [value]);
    }
}

#[test]
fn sandboxes_go_with_their_script() {
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    let first = rig.hooks(1, TENANT);
    let other = rig.hooks(2, TENANT);
    rig.keys(&first, &["a"]);
    rig.keys(&other, &["a"]);
    until(|| rig.pool.sandboxes() >= 2);
    let second = rig.hooks_after(1, SPIN, HookFallback::Default, Some(&first));
    first.retire(Some(&second));
    other.retire(None);
    rig.pool.sweep();
    until(|| rig.pool.sandboxes() == 0);
    // One that was in line when its script was replaced leaves nothing, either.
    rig.keys(&first, &["a"]);
    until(|| rig.pool.sandboxes() == 0);
    // The same script with another choice is the same script.
    let quick = rig.hooks(3, TENANT);
    rig.keys(&quick, &["a"]);
    quick.retire(Some(&quick));
    rig.pool.sweep();
    rig.keys(&quick, &["a"]);
    assert!(rig.pool.sandboxes() >= 1);
}

#[test]
fn a_stopped_pool_drops_what_waits() {
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    rig.pool.stop();
    let answers = rig.submit(&rig.hooks(1, TENANT), &["a"]);
    assert!(answers.recv_timeout(PATIENCE).is_err());
}

#[test]
fn a_stopped_pool_drops_what_runs_and_does_not_wait_for_its_call() {
    let rig = Rig::new(2, PATIENCE, Duration::from_secs(2));
    let spin = rig.hooks(1, SPIN);
    let answers = rig.submit(&spin, &["a"]);
    let is_busy = |slot: &Arc<WorkerSlot>| slot.work().job.is_some();
    until(|| rig.pool.0.crew().slots.iter().any(is_busy));
    rig.pool.stop();
    assert_eq!(answers.try_recv().err(), Some(TryRecvError::Disconnected));
}

#[test]
fn failures_are_judged_and_without_an_answer_left_to_the_queue() {
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    let hooks = rig.hooks(
        1,
        "function on_failure(msg)
           if msg.error == 'odd' then return nil end
           if msg.attempts >= 3 then return { action = 'dlq' } end
           return { action = 'retry', delay_ms = 1000 * msg.attempts }
         end",
    );
    let judge = |attempts, error: &str| {
        let (done, answers) = channel();
        let failed = Failed {
            headers: Vec::new(),
            id: "id".to_owned(),
            attempts,
            error: error.into(),
        };
        let questions = Questions::Failure(Arc::new(failed));
        rig.pool
            .submit(Job::new(hooks.clone(), questions, move |mut answers| {
                let _ = done.send(answers.pop());
            }));
        match answers.recv_timeout(PATIENCE).unwrap() {
            Some(Answer::Judged(judged)) => judged,
            other => panic!("{other:?}"),
        }
    };
    let delay = Duration::from_secs(2);
    assert_eq!(judge(2, "busy"), Judgement::Retry { delay });
    let reason = DeathReason::Hook;
    assert_eq!(judge(3, "busy"), Judgement::DeadLetter { reason });
    for _ in 0..4 {
        assert_eq!(judge(1, "odd"), Judgement::Default);
    }
    let figures = hooks.figures(Instant::now()).remove(0);
    assert_eq!(figures.name, "on_failure");
    assert_eq!(
        (figures.calls, figures.failures, figures.fallbacks),
        (6, 0, 4)
    );
    assert_eq!(
        figures.unusable, 4,
        "and none of them counts for the breaker"
    );
}

#[test]
fn nobody_is_asked_for_those_who_do_not_wait_any_more() {
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    let hooks = rig.hooks(1, TENANT);
    let (done, answers) = channel();
    let messages = Arc::new(vec![message("a"), message("b")]);
    let questions = Questions::Enqueue(messages);
    let job = Job::new(hooks.clone(), questions, move |answers| {
        let _ = done.send(answers.len());
    });
    rig.pool.submit(job);
    assert_eq!(answers.recv_timeout(PATIENCE), Ok(0));
    until(|| rig.pool.0.is_idle());
    assert_eq!(hooks.figures(Instant::now())[0].calls, 0);
    assert_eq!(rig.keys(&hooks, &["c"]), ["c"], "others are");
}

#[tokio::test]
async fn a_call_whose_caller_is_gone_keeps_its_place_until_its_job_is_over() {
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    let hooks = rig.hooks(1, TENANT);
    // All places.
    let mut places = Vec::new();
    for number in 0.. {
        let producer = hooks.producer((&claimed(&number.to_string())).into());
        match futures_util::poll!(std::pin::pin!(hooks.enter(producer, 1))) {
            Poll::Ready(place) => places.push(place.unwrap()),
            Poll::Pending => break,
        }
    }
    let place = places.pop().unwrap();
    let job = Job::new(
        hooks.clone(),
        Questions::Enqueue(Arc::new(vec![message("a")])),
        move |_| drop(place),
    );
    let producer = hooks.producer((&claimed("next")).into());
    let mut next = std::pin::pin!(hooks.enter(producer, 1));
    let waits = futures_util::poll!(next.as_mut());
    assert!(waits.is_pending(), "the job is in the line still");
    rig.pool.submit(job);
    let entered = tokio::time::timeout(PATIENCE, next).await;
    entered.expect("there is room again").unwrap();
}

#[test]
fn a_tenant_is_one_producer_whatever_keys_it_names() {
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    let hooks = rig.hooks(1, TENANT);
    let producer = |key: &str| hooks.producer((&claimed(key)).into());
    assert_eq!(producer("acme/alice"), producer("acme"));
    assert_eq!(producer("acme/batch/7"), producer("acme"));
    assert_ne!(producer("globex/alice"), producer("acme/alice"));
    // A key that is no path names no tenant.
    assert_eq!(producer("acme//alice"), producer("default"));
    assert_eq!(producer("/7"), producer("default"));
    let source = Source::new(7);
    let mut hostile = claimed("acme//alice");
    hostile.source = Some(source);
    assert_eq!(hooks.producer((&hostile).into()), Producer::Client(source));
    // So is the tenant of an answer, and that of a failure.
    let key = |name: &str| FairnessKey::new(name.to_owned()).unwrap();
    let mut definition = fila_core::QueueSettings::default();
    definition.key_separator = None;
    let flat = rig.hooks_of(1, TENANT, &definition, Some(&hooks));
    assert_ne!(
        flat.producer((&claimed("acme/alice")).into()),
        flat.producer((&claimed("acme")).into())
    );
    let failures: Vec<_> = (0..4_096)
        .map_while(|number| hooks.enter_failure(&key(&format!("acme/{number}"))))
        .collect();
    assert_eq!(failures.len(), 3_072, "the part of one tenant");
    assert!(hooks.enter_failure(&key("globex")).is_some());
}

#[test]
fn weights_of_groups_are_remembered_and_forgotten_with_the_separator() {
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    let source = "function on_enqueue(msg)
        if fila.get('fail') then error('as planned') end
        return { fairness_key = 'a:b/c', weights = { ['a:b'] = 3 } }
    end";
    let mut definition = fila_core::QueueSettings::default();
    definition.hook_fallback = HookFallback::LastGood;
    let hooks = rig.hooks_of(1, source, &definition, None);
    let schedule = |hooks: &Arc<QueueHooks>| {
        let mut answers = rig.submit(hooks, &["acme"]).recv_timeout(PATIENCE).unwrap();
        match answers.pop() {
            Some(Answer::Verdict(Verdict::Scheduled(schedule))) => schedule,
            other => panic!("{other:?}"),
        }
    };
    let first = schedule(&hooks);
    assert_eq!(first.group_weights.get(0), 3.try_into().ok());
    let fail = ConfigKey::parse("fail").unwrap();
    let entry = Arc::new(Entry::new(fail, "yes".to_owned(), Version::new(1)));
    rig.config
        .send_modify(|entries| *entries = Arc::new(entries.with(entry)));
    assert_eq!(schedule(&hooks), first, "its last answer");
    // Under another separator the top of that path is another group.
    definition.key_separator = fila_core::KeySeparator::new(':').ok();
    let changed = QueueHooks::new(
        hooks.queue,
        hooks.name.clone(),
        hooks.program.clone(),
        &definition,
        &rig.settings,
        Some(&hooks),
    );
    let after = schedule(&Arc::new(changed));
    assert!(after.group_weights.is_empty(), "{after:?}");
    assert_eq!(hooks.figures(Instant::now())[0].unusable, 0);
}

#[test]
fn there_is_a_bound_on_failures_that_wait_and_the_rest_is_left_to_the_queue() {
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    let source = "function on_failure(msg) return { action = 'retry' } end";
    let hooks = rig.hooks(1, source);
    let key = |name: &str| FairnessKey::new(name.to_owned()).unwrap();
    let noisy = || hooks.enter_failure(&key("noisy"));
    let mut places: Vec<_> = std::iter::from_fn(noisy).collect();
    assert_eq!(places.len(), 3_072);
    assert_eq!(hooks.figures(Instant::now())[0].fallbacks, 1);
    assert!(
        hooks.enter_failure(&key("quiet")).is_some(),
        "others have room"
    );
    places.pop();
    assert!(noisy().is_some(), "one has left");
    let same = rig.hooks_after(1, source, HookFallback::Refuse, Some(&hooks));
    places.push(same.enter_failure(&key("noisy")).unwrap());
    assert!(noisy().is_none(), "those of both count");
}

#[test]
fn a_definition_says_whether_its_script_judges_failures() {
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    let mut definition = fila_core::QueueSettings::default();
    let judging = "function on_failure(msg) return { action = 'dlq' } end";
    definition.script = Some(judging.into());
    let program = QueueHooks::program_of(&mut definition, None, &rig.settings);
    assert!(program.unwrap().is_some() && definition.judges_failures());
    definition.script = Some(TENANT.into());
    let program = QueueHooks::program_of(&mut definition, None, &rig.settings);
    assert!(program.unwrap().is_some() && !definition.judges_failures());
    definition.failure_hook = true;
    definition.script = None;
    let program = QueueHooks::program_of(&mut definition, None, &rig.settings);
    assert!(program.unwrap().is_none() && !definition.judges_failures());
}

/// A pool without threads, whose jobs the test takes itself.
struct Bench {
    pool: PoolState,
    rig: Rig,
}

impl Bench {
    fn new(workers: usize) -> Self {
        let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
        let pool = PoolState::new(workers, PATIENCE, rig.config.subscribe()).unwrap();
        Self { pool, rig }
    }

    /// Submits a job of one message. Its caller waits as long as the messages are kept.
    fn submit(&self, queue: u64, name: &str) -> Arc<Vec<NewMessage>> {
        let messages = Arc::new(vec![message(name)]);
        let questions = Questions::Enqueue(messages.clone());
        let job = Job::new(self.rig.hooks(queue, TENANT), questions, drop);
        self.pool.submit(job, Priority::Normal);
        messages
    }

    fn take(&self) -> Option<Job> {
        loop {
            match self.pool.jobs.try_dequeue() {
                DequeueResult::Task { task, .. } => {
                    if let Some(job) = self.pool.begin(task.payload) {
                        return Some(job);
                    }
                }
                DequeueResult::Empty | DequeueResult::Closed => return None,
            }
        }
    }

    /// Takes a job and returns its name; it stays under way.
    fn take_name(&self) -> Option<String> {
        self.take().map(|job| name_of(&job))
    }
}

fn name_of(job: &Job) -> String {
    match &job.questions {
        Questions::Enqueue(messages) => messages[0].payload.headers()[0].1.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn queues_take_turns_however_many_jobs_they_have() {
    let bench = Bench::new(8);
    for (queue, name) in [(1, "a0"), (1, "a1"), (1, "a2"), (2, "b"), (3, "c")] {
        bench.submit(queue, name);
    }
    let taken: Vec<_> = std::iter::from_fn(|| bench.take_name()).collect();
    assert_eq!(taken, ["a0", "b", "c", "a1", "a2"]);
}

#[test]
fn a_queue_never_has_all_workers() {
    let bench = Bench::new(3);
    for number in 0..9 {
        bench.submit(1, &number.to_string());
    }
    let first = bench.take().unwrap();
    assert_eq!(name_of(&first), "0");
    assert_eq!(bench.take_name().as_deref(), Some("1"));
    assert_eq!(bench.take_name(), None);
    bench.submit(2, "other");
    assert_eq!(bench.take_name().as_deref(), Some("other"));
    bench.pool.put_down(first);
    assert_eq!(bench.take_name().as_deref(), Some("2"));
    assert_eq!(bench.take_name(), None);
}

#[test]
fn a_job_that_was_handed_out_too_early_goes_back_before_later_ones() {
    let bench = Bench::new(2);
    bench.submit(1, "0");
    bench.submit(1, "1");
    bench.submit(1, "2");
    let early: Vec<Job> = (0..2)
        .filter_map(|_| match bench.pool.jobs.try_dequeue() {
            DequeueResult::Task { task, .. } => Some(task.payload),
            DequeueResult::Empty | DequeueResult::Closed => None,
        })
        .collect();
    let mut early = early.into_iter();
    let first = bench.pool.begin(early.next().unwrap()).unwrap();
    assert!(bench.pool.begin(early.next().unwrap()).is_none());
    assert_eq!(bench.take_name(), None);
    bench.pool.put_down(first);
    assert_eq!(bench.take_name().as_deref(), Some("1"));
}

#[test]
fn the_rest_of_a_job_takes_its_turn_among_the_jobs_of_its_queue() {
    let bench = Bench::new(8);
    let _waits = bench.submit(1, "one");
    let job = bench.take().unwrap();
    bench.submit(1, "two");
    bench.submit(2, "other");
    bench.pool.put_down(job);
    let mut taken: Vec<_> = std::iter::from_fn(|| bench.take_name()).collect();
    assert_eq!(taken.pop().as_deref(), Some("one"));
    taken.sort();
    assert_eq!(taken, ["other", "two"]);
}

/// The threads of hooks use what other threads leave.
#[cfg(target_os = "linux")]
#[test]
fn threads_of_hooks_have_a_lower_priority_than_the_others() {
    let niceness = |thread: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
        // The fields follow the name in parentheses, and the niceness is the nineteenth.
        let (_, fields) = stat.rsplit_once(") ")?;
        fields.split(' ').nth(16)?.parse::<i32>().ok()
    };
    let own = niceness("thread-self").unwrap();
    let rig = Rig::new(2, PATIENCE, Duration::from_millis(10));
    assert_eq!(rig.keys(&rig.hooks(1, TENANT), &["acme"]), ["acme"]);
    // Other tests of this process have such threads as well.
    until(|| {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let threads = threads.filter_map(|it| it.ok()?.file_name().into_string().ok());
        let lower = threads.filter(|thread| {
            let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
            let is_worker = |name: &str| name.starts_with("fila-hook-") && !name.contains("watch");
            name.is_ok_and(|name| is_worker(&name))
                && niceness(&format!("self/task/{thread}")) == Some((own + 10).min(19))
        });
        lower.count() >= 2
    });
    assert_eq!(niceness("thread-self"), Some(own));
}

#[test]
fn queues_without_jobs_leave_nothing_but_a_bounded_memory() {
    let bench = Bench::new(2);
    for queue in 0..10 * IDLE_QUEUES_MAX as u64 {
        bench.submit(queue, "x");
        let job = bench.take().unwrap();
        assert!(!bench.pool.is_idle());
        bench.pool.put_down(job);
        assert!(bench.pool.is_idle());
    }
    assert!(bench.pool.jobs.tenants() <= 2 * IDLE_QUEUES_MAX);
}
