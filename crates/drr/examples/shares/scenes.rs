//! The four situations, played on each scheduler.

use crate::rivals::{self, Member, Scheduler};

/// One situation and what came of it.
pub(crate) struct Scene {
    pub(crate) title: &'static str,
    pub(crate) question: &'static str,
    pub(crate) measure: Measure,
    pub(crate) rows: Vec<Row>,
}

/// The quantity that the bars of a scene show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// The part of all service that each bar got; the ideal is marked.
    Share,
    /// Dispatches that went to others first, on a logarithmic scale; less is better.
    Wait,
}

/// The bars of one scheduler.
pub(crate) struct Row {
    pub(crate) scheduler: &'static str,
    pub(crate) bars: Vec<Bar>,
}

pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    pub(crate) ideal: f64,
}

/// Plays all situations.
pub(crate) fn all() -> Vec<Scene> {
    vec![costs(), weights(), quiet(), splitting()]
}

fn costs() -> Scene {
    let costs = [1, 1, 10, 100];
    let members: Vec<Member> = (0..4).map(|tenant| Member { weight: 1, tenant }).collect();
    let play = |scheduler: &mut dyn Scheduler| {
        let served = backlogged(scheduler, &costs, 400_000);
        let total: f64 = served.iter().sum();
        let bar = |(key, got): (usize, &f64)| Bar {
            label: format!("cost {}", costs[key]),
            value: got / total,
            ideal: 0.25,
        };
        served.iter().enumerate().map(bar).collect()
    };
    Scene {
        title: "Four equal tenants whose tasks cost 1 : 1 : 10 : 100",
        question: "Who gets the server's time?",
        measure: Measure::Share,
        rows: rows(10, &members, play),
    }
}

fn weights() -> Scene {
    let members: Vec<Member> = (0..5)
        .map(|tenant| Member {
            weight: tenant as u32 + 1,
            tenant,
        })
        .collect();
    let play = |scheduler: &mut dyn Scheduler| {
        let served = backlogged(scheduler, &[10; 5], 300_000);
        let total: f64 = served.iter().sum();
        let bar = |(key, got): (usize, &f64)| Bar {
            label: format!("weight {}", key + 1),
            value: got / total,
            ideal: (key + 1) as f64 / 15.0,
        };
        served.iter().enumerate().map(bar).collect()
    };
    Scene {
        title: "Five tenants with weights 1 : 2 : 3 : 4 : 5",
        question: "Do weights work?",
        measure: Measure::Share,
        rows: rows(10, &members, play),
    }
}

fn quiet() -> Scene {
    const HOT: usize = 1000;
    let members: Vec<Member> = (0..=HOT)
        .map(|tenant| Member { weight: 1, tenant })
        .collect();
    let play = |scheduler: &mut dyn Scheduler| {
        for _ in 0..20 {
            (0..HOT).for_each(|key| scheduler.enqueue((key, 10)));
        }
        for _ in 0..3 * HOT + HOT / 2 {
            let task = scheduler.dispatch().expect("there is work");
            scheduler.enqueue(task);
        }
        scheduler.enqueue((HOT, 10));
        let before = std::iter::from_fn(|| scheduler.dispatch())
            .take_while(|&(key, _)| key != HOT)
            .count();
        vec![Bar {
            label: "before it".to_owned(),
            value: before as f64,
            ideal: 0.0,
        }]
    };
    Scene {
        title: "A quiet tenant's one task arrives among 1,000 busy tenants with 20 each",
        question: "How many tasks go first?",
        measure: Measure::Wait,
        rows: rows(10, &members, play),
    }
}

fn splitting() -> Scene {
    const MANY: usize = 1000;
    let member = |key: usize| Member {
        weight: 1,
        tenant: usize::from(key > 0),
    };
    let members: Vec<Member> = (0..=MANY).map(member).collect();
    let play = |scheduler: &mut dyn Scheduler| {
        let served = backlogged(scheduler, &[10; MANY + 1], 4_000_000);
        let (one, many) = (served[0], served[1..].iter().sum::<f64>());
        vec![
            Bar {
                label: "1 key".to_owned(),
                value: one / (one + many),
                ideal: 0.5,
            },
            Bar {
                label: "1,000 keys".to_owned(),
                value: many / (one + many),
                ideal: 0.5,
            },
        ]
    };
    Scene {
        title: "Two tenants: one uses 1 key, the other splits itself into 1,000",
        question: "Does splitting pay?",
        measure: Measure::Share,
        rows: rows(10, &members, play),
    }
}

fn rows(
    quantum: u64,
    members: &[Member],
    play: impl Fn(&mut dyn Scheduler) -> Vec<Bar>,
) -> Vec<Row> {
    let row = |mut scheduler: Box<dyn Scheduler>| Row {
        scheduler: scheduler.name(),
        bars: play(scheduler.as_mut()),
    };
    rivals::all(quantum, members).into_iter().map(row).collect()
}

/// Serves `service` in all with every key backlogged, and returns what each got.
fn backlogged(scheduler: &mut dyn Scheduler, costs: &[u64], service: u64) -> Vec<f64> {
    for _ in 0..8 {
        costs
            .iter()
            .enumerate()
            .for_each(|(key, &cost)| scheduler.enqueue((key, cost)));
    }
    let mut served = vec![0.0; costs.len()];
    let mut total = 0;
    while total < service {
        let (key, cost) = scheduler.dispatch().expect("everyone has work");
        scheduler.enqueue((key, cost)); // its next task arrives
        served[key] += cost as f64;
        total += cost;
    }
    served
}
